"""The request log: one JSON line a request, with all that a replay of the split and of the sampling needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import IO, Any

from kcverify.diagnostics import input_error
from kcverify.gateway.answers import Headers
from kcverify.gateway.asked import SAMPLING, Asked

NO_REPLAY = (
    "an engine's answer carries neither its logits, nor the batch that they were computed in, nor the state of its generators: "
    "measure the request with `kcverify measure --witnesses`"
)
"""Why an entry holds no event that `kcverify replay` could run again."""


def token_digest(tokens: Iterable[int]) -> str:
    """SHA-256 of the token ids as 32-bit little-endian integers."""
    return hashlib.sha256(b"".join((t & 0xFFFFFFFF).to_bytes(4, "little") for t in tokens)).hexdigest()


class RequestLog:
    """Appends to a file; whole lines only, given to the system once a second."""

    def __init__(self, path: str | None) -> None:
        self._file: IO[str] | None = None
        self.lost = 0
        if path is not None:
            try:
                self._file = open(path, "a", encoding="utf-8", buffering=1 << 20)  # noqa: PTH123, SIM115
            except (OSError, ValueError) as error:
                reason = (getattr(error, "strerror", None) or str(error)).lower()
                raise input_error("file_unwritable", path=path, reason=reason) from None

    @property
    def on(self) -> bool:
        """Whether lines are kept."""
        return self._file is not None

    def line(self, content: dict[str, Any]) -> None:
        """One line."""
        if self._file is not None:
            try:
                self._file.write(json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")
            except (OSError, ValueError):
                self.lost += 1

    def flush(self) -> None:
        """Give the lines to the system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self.lost += 1

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self.flush()
            try:
                self._file.close()
            except OSError:
                self.lost += 1
            self._file = None


def route_headers(asked: Asked, served: str) -> Headers:
    """Who answered, by which table."""
    routed = asked.routed
    told = f"version={routed.table.version}; side={routed.side}; served={served}"
    if routed.mirrored:
        told += "; mirrored"
    return [(b"x-request-id", asked.request_id.encode("latin-1")), (b"x-kcverify-route", told.encode())]


def log_line(log: RequestLog, asked: Asked, served: str, status: int, found: dict[str, Any] | None) -> None:
    """Write down a request: what the split needs, and the replay signature of its answer."""
    if not log.on:
        return
    table, fields = asked.routed.table, asked.fields
    choices = found.get("choices") if found is not None else None
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    tokens, prompt = _ids(first.get("token_ids")), asked.prompt
    log.line(
        {
            "at": asked.at, "request_id": asked.request_id, "kind": asked.kind, "salt": table.salt, "route_version": table.version,
            "weights": {k: str(v) for k, v in table.weights.items()}, "side": asked.routed.side, "served": served,
            "mirrored": asked.routed.mirrored, "tried": asked.tried, "status": status, "stage": table.stage, "run": table.run,
            "seed": _plain(fields.get("seed")), "sampling": {k: _plain(fields[k]) for k in SAMPLING if fields.get(k) is not None},
            "model": _plain(found.get("model")) if found is not None else None,
            "system_fingerprint": _plain(found.get("system_fingerprint")) if found is not None else None,
            "body_sha256": hashlib.sha256(asked.body).hexdigest(),
            "prompt_sha256": None if prompt is None else token_digest(prompt),
            "tokens_sha256": None if tokens is None else token_digest(tokens), "replay_event": None, "no_replay": NO_REPLAY,
        }
    )  # fmt: skip


def _ids(tokens: object) -> list[int] | None:
    return tokens if isinstance(tokens, list) and all(type(t) is int for t in tokens) else None


def _plain(value: object) -> Any:
    """JSON of a value that a client or an upstream sent, with numbers that JSON does not know as text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    except RecursionError:
        return "nested too deeply"
    return value
