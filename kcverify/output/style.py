"""Colours and columns of the text output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PAINT = {
    "PROVED": "32", "pass": "32", "REFUTED": "31", "fail": "31", "UNKNOWN": "33", "inconclusive": "33",
    "unobservable": "33", "not_enforced": "2", "bold": "1", "dim": "2",
}  # fmt: skip
_RUNNER = re.compile(r"##(?=\w*\[)")
_LINE = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def single(value: Any) -> Any:
    """The same plain data with every text on one line: a name that somebody chose can end no line of ours."""
    if isinstance(value, str):
        return _LINE.sub("⏎", value)
    if isinstance(value, Mapping):
        return {single(k): single(v) for k, v in value.items()}
    return [single(v) for v in value] if isinstance(value, list | tuple) else value


def still(text: str, sign: str) -> str:
    """`text` without `##word[`, a command to runners of Azure and TeamCity wherever it stands: `sign` is its second `#`."""
    return _RUNNER.sub(lambda _: "#" + sign, text)


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
