"""How many requests without an exceedance a clause needs until it can pass, however often one looks.

The same mixtures as the monitor's, evaluated at clean evidence only: what a contract promises is known before it runs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from kcverify.catalog.model import Direction, Level, Statistic
from kcverify.elaborate.contract import Clause
from kcverify.exact import monitor_float_down

_BETS, _GRID, _SHRINK, _SCALE = 16, 12, 0.999, 1 << 32
_SHARES = ("agreement", "flip_rate", "parse_rate", "failure_rate")


def evidence(clause: Clause) -> tuple[str, Fraction] | None:
    """Kind of evidence (`binary`, `share`, `mean`) and the rate or mean that must be certified; None for other clauses.

    Clauses without an exception pass after the minimum of their stage; tokens that count one by one need no more
    requests than tokens.
    """
    upper, lower = clause.limit.upper, clause.limit.lower
    if clause.limit.hole or clause.unit == "token" or any(t is not None and t.terms for t in (lower, upper)):
        return None
    if clause.statistic is Statistic.MAX:
        rate, kind = clause.exception, "binary" if clause.metric.level is Level.REQUEST else "share"
    elif clause.statistic is Statistic.RATE and clause.metric.name in _SHARES:
        kind = "binary" if clause.metric.level is Level.REQUEST else "share"
        rate = _distance(clause)
    elif clause.statistic is Statistic.MEAN and clause.metric.range[1] == 1:
        rate, kind = _distance(clause), "mean"
    else:
        return None
    return (kind, rate) if 0 < rate < 1 else None


def _distance(clause: Clause) -> Fraction:
    """How far the limit is from the metric's good end, which is 0 or 1; 0 where there is no limit on that side."""
    if clause.metric.direction is Direction.AT_LEAST:
        return 1 - clause.limit.lower.constant if clause.limit.lower is not None else Fraction(0)
    return clause.limit.upper.constant if clause.limit.upper is not None else Fraction(0)


def one_look(rate: Fraction, confidence: Fraction) -> int:
    """Clean requests that certify a rate where the data are looked at once: `ln(1-c)/ln(1-rate)`."""
    return math.ceil(math.log1p(-float(confidence)) / math.log1p(-float(rate)))


@lru_cache(maxsize=4096)
def needed(kind: str, rate: Fraction, confidence: Fraction) -> int:
    """Clean requests until a pass under continuous peeking."""
    limit, bound = monitor_float_down(rate), math.log(1.0 / (1.0 - float(confidence)))
    high = 1
    while _evidence_of(high, limit, kind) < bound:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if _evidence_of(middle, limit, kind) >= bound:
            high = middle
        else:
            low = middle
    return high


def certified(kind: str, requests: int, confidence: Fraction) -> Fraction:
    """A rate that this many clean requests certify, to three digits and rounded up; 1 where they certify none."""
    low, high = Fraction(1, 10**12), Fraction(1)
    for _ in range(40):
        middle = Fraction(math.sqrt(float(low) * float(high)))
        if needed(kind, middle, confidence) <= requests:
            high = middle
        else:
            low = middle
        if high <= low * Fraction(1001, 1000):
            break
    return high


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def _evidence_of(requests: int, limit: float, kind: str) -> float:
    """Log e-value of so many clean requests against `the rate is at least the limit`."""
    if kind == "binary":
        return _rate(requests, limit)
    top = _SHRINK / (1.0 - limit)
    bets = [top / 256.0 * 256.0 ** (k / (_BETS - 1)) for k in range(_BETS)]
    wealths = [requests * math.floor(math.log1p(bet * limit) * _SCALE) / _SCALE for bet in bets]
    mean = _log_sum(wealths) - math.log(_BETS)
    return mean if kind == "mean" else _log_sum([mean, _rate(requests, limit)]) - math.log(2.0)


def _rate(requests: int, limit: float) -> float:
    odds = limit / (1.0 - limit)
    rates = [odds * 2.0 ** (-j / 2.0) for j in range(1, _GRID + 1)]
    points = [o / (1.0 + o) for o in rates] + [0.0]
    harmonic = math.fsum(1.0 / j for j in range(1, len(points) + 1))
    steps = [math.log1p(-p) - math.log1p(-limit) for p in points]
    return _log_sum([requests * step - math.log(j * harmonic) for j, step in enumerate(steps, 1)])
