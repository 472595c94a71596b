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


def comments(source: Source) -> tuple[Span, ...]:
    """Every comment of the source, from its `#` to the end of its line."""
    return tuple(Span(source, start, end) for start, end in scan(source.text).comments)
