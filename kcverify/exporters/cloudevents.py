"""CloudEvents 1.0, one JSON object a line: verdicts of a run, events of a store."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from kcverify.delivery.chain import Event
from kcverify.exporters.request import Request
from kcverify.exporters.text import printable, whole
from kcverify.exporters.verdicts import Verdicts
from kcverify.output.style import still

PREFIX = "kcverify"
"""First part of every event's type."""
_LATEST = 253_402_300_799_999
"""Milliseconds of the last moment that RFC 3339 can write."""


def lines(request: Request) -> str:
    """A line an event: those of the store in their order, then the verdicts."""
    found = [*_stored(request.events)]
    if request.verdicts is not None:
        found += _measured(request.verdicts)
    return "".join(still(json.dumps(event, allow_nan=False), "\\u0023") + "\n" for event in found)


def _event(id: str, source: str, type: str, subject: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """An event. The subject is shown without control characters, which attributes may not hold; `data` is exact."""
    return {
        "specversion": "1.0",
        "id": id,
        "source": source,
        "type": f"{PREFIX}.{type}",
        "subject": printable(subject) or "all",
        "datacontenttype": "application/json",
        "data": _clean(data),
    }


def _clean(value: Any) -> Any:
    """The same value with text that UTF-8 can hold, and numbers that JSON can."""
    if isinstance(value, Mapping):
        return {whole(str(k)): _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return whole(value) if isinstance(value, str) else value


def _stored(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Events of a store: the source is its first event, the id the hash of each, so that sending twice is seen."""
    source = ""
    for event in events:
        source = source or f"urn:{PREFIX}:store:{event.hash}"
        out = _event(event.hash, source, f"store.{_word(event.kind)}", event.kind, event.data())
        if 0 <= event.at <= _LATEST:
            out["time"] = datetime.fromtimestamp(event.at / 1000, UTC).isoformat(timespec="milliseconds")
        yield out


def _word(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text) or "event"


def _measured(verdicts: Verdicts) -> Iterator[dict[str, Any]]:
    """One event for the run, one for each clause and slice; the id is a digest of what is said, and of the file."""
    head = {
        "contract": verdicts.contract,
        "digest": verdicts.digest,
        "about": verdicts.about,
        "stage": verdicts.stage,
        "file_sha256": verdicts.sha256,
    }
    source = f"urn:{PREFIX}:contract:{hashlib.sha256(whole(verdicts.digest).encode()).hexdigest()}"
    yield _identified(source, "verdict", verdicts.contract, head | {"verdict": verdicts.verdict})
    for clause in verdicts.clauses:
        said = {
            "clause": clause.name,
            "slice": clause.slice,
            "severity": clause.severity,
            "text": clause.text,
            "verdict": clause.verdict,
            "reason": clause.reason,
            "requests": clause.requests,
            "log_e_fail": clause.log_e_fail,
            "log_e_pass": clause.log_e_pass,
        }
        yield _identified(source, "clause.verdict", clause.where, head | said)


def _identified(source: str, type: str, subject: str, data: Mapping[str, Any]) -> dict[str, Any]:
    content = json.dumps([type, subject, _clean(data)], sort_keys=True)
    return _event(hashlib.sha256(content.encode()).hexdigest(), source, type, subject, data)
