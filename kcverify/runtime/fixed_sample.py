"""Tests for one look at a sample whose size was fixed before it was drawn: offline runs in continuous integration.

Binary clauses by the exact binomial tail (Clopper and Pearson 1934); shares and means of values in [0, 1] by Hoeffding's
bound in its exact form, `P(mean >= m) <= exp(-n KL(m, limit))` (Hoeffding 1963, theorem 1), which is the binomial tail
where no value exceeds. They need about a quarter fewer units than the sequential tests and hold at that one look only.
Tails are rounded up, limits outward.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kcverify.runtime.sequential import SCALE, Outcome, Wealth

_EPS = 2.0**-52


def _log_term(k: int, n: int, p: float) -> float:
    """`ln P(X = k)` of a binomial, p in (0, 1)."""
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choose + k * math.log(p) + (n - k) * math.log1p(-p)


def _tail(k: int, n: int, p: float, down: bool) -> float:
    """Sum of the terms from k away from the mode, where they fall, relative to the first one."""
    odds, total, term = p / (1.0 - p), 1.0, 1.0
    while term > total * _EPS and (k > 0 if down else k < n):
        term *= k / ((n - k + 1) * odds) if down else (n - k) * odds / (k + 1)
        k += -1 if down else 1
        total += term
    return total


def tail_at_most(exceeding: int, total: int, rate: float) -> float:
    """`P(X <= exceeding)` of `total` units at `rate` in (0, 1), rounded up."""
    return _cumulative(exceeding, total, rate, down=True)


def tail_at_least(exceeding: int, total: int, rate: float) -> float:
    """`P(X >= exceeding)` of `total` units at `rate` in (0, 1), rounded up."""
    return _cumulative(exceeding, total, rate, down=False)


def _cumulative(s: int, n: int, p: float, *, down: bool) -> float:
    if (s >= n) if down else (s <= 0):
        return 1.0
    if s < 0 or s > n:
        return 0.0
    margin = 1e-12 + 64.0 * _EPS * (math.lgamma(n + 2) + n * abs(math.log(min(p, 1.0 - p))))
    mode_side = s <= (n + 1) * p - 1 if down else s >= (n + 1) * p
    if mode_side:
        log_tail = _log_term(s, n, p) + math.log(_tail(s, n, p, down))
        return min(1.0, math.exp(log_tail) * (1.0 + margin)) if margin < 1.0 else 1.0
    other = s + 1 if down else s - 1
    rest = math.exp(_log_term(other, n, p)) * _tail(other, n, p, not down)
    return min(1.0, max(0.0, 1.0 - rest * (1.0 - margin)) + margin)


def upper_limit(exceeding: int, total: int, level: float) -> float:
    """Clopper-Pearson upper limit of a rate: smallest rate with `P(X <= exceeding) <= level`, rounded up."""
    return _edge(lambda p: tail_at_most(exceeding, total, p) <= level) if exceeding < total else 1.0


def lower_limit(exceeding: int, total: int, level: float) -> float:
    """Clopper-Pearson lower limit of a rate, rounded down."""
    return 1.0 - _edge(lambda q: tail_at_least(exceeding, total, 1.0 - q) <= level) if exceeding > 0 else 0.0


def mean_upper_limit(record: Wealth, level: float) -> float:
    """Hoeffding's upper limit of the mean of values in [0, 1], rounded up."""
    mean = _mean(record, 1)
    return _edge(lambda m: m > mean and _log_hoeffding(record, m, 1) >= math.log(1.0 / level)) if mean < 1.0 else 1.0


def _edge(holds: Callable[[float], bool]) -> float:
    """Smallest number of (0, 1] from which on a monotone property holds, rounded up."""
    low, high = 0.0, 1.0
    for _ in range(64):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if 0.0 < middle < 1.0 and holds(middle) else (middle, high)
    return high


def _mean(record: Wealth, side: int) -> float:
    """Observed mean with the rounding of its sum on the side of larger (1) or smaller (-1) values."""
    n = max(record.requests, 1)
    return min(1.0, max(0.0, (record.total + side * 0.5 * n) / SCALE / n)) if record.total else 0.0


def _log_hoeffding(record: Wealth, limit: float, side: int) -> float:
    """`n KL(mean, limit)`, minus the log of Hoeffding's bound, where the mean lies beyond the limit; else 0."""
    mean = _mean(record, side)
    if (mean >= limit) if side > 0 else (mean <= limit):
        return 0.0
    near = mean * math.log(mean / limit) if mean else 0.0
    far = (1.0 - mean) * (math.log1p(-mean) - math.log1p(-limit)) if mean < 1.0 else 0.0
    return record.requests * (near + far) * (1.0 - 1e-9)


def _decide(fail: float, certify: float, level: float) -> Outcome:
    """Verdict from minus the logs of the two tails."""
    bound = math.log(1.0 / level)
    if fail >= bound:
        return Outcome("fail", "one look: so many exceedances would be too unlikely if the limit held", fail, certify)
    if certify >= bound:
        return Outcome(
            "pass", "one look: so few exceedances would be too unlikely if the limit did not hold", fail, certify
        )
    return Outcome("inconclusive", "one look: the sample decides for neither side", fail, certify)


def _minus_log(tail: float) -> float:
    return -math.log(tail) if tail > 0.0 else math.inf


def judge_binary(exceeding: int, total: int, limit: float, confidence: float) -> Outcome:
    """Verdict on 'the rate of exceeding units is at most `limit`', in (0, 1), at one look.

    The outcome's two logs are minus the logs of one-sided p-values.
    """
    fail = _minus_log(tail_at_least(exceeding, total, limit))
    return _decide(fail, _minus_log(tail_at_most(exceeding, total, limit)), 1.0 - confidence)


def judge_mean(record: Wealth, limit: float, confidence: float) -> Outcome:
    """Verdict on 'the mean of values in [0, 1] is at most `limit`', in (0, 1), at one look; shares are such values."""
    return _decide(_log_hoeffding(record, limit, -1), _log_hoeffding(record, limit, 1), 1.0 - confidence)


def requests_needed(limit: float, confidence: float = 0.95) -> int:
    """Clean units until pass at one look for a rate or mean `limit` in (0, 1)."""
    guess = math.ceil(math.log(1.0 - confidence) / math.log1p(-limit) * (1.0 + 1e-9))
    clean = (guess, guess + 1, guess + 2)
    return next((n for n in clean if tail_at_most(0, n, limit) <= 1.0 - confidence), guess + 3)
