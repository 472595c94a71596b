"""The shipped table of optimal sequence bounds: an upper bound at once, rounded up to the next node."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from kcverify.bounds.optimal_forms import check_arguments, closed_form

RESOURCE = "seq_tv_table.json"
UNIT = Fraction(1, 10**8)


class Table(NamedTuple):
    """Nodes in span (nat) and horizon (token); per horizon the index of its first span, and bounds in units of 1e-8."""

    spans: tuple[Fraction, ...]
    horizons: tuple[int, ...]
    first: tuple[int, ...]
    upper: tuple[tuple[int, ...], ...]


@cache
def load_table() -> Table:
    """The table that ships with the package, read once."""
    raw = json.loads(files("kcverify").joinpath("data", RESOURCE).read_text(encoding="utf-8"))
    return Table(
        tuple(Fraction(x) for x in raw["spans"]),
        tuple(raw["horizons"]),
        tuple(raw["first"]),
        tuple(tuple(column) for column in raw["upper"]),
    )


def table_upper(s: Fraction, horizon: int) -> Fraction:
    """Rational upper bound of the worst adaptive total variation over `horizon` tokens of effective span `s` (nat).

    The entry of the next node at or above `s` and `horizon`, typically 2 to 8 % above `optimal.upper`, or the closed
    form where that is less: up to 3 tokens, where it is exact, and outside the nodes. Non-decreasing in both arguments
    up to the 40 bits of the closed form. Takes well under a millisecond once loaded. Raises ValueError for a negative
    span or `horizon < 1`.
    """
    s = check_arguments(s, horizon)
    closed = closed_form(s, horizon)
    table = load_table()
    column = bisect_left(table.horizons, horizon)
    if horizon <= 3:
        return closed
    return min([closed, *_entries(table, bisect_left(table.spans, s), column)])


def _entries(table: Table, row: int, column: int) -> Iterator[Fraction]:
    """Entries that bound this node: its own, and for spans below the first of a column the first entry and those of
    longer horizons, so that the table stays monotone where it begins."""
    for j in range(column, len(table.horizons)):
        place = row - table.first[j]
        if place < len(table.upper[j]):
            yield table.upper[j][max(0, place)] * UNIT
        if place >= 0:
            return
