"""Weaves printed lines with the comments and empty lines of the text that they came from."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from kcverify.source import Source, Span
from kcverify.syntax.columns import Row, aligned
from kcverify.syntax.scan import comments

_INDENT = "  "
_COMMENT_COLUMN = 80


@dataclass(frozen=True)
class Line:
    """One printed line and the part of the source that it prints.

    Neighbours of one `group` need no empty line between them; `closes` marks a `}`. With `row`, the text comes from
    the columns of the run of rows that it stands in.
    """

    text: str
    span: Span
    depth: int = 0
    group: str | None = None
    closes: bool = False
    row: Row | None = None


@dataclass
class _Piece:
    """A line or a comment of its own, with the comments that end it and the source lines that it covers."""

    text: str
    depth: int
    line: Line | None
    first: int = 0
    last: int = 0
    trailing: list[str] = field(default_factory=list)


def weave(lines: list[Line], source: Source | None) -> str:
    """The text of the lines; with a source, with its comments, and with its empty lines cut to one."""
    pieces = [_Piece(text, line.depth, line) for line, text in zip(lines, _texts(lines, source), strict=True)]
    if source is not None:
        for piece in pieces:
            assert piece.line is not None
            piece.first = source.position(piece.line.span.start)[0]
            piece.last = source.position(max(piece.line.span.start, piece.line.span.end - 1))[0]
        pieces = _with_comments(pieces, source)
    out: list[str] = []
    for index, (piece, column) in enumerate(zip(pieces, _comment_columns(pieces), strict=True)):
        if index and _gap(pieces, index):
            out.append("")
        out += _written(piece, column)
    return "\n".join(out) + "\n" if out else ""


def _written(piece: _Piece, column: int) -> list[str]:
    """The piece as lines: further comments than one stand above it, as a line has room for one."""
    indent = _INDENT * piece.depth
    *above, last = piece.trailing or [""]
    text = f"{indent}{piece.text}"
    return [*(f"{indent}{comment}" for comment in above), f"{text.ljust(column)}  {last}" if last else text]


def _comment_columns(pieces: list[_Piece]) -> list[int]:
    """Column before the trailing comment of each piece: one for neighbouring rows that have one, up to a limit."""
    columns = [0] * len(pieces)
    for _, run in groupby(range(len(pieces)), key=lambda index: _run_of(pieces, index)):
        members = [index for index in run if pieces[index].trailing]
        sizes = {index: 2 * pieces[index].depth + len(pieces[index].text) for index in members}
        widest = max((size for size in sizes.values() if size <= _COMMENT_COLUMN), default=0)
        for index in members:
            columns[index] = widest
    return columns


def _run_of(pieces: list[_Piece], index: int) -> object:
    """What tells runs of rows apart; anything else than a row is a run of its own."""
    line = pieces[index].line
    return (line.depth, line.group) if line is not None and line.row is not None else index


def _texts(lines: list[Line], source: Source | None) -> list[str]:
    """Texts of the lines; rows side by side, with no empty line between them, share their columns."""
    texts: list[str] = []
    run: list[Line] = []
    for line in [*lines, None]:
        if line is None or line.row is None or (run and not _joins(run[-1], line, source)):
            texts += aligned([part.row for part in run if part.row is not None])
            run = []
        if line is not None:
            if line.row is None:
                texts.append(line.text)
            else:
                run.append(line)
    return texts


def _joins(before: Line, line: Line, source: Source | None) -> bool:
    """Whether two rows share their columns."""
    if before.group != line.group:
        return False
    if source is None:
        return True
    between = source.text[before.span.end : line.span.start]
    return not _has_empty_line(between)


def _has_empty_line(text: str) -> bool:
    return any(not part.strip() for part in text.split("\n")[1:-1])


def _with_comments(pieces: list[_Piece], source: Source) -> list[_Piece]:
    """The pieces with each comment on the line that it ends, or as a piece of its own."""
    ends = [piece.line.span.end for piece in pieces if piece.line is not None]
    own: dict[int, list[_Piece]] = {}
    for span in comments(source):
        number = source.position(span.start)[0]
        index = bisect_right(ends, span.start)
        text = span.text.rstrip()
        before = source.text[source.line_starts[number - 1] : span.start]
        if before.strip(" \t\ufeff;") and index:
            pieces[index - 1].trailing.append(text)
        else:
            own.setdefault(index, []).append(_Piece(text, _depth(pieces, index), None, number, number))
    out: list[_Piece] = []
    for index in range(len(pieces) + 1):
        out += own.get(index, [])
        out += pieces[index : index + 1]
    return out


def _depth(pieces: list[_Piece], index: int) -> int:
    """Depth of a comment that stands before piece `index`: as deep as the block that is open there."""
    after = pieces[index].line if index < len(pieces) else None
    before = pieces[index - 1].line if index else None
    inside = after.depth + after.closes if after is not None else 0
    if before is not None and before.text.endswith("{"):
        inside = max(inside, before.depth + 1)
    return inside


def _gap(pieces: list[_Piece], index: int) -> bool:
    """Whether an empty line stands before piece `index`."""
    piece, before = pieces[index], pieces[index - 1]
    if _opens(before) or (piece.line is not None and piece.line.closes):
        return False
    if piece.first > before.last + 1:
        return True
    if piece.depth or before.line is None:
        return False
    following = index
    while following < len(pieces) and pieces[following].line is None:
        following += 1
    if following == len(pieces) or _keeps(before.line, pieces[following].line):
        return False
    run = pieces[index - 1 : following + 1]
    return not any(after.first > former.last + 1 for former, after in pairwise(run))


def _opens(piece: _Piece) -> bool:
    return piece.line is not None and piece.line.text.endswith("{")


def _keeps(before: Line, line: Line | None) -> bool:
    """Whether two top-level lines stand together."""
    return line is not None and before.group is not None and before.group == line.group
