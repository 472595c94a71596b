"""Questions to a running gateway, or to another router on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from kcverify.diagnostics import InputError, input_error

SECONDS = 30.0


def send(url: str, path: str, body: Mapping[str, Any], token: str | None) -> Any:
    """Post JSON and return the answer's. Raises InputError: `gateway_unreachable`."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    target = url.rstrip("/") + path
    try:
        answer = httpx.post(target, json=dict(body), headers=headers, timeout=SECONDS, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise _unreachable(url, type(error).__name__) from None
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        raise _unreachable(url, f"it answers {answer.status_code} without JSON") from None
    if answer.status_code >= 400:
        wrong = found.get("error") if isinstance(found, dict) else None
        told = wrong.get("message") if isinstance(wrong, dict) else None
        raise _unreachable(url, f"it answers {answer.status_code}: {told or found}"[:300])
    return found


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
