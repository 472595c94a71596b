"""JSON documents of a file, one at a time: JSON lines as a stream, one document whole and with a size limit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kcverify.diagnostics import input_error
from kcverify.readers.faults import Place, shown, too_large

WHOLE = 512 << 20
"""Bytes of a one-document JSON file that are read."""

LINE = 64 << 20
"""Bytes of one line of JSON lines that are read."""

_ENVELOPES = (("response", "body"), ("response",), ("body",))
"""Where batch runners put the engine's own answer."""

_NAMES = ("custom_id", "request_id")


@dataclass(frozen=True)
class Document:
    """One JSON object of a file, where it stands, and the name that a batch runner gave to its request."""

    value: Mapping[str, Any]
    place: Place
    name: str | None
    number: int


def documents(path: Path) -> Iterator[Document]:
    """Objects of the file in order: one a line, or those of one document (an object, or a list of them).

    Raises InputError: `stream_invalid` (place: line and column), `stream_too_large`, `file_unreadable`, `file_empty`.
    """
    counted = 0
    for place, value in _values(path):
        for index, item in enumerate(value) if isinstance(value, list) else ((None, value),):
            where = place if index is None else place.at(index)
            if not isinstance(item, dict):
                raise where.invalid(f"{shown(item)} is not an object")
            yield _unwrapped(item, where, counted)
            counted += 1
    if not counted:
        raise input_error("file_empty", path=path)


def _values(path: Path) -> Iterator[tuple[Place, Any]]:
    try:
        with path.open("rb") as file:
            yield from _lines(path, file)
    except OSError as error:
        raise input_error("file_unreadable", path=path, reason=(error.strerror or str(error)).lower()) from None


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[Place, Any]]:
    first = _line(path, file, 1).removeprefix(b"\xef\xbb\xbf")
    number = 1
    while first and not first.strip():
        number += 1
        first = _line(path, file, number)
    if not first:
        return
    value, fault = _try(first)
    if fault is not None:
        yield Place(str(path)), _whole(path, file, first, number)
        return
    yield Place(str(path), f"line {number}"), value
    while raw := _line(path, file, number := number + 1):
        if raw.strip():
            place = Place(str(path), f"line {number}")
            yield place, parse(place, raw)


def _line(path: Path, file: BinaryIO, number: int) -> bytes:
    raw = file.readline(LINE + 1)
    if len(raw) > LINE:
        hint = "write one request a line"
        raise too_large(f"{path}: line {number}", "a line", len(raw), LINE, hint)
    return raw


def _try(raw: bytes) -> tuple[Any, Exception | None]:
    try:
        return _load(raw.decode("utf-8")), None
    except (ValueError, RecursionError) as error:
        return None, error


def _whole(path: Path, file: BinaryIO, first: bytes, number: int) -> Any:
    """The one document that starts at `first`; where the first line alone is damaged, the message is about that line."""
    rest = file.read(WHOLE + 1 - len(first))
    if len(first) + len(rest) > WHOLE:
        size = path.stat().st_size
        raise too_large(path, "one JSON document", size, WHOLE, "write JSON lines, one request a line")
    place = Place(str(path))
    opened = first.strip()[:1]
    if rest.strip() and first.rstrip().endswith((b"}", b"]")) and len(first.strip()) > 1 and opened in (b"{", b"["):
        value, fault = _try(first + rest)
        return value if fault is None else parse(Place(str(path), f"line {number}"), first)
    return parse(place, first + rest)


def parse(place: Place, raw: bytes) -> Any:
    """The JSON value of the bytes. NaN and the infinities are read as numbers; a key given twice is a fault.

    Raises InputError: `stream_invalid` with line and column.
    """
    try:
        return _load(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise place.invalid(f"not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        end = error.pos >= len(raw.decode("utf-8").rstrip())
        raise place.invalid("the JSON text ends too early" if end else f"not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise place.invalid("not JSON: nested too deep") from None
    except ValueError as error:
        raise place.invalid(f"not JSON: {error}") from None


def _load(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(twice)} occurs twice")
    return out


def _unwrapped(value: dict[str, Any], place: Place, number: int) -> Document:
    """The engine's answer inside the envelope of a batch runner. Raises `stream_invalid` for an answer that is an error."""
    name = next((str(value[k]) for k in _NAMES if isinstance(value.get(k), str | int) and value[k] != ""), None)
    inner: dict[str, Any] = value
    for path in _ENVELOPES:
        found: Any = value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict):
            inner = found
            break
    error = inner.get("error") or (inner.get("message") if inner.get("object") == "error" else None)
    if error:
        text = error.get("message") if isinstance(error, dict) else error
        raise place.invalid(
            f"the engine answered with an error: {shown(text)}", "leave failed requests out of the file"
        )
    return Document(inner, place, name, number)
