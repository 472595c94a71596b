"""Regenerate the shipped table of optimal sequence bounds, `kcverify/data/seq_tv_table.json`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from fractions import Fraction
from pathlib import Path

from kcverify.bounds.optimal import LONGEST_BLOCK
from kcverify.bounds.optimal_forms import is_vacuous
from kcverify.bounds.optimal_gaussian import composed, dominations
from kcverify.bounds.optimal_grid import upper_profiles
from kcverify.bounds.optimal_table import RESOURCE, UNIT

CELLS = 20
LONGEST = 2**17
SPAN_RATIO = 1.04
SMALLEST_SCALE = 5e-4
LARGEST_SPAN = 11


def horizon_nodes() -> list[int]:
    """4 to 2^17 in steps of `2^(1/6)`, every power of 2 among them; above a block they are blocks times powers of 2."""
    block = [round(512 * 2 ** (j / 6)) for j in range(-2, 4)]
    long = {q << i for q in block for i in range(10)}
    short = {round(512 * 2 ** (-j / 6)) for j in range(60)}
    return sorted(h for h in long | short if 4 <= h <= LONGEST)


def span_nodes() -> list[Fraction]:
    """Spans with 6 significant digits, in steps of 4 %."""
    s, out = SMALLEST_SCALE / LONGEST**0.5, []
    while s < LARGEST_SPAN:
        out.append(Fraction(f"{s:.5e}"))
        s *= SPAN_RATIO
    return out


def bounds_at(s: Fraction, horizons: list[int]) -> dict[int, float]:
    """Upper bounds at one span for every horizon of the list that is worth a recursion, from a single run."""
    wanted = [h for h in horizons if float(s) * h**0.5 >= SMALLEST_SCALE and not is_vacuous(s, h)]
    if not wanted:
        return {}
    block = {h: h >> max(0, (h // (LONGEST_BLOCK + 1)).bit_length()) for h in wanted}
    profiles = upper_profiles(s, set(block.values()), CELLS)
    kinds = {q: dominations(profiles[q]) for q in {q for h, q in block.items() if q < h}}
    out = {}
    for h, q in block.items():
        assert h % q == 0, "a node above the longest block is a multiple of its block"
        out[h] = float(profiles[h].values[0]) if q == h else composed([(kinds[q], h // q)])
    return {h: v for h, v in out.items() if v < 1}


def monotone(columns: list[dict[int, int]], horizons: list[int]) -> None:
    """Raise entries where needed so that the table does not decrease in span or horizon."""
    for j, column in enumerate(columns):
        before = 0
        for i in sorted(column):
            below = columns[j - 1].get(i, 0) if j else 0
            before = column[i] = max(column[i], before, below)


def make(log: bool) -> dict[str, object]:
    """The whole table as a JSON document."""
    horizons, spans = horizon_nodes(), span_nodes()
    columns: list[dict[int, int]] = [{} for _ in horizons]
    start = time.perf_counter()
    for i, s in enumerate(spans):
        for h, value in bounds_at(s, horizons).items():
            units = Fraction(value) / UNIT
            columns[horizons.index(h)][i] = -(-units.numerator // units.denominator)
        if log and i % 20 == 0:
            print(f"{i}/{len(spans)} {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    monotone(columns, horizons)
    for column in columns:
        assert sorted(column) == list(range(min(column), max(column) + 1)), "a column has a hole"
    return {
        "version": 1,
        "unit": "1e-8",
        "spans": [f"{float(s):.5e}" for s in spans],
        "horizons": horizons,
        "first": [min(column) for column in columns],
        "upper": [[column[i] for i in sorted(column)] for column in columns],
    }


def main() -> None:
    """Write the table; takes about three minutes on one core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "kcverify" / "data" / RESOURCE)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    text = json.dumps(make(not options.quiet), separators=(",", ":"))
    options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
