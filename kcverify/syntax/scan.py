"""One sweep over raw text that finds what needs no grammar: comments, brackets, statement boundaries, open quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kcverify.source import Source, Span

_PIECE = re.compile(r'"[^"\r\n]*"|"[^"\r\n]*|#[^\n]*|[(){}\[\];\n]')


@dataclass(frozen=True)
class Scan:
    """Offsets in one text. `boundaries` are those of newlines, `;`, `{` and `}`; `unmatched` of `{` without `}`."""

    comments: tuple[tuple[int, int], ...]
    open_quotes: tuple[tuple[int, int], ...]
    boundaries: tuple[int, ...]
    closing: dict[int, int]
    unmatched: tuple[int, ...]
    depth: int
    deepest: int


def scan(text: str) -> Scan:
    """The scan of `text`; takes time and memory linear in its length."""
    comments: list[tuple[int, int]] = []
    open_quotes: list[tuple[int, int]] = []
    boundaries: list[int] = []
    closing: dict[int, int] = {}
    braces: list[int] = []
    level = depth = deepest = 0
    for match in _PIECE.finditer(text):
        piece, at = match[0], match.start()
        first = piece[0]
        if first == "#":
            comments.append(match.span())
        elif first == '"':
            if len(piece) == 1 or piece[-1] != '"':
                open_quotes.append(match.span())
        elif first in "([":
            level += 1
            if level > depth:
                depth, deepest = level, at
        elif first in ")]":
            level = max(0, level - 1)
        else:
            boundaries.append(at)
            level = 0
            if first == "{":
                braces.append(at)
                if len(braces) > depth:
                    depth, deepest = len(braces), at
            elif first == "}" and braces:
                closing[braces.pop()] = at
    return Scan(tuple(comments), tuple(open_quotes), tuple(boundaries), closing, tuple(braces), depth, deepest)


_LONE_RETURN = re.compile(r"\r(?!\n)")


def lone_return(text: str) -> int | None:
    """Offset of the first carriage return that no line feed follows; None where there is none."""
    match = _LONE_RETURN.search(text)
    return match.start() if match is not None else None


def long_name(text: str, limit: int) -> tuple[int, int] | None:
    """Start and end of the first word of more than `limit` characters outside comments and quoted text."""
    if len(text) <= limit:
        return None
    longer = re.compile(rf'"[^"\r\n]*"?|#[^\n]*|(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]{{{limit},}})')
    found = next((match for match in longer.finditer(text) if match[1] is not None), None)
    return found.span(1) if found is not None else None


def comments(source: Source) -> tuple[Span, ...]:
    """Every comment of the source, from its `#` to the end of its line."""
    return tuple(Span(source, start, end) for start, end in scan(source.text).comments)
