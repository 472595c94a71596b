"""One attempt of the proxy at an upstream: what was added to the request, and what the client gets of an answer's events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kcverify.gateway.streaming import DONE, Gathered, content, event_of, strip, unnumbered
from kcverify.gateway.upstream import Fault, Upstream, parsed_event


@dataclass
class Attempt:
    """One upstream that is asked: what was added to the request, whether what it says is to be measured.

    `numbered`: a log-probability of null is no number that it could have computed (that of an echoed prompt may be).
    `seconds` until its first byte: where nobody is left to ask, as long as a whole answer may take.
    """

    server: Upstream
    role: str
    extra: Mapping[str, Any]
    measured: bool
    seconds: float
    numbered: bool = False


def read_event(event: bytes, attempt: Attempt, gathered: Gathered) -> bytes | None:
    """What the client gets of an event. Raises Fault for an event that says that the upstream failed."""
    data = content(event)
    if data is None:
        return event
    if data == DONE:
        if attempt.measured and not gathered.choices:
            raise Fault("invalid", "the stream has no choices")
        gathered.done = True
        return event
    if not attempt.measured:
        if data.startswith(b'{"error"'):
            raise Fault("failed", data[:80].decode("utf-8", "replace"))
        return event
    found = parsed_event(data)
    if attempt.numbered and unnumbered(found):
        raise Fault("non_finite", "a log-probability is null")
    gathered.add(found)
    return told(strip(found, attempt.extra), event_of) if attempt.extra else event


def told(found: dict[str, Any], form: Callable[[Mapping[str, Any]], bytes]) -> bytes:
    """An upstream's object as text again. Raises Fault where it is nested too deeply for that."""
    try:
        return form(found)
    except RecursionError:
        raise Fault("invalid", "the answer is nested too deeply") from None
