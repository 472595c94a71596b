"""The counts and log e-values at which a cell is decided: what its evidence is drawn against."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from kcverify.elaborate.contract import Clause
from kcverify.emit.live import Boundary
from kcverify.runtime.many import Judged, judge_slices
from kcverify.runtime.sequential import Outcome, log_e_rate

_STEPS = 20


def judged(clause: Clause, rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Thresholds of all cells of one clause together, from their log e-values."""
    outcomes = [Outcome(r["verdict"], "", r["log_e_fail"], r["log_e_pass"]) for r in rows]
    return judge_slices(outcomes, float(clause.confidence), clause.severity)


def log_threshold_pass(clause: Clause) -> float:
    """`ln(1/beta)`."""
    return math.log(1.0 / (1.0 - float(clause.confidence)))


@lru_cache(maxsize=4096)
def boundary(n: int, limit: float, fail: float, certify: float) -> Boundary:
    """Counts of the rate test at `n` units for log thresholds of both sides; `limit` in (0, 1)."""
    fails = bisect_left(range(n + 1), True, key=lambda s: log_e_rate(s, n, limit, "above") >= fail)
    passes = bisect_left(range(n + 1), True, key=lambda s: log_e_rate(s, n, limit, "below") < certify)
    return Boundary(n, passes - 1 if passes else None, fails if fails <= n else None)


def curve(n: int, needed: int | None, limit: float, fail: float, certify: float) -> list[Boundary]:
    """The boundaries from few units to more than `n`, in steps that stay the same while `n` grows a little."""
    most = 16
    while most < 1.1 * max(n, needed or 1):
        most *= 2
    return [boundary(max(1, most * i // _STEPS), limit, fail, certify) for i in range(1, _STEPS + 1)]
