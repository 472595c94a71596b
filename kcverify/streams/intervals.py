"""Means with confidence intervals whose unit is the request, and quantiles of values too many to keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from kcverify.streams.adding import Largest, part

CONFIDENCE = 0.95
"""Of the intervals that are printed."""

DECISIVE = 0.999
"""Of the intervals by which an identity check speaks."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval; `unit` is what was counted as independent, `n` how many."""

    value: float
    lower: float
    upper: float
    unit: str
    n: int

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside."""
        return not self.lower <= value <= self.upper


def student(confidence: float, degrees: int) -> float:
    """Two-sided Student quantile; infinite without degrees of freedom. G. W. Hill, CACM Algorithm 396 (1970)."""
    if degrees < 1:
        return math.inf
    tail = 1.0 - confidence
    if degrees == 1:
        return 1.0 / math.tan(tail * math.pi / 2)
    if degrees == 2:
        return math.sqrt(2.0 / (tail * (2.0 - tail)) - 2.0)
    n = float(degrees)
    a = 1.0 / (n - 0.5)
    b = (48.0 / a) / a
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2) * n
    x = d * tail
    y = x ** (2.0 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tail / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0
        ) * (n + 1.0) / (n + 2.0) + 1.0 / y  # fmt: skip
    return math.sqrt(n * y)


def ratio(
    sums: npt.ArrayLike, counts: npt.ArrayLike, confidence: float = CONFIDENCE, unit: str = "request"
) -> Interval:
    """`sum(sums) / sum(counts)` over independent units, with the linearised variance of a ratio (Cochran, ch. 6).

    The interval is infinite with one unit, and NaN without any. The order of the units changes nothing.
    """
    s, c = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    n, total = len(s), math.fsum(c)
    if n == 0 or total <= 0:
        return Interval(math.nan, math.nan, math.nan, unit, n)
    mean = math.fsum(s) / total
    if not math.isfinite(mean) or n < 2:
        return Interval(mean, -math.inf, math.inf, unit, n)
    spread = math.fsum((s - mean * c) ** 2)
    half = student(confidence, n - 1) * math.sqrt(n / (n - 1) * spread) / total
    return Interval(mean, mean - half, mean + half, unit, n)


def mean_of(sums: Sequence[float], counts: Sequence[float], squares: Sequence[float], confidence: float) -> Interval:
    """`ratio` over requests where there are five or more; else a Student interval with rows as the unit."""
    n = math.fsum(counts)
    if len(counts) >= 5 or n < 2:
        return ratio(sums, counts, confidence)
    mean = math.fsum(sums) / n
    spread = max(0.0, math.fsum(squares) - n * mean * mean) / (n - 1)
    half = student(confidence, int(n) - 1) * math.sqrt(spread / n)
    return Interval(mean, mean - half, mean + half, "row", int(n))


@part
class Histogram:
    """Counts of non-negative values on a logarithmic grid: quantiles to 2.4 %, in memory that does not grow."""

    per_decade = 100
    low, decades = -9, 12

    def __init__(self) -> None:
        self.counts = np.zeros(self.per_decade * self.decades + 2, dtype=np.int64)
        self.largest = Largest(0.0)

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Count finite values >= 0."""
        if not len(values):
            return
        with np.errstate(divide="ignore"):
            place = np.floor((np.log10(values) - self.low) * self.per_decade) + 1
        place = np.clip(np.nan_to_num(place, neginf=0.0), 0, len(self.counts) - 1).astype(np.int64)
        self.counts += np.bincount(place, minlength=len(self.counts))
        self.largest.add(float(values.max()))

    def merge(self, other: Histogram) -> None:
        """Add the counts of another."""
        self.counts += other.counts
        self.largest.merge(other.largest)

    def quantile(self, share: float) -> float | None:
        """The smallest grid value that at least `share` of the values do not exceed; None without values."""
        total = int(self.counts.sum())
        if not total:
            return None
        place = int(np.searchsorted(np.cumsum(self.counts), math.ceil(share * total)))
        edge = 0.0 if place == 0 else 10.0 ** (place / self.per_decade + self.low)
        return float(min(edge, self.largest.value))


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return float(np.median(np.asarray(values))) if len(values) else math.nan
