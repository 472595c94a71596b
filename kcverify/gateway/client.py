"""Questions to a running gateway, or to another router on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import httpx

from kcverify.diagnostics import InputError, input_error

SECONDS = 30.0
LARGEST = 64 << 20
"""Bytes of an answer that are read."""


def send(url: str, path: str, body: Mapping[str, Any], token: str | None) -> Any:
    """Post JSON and return the answer's. Raises InputError: `gateway_unreachable`."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    target = url.rstrip("/") + path
    try:
        status, content = _posted(target, dict(body), headers)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise _unreachable(url, type(error).__name__) from None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise _unreachable(url, f"it answers {status} without JSON") from None
    if status >= 400:
        wrong = found.get("error") if isinstance(found, dict) else None
        told = wrong.get("message") if isinstance(wrong, dict) else None
        raise _unreachable(url, f"it answers {status}: {told or found}"[:300])
    return found


def _posted(target: str, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Status and body of an answer, at most `LARGEST` bytes and never unpacked. Raises httpx.HTTPError, ValueError."""
    parts, size, end = [], 0, time.monotonic() + SECONDS
    plain = {**headers, "accept-encoding": "identity"}
    with (
        httpx.Client(timeout=SECONDS, trust_env=False) as client,
        client.stream("POST", target, json=body, headers=plain) as answer,
    ):
        for part in answer.iter_raw():
            parts.append(part)
            size += len(part)
            if size > LARGEST or time.monotonic() > end:
                raise httpx.ReadError("the answer does not end")
    return answer.status_code, b"".join(parts)


def decision(url: str, token: str | None) -> dict[str, Any]:
    """A gateway's decision about its stage: `gate`, `digest`, `name`, `stage`. Raises InputError: `gateway_unreachable`."""
    found = send(url, "/admin/gate", {}, token)
    if not isinstance(found, dict) or not all(isinstance(found.get(k), str) for k in ("digest", "name", "stage")):
        raise _unreachable(url, "it answers, but not as a gateway of kcverify")
    if not isinstance(found.get("gate"), dict) or not isinstance(found["gate"].get("clauses"), list):
        raise _unreachable(url, "its answer holds no decision")
    return found


def _unreachable(url: str, reason: str) -> InputError:
    return input_error("gateway_unreachable", url=url, reason=reason)
