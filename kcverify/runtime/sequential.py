"""Evidence records and the tests, valid under continuous peeking, that turn them into verdicts.

A record is a handful of integers that add up over shards, processes and time; the verdict is a function of the sum.
Sides: `above` gathers evidence that the rate or mean exceeds its limit (fail), `below` that it does not (pass). Each
log e-value is compared with `ln(1/level)`: by Ville, the error over all looks together is at most the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

BETS = 16
GRID = 12
SCALE = 1 << 32
_SHRINK = 0.999


@dataclass(frozen=True)
class Outcome:
    """Verdict (`pass`, `fail`, `inconclusive`), its reason, both log e-values (None where that side does not exist)."""

    verdict: str
    reason: str
    log_e_fail: float | None = None
    log_e_pass: float | None = None


@dataclass
class Wealth:
    """Record of a bounded-mean or share clause over requests: additive, order-free, exact.

    `above` and `below` are log wealths of 16 constant bets in units of 2^-32 (rounded down, so evidence is never
    overstated); `total` is the sum of the requests' values in the same unit; `infinite` counts requests of infinite
    value; `exceeding` those of a value above 0.
    """

    above: list[int] = field(default_factory=lambda: [0] * BETS)
    below: list[int] = field(default_factory=lambda: [0] * BETS)
    requests: int = 0
    exceeding: int = 0
    infinite: int = 0
    total: int = 0

    def add(self, value: float, limit: float, count: int = 1, *, bounded: bool = True) -> None:
        """Add `count` requests of one value (in [0, 1] if `bounded`, else non-negative) for the limit of the mean."""
        self.requests += count
        self.exceeding += count if value > 0.0 else 0
        if value == math.inf:
            self.infinite += count
            return
        self.total += count * round(value * SCALE)
        if limit > 0.0:
            for k, bet in enumerate(bets(limit, "above", bounded=bounded)):
                self.above[k] += count * math.floor(math.log1p(bet * (value - limit)) * SCALE)
        if bounded and limit < 1.0:
            for k, bet in enumerate(bets(limit, "below")):
                self.below[k] += count * math.floor(math.log1p(-bet * (value - limit)) * SCALE)

    def merge(self, other: Wealth) -> None:
        """Add another record of the same clause."""
        self.above = [a + b for a, b in zip(self.above, other.above, strict=True)]
        self.below = [a + b for a, b in zip(self.below, other.below, strict=True)]
        self.requests += other.requests
        self.exceeding += other.exceeding
        self.infinite += other.infinite
        self.total += other.total


def log_sum(values: list[float]) -> float:
    """`ln(sum(exp(v)))`."""
    high = max(values)
    return high if math.isinf(high) else high + math.log(math.fsum(math.exp(v - high) for v in values))


@lru_cache(maxsize=256)
def bets(limit: float, side: str, *, bounded: bool = True) -> tuple[float, ...]:
    """The 16 bets `(top/256)*256^(k/15)`; `top` keeps every wealth positive (0.999/limit or 0.999/(1-limit))."""
    room = limit if side == "above" else 1.0 - limit
    top = _SHRINK / room
    return tuple(top / 256.0 * 256.0 ** (k / (BETS - 1)) for k in range(BETS))


@lru_cache(maxsize=256)
def rate_points(limit: float, side: str) -> tuple[tuple[float, float, float], ...]:
    """`(ln weight, ln(p/limit), ln((1-p)/(1-limit)))` of the alternatives of a rate test."""
    odds, sign = limit / (1.0 - limit), 1.0 if side == "above" else -1.0
    rates = [odds * 2.0 ** (sign * j / 2.0) for j in range(1, GRID + 1)]
    points = [o / (1.0 + o) for o in rates] + ([0.0] if side == "below" else [])
    harmonic = math.fsum(1.0 / j for j in range(1, len(points) + 1))
    return tuple(
        (
            -math.log(j * harmonic),
            math.log(p / limit) if p else -math.inf,
            math.log1p(-p) - math.log1p(-limit),
        )
        for j, p in enumerate(points, 1)
    )


def log_e_rate(exceeding: int, total: int, limit: float, side: str) -> float:
    """Log e-value of `exceeding` out of `total` against 'the rate is at most (`above`) / at least (`below`) `limit`'.

    Mixture of likelihood ratios at odds `odds(limit)*2^(+-j/2)`, j = 1..12, weights proportional to 1/j; `below` has
    the rate 0 as its 13th point. `limit` in (0, 1).
    """
    clean = total - exceeding
    return log_sum(
        [
            weight + (exceeding * up if exceeding else 0.0) + clean * down
            for weight, up, down in rate_points(limit, side)
        ]
    )


def log_e_mean(wealth: list[int]) -> float:
    """Log of the average of the 16 wealths."""
    return log_sum([w / SCALE for w in wealth]) - math.log(BETS)


def log_e_share(record: Wealth, limit: float) -> float:
    """Pass side of a share clause: the average of the mean test and of the rate test on 'any exceeding token'.

    A share is at most the indicator that it is positive, so a rate of such requests below `limit` implies a mean share
    below it; both tests are valid, hence so is their average.
    """
    rate = log_e_rate(record.exceeding, record.requests, limit, "below")
    return log_sum([log_e_mean(record.below), rate]) - math.log(2.0)


def _decide(fail: float | None, certify: float | None, level: float, reason: str = "") -> Outcome:
    bound = math.log(1.0 / level)
    if fail is not None and fail >= bound:
        return Outcome("fail", "the evidence against the limit reached its threshold", fail, certify)
    if certify is not None and certify >= bound:
        return Outcome("pass", "certified: the evidence for the limit reached its threshold", fail, certify)
    return Outcome("inconclusive", reason or "not enough evidence for either side", fail, certify)


def judge_binary(exceeding: int, total: int, limit: float, confidence: float) -> Outcome:
    """Verdict on 'the rate of exceeding units is at most `limit`', `limit` in (0, 1)."""
    fail = log_e_rate(exceeding, total, limit, "above")
    return _decide(fail, log_e_rate(exceeding, total, limit, "below"), 1.0 - confidence)


def judge_share(record: Wealth, limit: float, confidence: float) -> Outcome:
    """Verdict on 'the mean over requests of the share of exceeding tokens is at most `limit`', in (0, 1)."""
    return _decide(log_e_mean(record.above), log_e_share(record, limit), 1.0 - confidence)


def judge_mean(record: Wealth, limit: float, confidence: float, *, bounded: bool) -> Outcome:
    """Verdict on 'the mean over requests is at most `limit`'; without an upper end of the range only fail exists."""
    if record.infinite:
        return Outcome("fail", f"{record.infinite} requests have an infinite value: the mean is infinite", math.inf)
    if limit <= 0.0:
        if record.exceeding:
            return Outcome("fail", "a value above 0 was seen and the limit of the mean is 0", math.inf)
        return Outcome("inconclusive", "a mean of 0 cannot be certified from samples")
    fail = log_e_mean(record.above)
    if bounded:
        if limit >= 1.0:
            return Outcome("pass", "the limit is the end of the metric's range")
        return _decide(fail, log_e_mean(record.below), 1.0 - confidence)
    reason = "the mean of an unbounded metric cannot be certified from samples: one unseen request may decide it"
    return _decide(fail, None, 1.0 - confidence, reason)


def judge_clean(exceeding: int, requests: int, minimum: int, confidence: float) -> Outcome:
    """Verdict of a clause without exception: fail at the first exceedance, pass after `minimum` clean requests."""
    if exceeding:
        return Outcome("fail", "the limit was exceeded and the clause allows no exception")
    if requests < max(minimum, 1):
        return Outcome("inconclusive", f"no exceedance in {requests} requests; {max(minimum, 1)} are needed")
    rate = certified_rate(requests, confidence)
    return Outcome("pass", f"no exceedance in {requests} requests: rate below {rate:.2g}")


def requests_needed(limit: float, confidence: float = 0.95, kind: str = "binary") -> int:
    """Clean requests until pass for a rate `limit` in (0, 1); `kind` is `binary`, `share` or `mean`."""
    bound = math.log(1.0 / (1.0 - confidence))
    high = 1
    while _clean_log_e(high, limit, kind) < bound:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _clean_log_e(middle, limit, kind) >= bound else (middle, high)
    return high


def _clean_log_e(requests: int, limit: float, kind: str) -> float:
    if kind == "binary":
        return log_e_rate(0, requests, limit, "below")
    step = [math.floor(math.log1p(bet * limit) * SCALE) for bet in bets(limit, "below")]
    record = Wealth(below=[requests * s for s in step], requests=requests)
    return log_e_share(record, limit) if kind == "share" else log_e_mean(record.below)


def certified_rate(requests: int, confidence: float) -> float:
    """Smallest rate that `requests` clean requests certify under peeking (rounded up), 1.0 if none."""
    return rate_upper_limit(0, requests, 1.0 - confidence)


def alarm_count(total: int, limit: float, level: float = 0.05) -> int | None:
    """Smallest number of exceeding units out of `total` that fails a rate clause; None if none does.

    By bisection: the evidence grows with the number of exceeding units.
    """
    bound = math.log(1.0 / level)
    return _first(total, lambda s: log_e_rate(s, total, limit, "above") >= bound)


def certificate_count(total: int, limit: float, level: float = 0.05) -> int | None:
    """Largest number of exceeding units out of `total` that passes a rate clause; None if none does."""
    bound = math.log(1.0 / level)
    failing = _first(total, lambda s: log_e_rate(s, total, limit, "below") < bound)
    return total if failing is None else failing - 1 if failing else None


def _first(last: int, holds: Callable[[int], bool]) -> int | None:
    """Smallest number of 0..last for which a monotone property holds."""
    if not holds(last):
        return None
    low, high = -1, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def log_e_mean_at(record: Wealth, limit: float, mean: float) -> float:
    """Log e-value against 'the mean is at least `mean`' from the wealths kept for `limit`; values in [0, 1].

    Under that null `E[1 - l(Y - limit)] <= 1 + l(limit - mean)`, so each wealth over that factor to the power of the
    requests is a supermartingale; at `mean = limit` this is the pass side of the clause. It grows with `mean`.
    """
    return log_sum(
        [
            w / SCALE - record.requests * math.log1p(bet * (limit - mean))
            for w, bet in zip(record.below, bets(limit, "below"), strict=True)
        ]
    ) - math.log(BETS)


def log_e_share_at(record: Wealth, limit: float, share: float) -> float:
    """`log_e_share` against 'the mean share is at least `share`', in (0, 1), from the wealths kept for `limit`."""
    rate = log_e_rate(record.exceeding, record.requests, share, "below")
    return log_sum([log_e_mean_at(record, limit, share), rate]) - math.log(2.0)


def upper_limit(log_e: Callable[[float], float], level: float) -> float:
    """Smallest rate or mean that is rejected as too large at `level`, rounded up; 1.0 if none is.

    `log_e(x)` is the log e-value against 'at least x', growing in x; the limit then holds at all looks together with
    probability `1 - level`. The margin covers the rounding of the sums.
    """
    low, high, bound = 0.0, 1.0, math.log(1.0 / level)
    for _ in range(64):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        value = log_e(middle)
        low, high = (low, middle) if value >= bound + 1e-9 * max(1.0, abs(value)) else (middle, high)
    return high


def rate_upper_limit(exceeding: int, total: int, level: float) -> float:
    """Upper confidence limit of a rate, valid under peeking."""
    return upper_limit(lambda p: log_e_rate(exceeding, total, p, "below"), level)


def share_upper_limit(record: Wealth, limit: float, level: float) -> float:
    """Upper confidence limit of the mean share of exceeding tokens; the record's wealths are those for `limit`."""
    return upper_limit(lambda p: log_e_share_at(record, limit, p), level)


def mean_upper_limit(record: Wealth, limit: float, level: float) -> float:
    """Upper confidence limit of the mean of values in [0, 1]; the record's wealths are those for `limit`."""
    return upper_limit(lambda p: log_e_mean_at(record, limit, p), level)


def fold(values: Mapping[float, int], limit: float, *, bounded: bool = True) -> Wealth:
    """Record of requests given as `value -> how many`."""
    record = Wealth()
    for value, count in values.items():
        record.add(value, limit, count, bounded=bounded)
    return record
