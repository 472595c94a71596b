"""Lays out neighbouring lines in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kcverify.source import Span
from kcverify.syntax import tree

WIDEST = 72
"""Columns that are padded at most; a longer cell is followed by one space and does not push the others."""


@dataclass(frozen=True)
class Row:
    """One line as cells, each of which starts in a column of its own; `inner` is a stage, which may need three."""

    span: Span
    cells: tuple[str, ...]
    inner: tree.Stage | None = None


def aligned(rows: Sequence[Row]) -> list[str]:
    """The rows as text, each column as wide as its widest cell that is not too wide."""
    columns = max((len(row.cells) for row in rows), default=0) - 1
    widths = []
    for column in range(columns):
        sizes = [len(row.cells[column]) for row in rows if len(row.cells) > column + 1]
        widths.append(max((size for size in sizes if size <= WIDEST), default=0))
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row.cells[:-1], widths, strict=False)]
        lines.append(" ".join([*padded, row.cells[-1]]))
    return lines
