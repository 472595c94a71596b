"""Colours and columns of the text output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PAINT = {
    "PROVED": "32", "pass": "32", "REFUTED": "31", "fail": "31", "UNKNOWN": "33", "inconclusive": "33",
    "unobservable": "33", "not_enforced": "2", "bold": "1", "dim": "2",
}  # fmt: skip


def paint(text: str, style: str, color: bool) -> str:
    """`text` in the colour of a verdict word or style; as it is without colour."""
    return f"\x1b[{_PAINT[style]}m{text}\x1b[0m" if color and style in _PAINT else text


def table(rows: Iterable[Sequence[str]], *, indent: int = 0, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of left-aligned columns two spaces apart; columns in `right` are right-aligned."""
    kept = [list(r) for r in rows]
    if not kept:
        return []
    widths = [max(len(r[i]) for r in kept) for i in range(len(kept[0]))]
    lines = []
    for r in kept:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return lines


def plural(count: int, noun: str) -> str:
    """`1 clause`, `2 clauses`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
