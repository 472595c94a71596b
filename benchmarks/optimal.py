"""Times and tightness of the optimal sequence bound: bound over attained, closed form and table over bound."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

from kcverify.bounds.optimal import attained, closed_form, span_budget, upper
from kcverify.bounds.optimal_recheck import recheck_coarse
from kcverify.bounds.optimal_table import load_table, table_upper

T = TypeVar("T")
POINTS = (
    (Fraction(1), 2),
    (Fraction(1), 8),
    (Fraction(1, 5), 64),
    (Fraction(1, 50), 1024),
    (Fraction(1, 50), 8192),
    (Fraction(1, 10), 8192),
    (Fraction(1, 1000), 131072),
)
BUDGETS = ((Fraction(1, 20), 1024), (Fraction(1, 20), 8192), (Fraction(1, 2), 8192))


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Result and seconds of one call."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def bound_row(s: Fraction, horizon: int, recheck: bool) -> dict[str, float | int | bool]:
    """Bounds, quotients and seconds at one span (nat) and horizon (token)."""
    above, seconds = timed(lambda: upper(s, horizon))
    below, seconds_below = timed(lambda: attained(s, horizon))
    table, seconds_table = timed(lambda: table_upper(s, horizon))
    row: dict[str, float | int | bool] = {
        "span": float(s),
        "horizon": horizon,
        "upper": float(above),
        "attained": float(below),
        "upper_over_attained": float(above / below),
        "closed_over_upper": float(closed_form(s, horizon) / above),
        "table_over_upper": float(table / above),
        "seconds_upper": seconds,
        "seconds_attained": seconds_below,
        "seconds_table": seconds_table,
    }
    if recheck:
        row["recheck_one_percent"], row["seconds_recheck"] = timed(
            lambda: recheck_coarse(s, horizon, above * Fraction(101, 100))
        )
    return row


def budget_row(tv: Fraction, horizon: int) -> dict[str, float | int]:
    """Span budget of the optimal bound, and its quotient to the budget of the closed form (bisection)."""
    s, seconds = timed(lambda: span_budget(tv, horizon))
    low, high = Fraction(0), s
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if closed_form(middle, horizon) <= tv else (low, middle)
    return {"tv": float(tv), "horizon": horizon, "span": float(s), "over_closed": float(s / low), "seconds": seconds}


def main() -> None:
    """Print one line per point, or a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-recheck", action="store_true", help="skip the slow pure-Python recheck")
    options = parser.parse_args()
    load_table()
    upper(Fraction(1), 4)
    result = {
        "bounds": [bound_row(s, horizon, not options.no_recheck) for s, horizon in POINTS],
        "budgets": [budget_row(tv, horizon) for tv, horizon in BUDGETS],
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, rows in result.items():
        print(name)
        for row in rows:
            print("  " + "  ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
