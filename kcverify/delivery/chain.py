"""Events that are only ever added, each with the hash of the one before."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import rfc8785

from kcverify.diagnostics import input_error

START = "0" * 64
"""The hash before the first event."""


@dataclass(frozen=True)
class Event:
    """One entry: its number from 1, kind, time in milliseconds since 1970, content, and both hashes in hexadecimal."""

    seq: int
    kind: str
    at: int
    body: Mapping[str, Any]
    previous: str
    hash: str

    def data(self) -> dict[str, Any]:
        """The event as JSON prints it."""
        return {
            "seq": self.seq,
            "kind": self.kind,
            "at": self.at,
            "body": dict(self.body),
            "previous": self.previous,
            "hash": self.hash,
        }


def canonical(value: Any) -> bytes:
    """Canonical JSON (RFC 8785). Raises ValueError for a number that JSON has no exact form of, or text that UTF-8 cannot hold."""
    try:
        text: bytes = rfc8785.dumps(value)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return text


def digest(seq: int, kind: str, at: int, body: Mapping[str, Any], previous: str) -> str:
    """SHA-256 of the canonical JSON of the event together with the hash of the one before. Raises ValueError."""
    content = {"seq": seq, "kind": kind, "at": at, "body": dict(body), "previous": previous}
    return hashlib.sha256(canonical(content)).hexdigest()


def event(seq: int, kind: str, at: int, body: Mapping[str, Any], previous: str) -> Event:
    """An event to record; half of a surrogate pair in its content, which UTF-8 cannot hold, is replaced. Raises ValueError."""
    held = _held(body)
    return Event(seq, kind, at, held, previous, digest(seq, kind, at, held, previous))


_HALF = re.compile("[\ud800-\udfff]")


def _held(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_held(k): _held(v) for k, v in value.items()}
    return [_held(v) for v in value] if isinstance(value, list | tuple) else value


def shown(at: int) -> str:
    """A time in UTC; as a number where the calendar has no such year."""
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{at} ms"


def follow(last: Event | None, kind: str, at: int, body: Mapping[str, Any]) -> Event:
    """The event that comes after `last` (None: the first one)."""
    seq, previous = (1, START) if last is None else (last.seq + 1, last.hash)
    return event(seq, kind, at, body, previous)


def verified(events: Iterable[Event], path: str) -> Iterator[Event]:
    """The same events, each checked before it is passed on. Raises InputError: `event_tampered` with its number."""
    seq, previous, at = 0, START, None
    for event in events:
        if event.seq != seq + 1:
            reason = f"it is missing: event {event.seq} comes after event {seq}"
            raise input_error("event_tampered", path=path, seq=seq + 1, reason=reason)
        if event.previous != previous:
            reason = f"it follows {event.previous[:12]}, and event {seq} has the hash {previous[:12]}"
            raise input_error("event_tampered", path=path, seq=event.seq, reason=reason)
        try:
            found = digest(event.seq, event.kind, event.at, event.body, event.previous)
        except ValueError as error:
            reason = f"its content is no canonical JSON: {error}"
            raise input_error("event_tampered", path=path, seq=event.seq, reason=reason) from None
        if found != event.hash:
            reason = f"its content has the hash {found[:12]}, and {event.hash[:12]} was recorded"
            raise input_error("event_tampered", path=path, seq=event.seq, reason=reason)
        if at is not None and event.at < at:
            reason = f"it is {at - event.at:,} ms earlier than event {seq}"
            raise input_error("event_tampered", path=path, seq=event.seq, reason=reason)
        yield event
        seq, previous, at = event.seq, event.hash, event.at


def head_matches(last: Event | None, seq: int, head: str, path: str) -> None:
    """Compares the last event with the head that was noted elsewhere. Raises InputError: `event_tampered`."""
    have = 0 if last is None else last.seq
    if have < seq:
        reason = f"it is missing: {seq} events were recorded, {have} are here"
        raise input_error("event_tampered", path=path, seq=have + 1, reason=reason)
    if have > seq:
        reason = f"it was added behind the recorded end, event {seq}"
        raise input_error("event_tampered", path=path, seq=seq + 1, reason=reason)
    if last is not None and last.hash != head:
        reason = f"it has the hash {last.hash[:12]}, and {head[:12]} was recorded as the end"
        raise input_error("event_tampered", path=path, seq=seq, reason=reason)
