"""Is drift concentrated on a slice? A ratio of means with an interval over requests, and an answer only where it decides."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap, t

FEWEST = 20
"""Requests with rows inside, and with rows outside, below which nothing is said."""

RESAMPLES = 4999
METHOD = (
    "the wider end each of two intervals over requests, whole ones with all of their rows: the bias-corrected and accelerated bootstrap "
    "(scipy.stats.bootstrap, 4,999 resamples), and Student's t on the logarithm, by linearisation; the coverage of both is asymptotic, "
    "and near the stated one from about 40 requests on (a test simulates it)"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """Of each request: drift and rows inside the slice, drift and rows outside. All of shape `[requests]`."""

    inside: Floats
    rows_inside: Floats
    outside: Floats
    rows_outside: Floats


@dataclass(frozen=True)
class Answer:
    """The ratio of the mean on the slice to that of the rest, its interval, and `yes`, `no` or `cannot tell` with the reason."""

    ratio: float | None
    lower: float | None
    upper: float | None
    requests_inside: int
    requests_outside: int
    answer: str
    reason: str


def _interval(
    samples: tuple[NDArray[np.int64], ...], statistic: Callable[..., Floats], level: float, seed: int
) -> tuple[float, float] | None:
    """Ends of the interval; None where the resamples do not vary or have no value."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = bootstrap(
            samples, statistic, n_resamples=RESAMPLES, batch=500, vectorized=True, confidence_level=level, method="BCa",
            rng=np.random.default_rng(seed),
        )  # fmt: skip
    low, high = float(found.confidence_interval.low), float(found.confidence_interval.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _on_logarithm(value: float, influence: Floats, least: int, level: float) -> tuple[float, float]:
    """Student's t about the logarithm of a positive figure, of which each request moves `influence` (they sum to zero).

    `least` is the number of requests on the smaller side: few of them are a small sample, whatever lies on the other side.
    """
    spread = math.sqrt(float((influence**2).sum()) * least / (least - 1))
    reach = math.exp(min(float(t.ppf((1 + level) / 2, least - 1)) * spread, 700.0))
    return value / reach, value * reach


def _wider(a: tuple[float, float] | None, b: tuple[float, float]) -> tuple[float, float] | None:
    """The wider end each; None where the resamples gave nothing."""
    return None if a is None else (min(a[0], b[0]), max(a[1], b[1]))


def mean_interval(total: Floats, rows: Floats, level: float, seed: int) -> tuple[float, float] | None:
    """Interval of the mean over rows, `total` and `rows` by request. None for one request or values that are not finite."""
    if len(total) < 2 or not np.isfinite(total).all():
        return None
    if np.ptp(total / rows) == 0:
        return None
    everyone = np.arange(len(total))

    def mean(picked: NDArray[np.int64], axis: int = -1) -> Floats:
        found: Floats = total[picked].sum(axis) / rows[picked].sum(axis)
        return found

    whole, count = total.sum(), rows.sum()
    by_t = _on_logarithm(float(whole / count), total / whole - rows / count, len(total), level)
    return _wider(_interval((everyone,), mean, level, seed), by_t)


def ratio_of(sums: Sums) -> float | None:
    """Mean inside over mean outside; None where one of them has no rows, or the rest does not drift at all."""
    n, m = sums.rows_inside.sum(), sums.rows_outside.sum()
    if not n or not m or not sums.outside.sum():
        return None
    with np.errstate(invalid="ignore"):
        found = float((sums.inside.sum() / n) / (sums.outside.sum() / m))
    return None if math.isnan(found) else found


def ask(sums: Sums, factor: float, level: float, seed: int) -> Answer:
    """Whether the mean drift on the slice is more than `factor` times that of the rest; the interval has confidence `level`."""
    inside, outside = int((sums.rows_inside > 0).sum()), int((sums.rows_outside > 0).sum())
    ratio = ratio_of(sums)

    def open_(reason: str) -> Answer:
        return Answer(ratio, None, None, inside, outside, "cannot tell", reason)

    if not inside:
        return open_("the slice is empty in this data")
    if not outside:
        return open_("the slice is all of this data")
    if not np.isfinite(sums.inside.sum() + sums.outside.sum()):
        return open_("rows without a value make the mean infinite")
    if sums.inside.sum() + sums.outside.sum() == 0:
        return Answer(None, None, None, inside, outside, "no", "no row drifts at all")
    if ratio is None:
        return open_("nothing drifts outside the slice, so there is no ratio")
    if min(inside, outside) < FEWEST:
        return open_(f"{min(inside, outside)} requests on one side, {FEWEST} are needed on each")
    ends = _ratio_interval(sums, level, seed) if ratio else None
    if ends is None:
        return open_("the resampled ratios do not vary or have no value")
    low, high = ends
    word = "yes" if low > factor else "no" if high < factor else "cannot tell"
    reason = f"the interval contains {factor:g}" if word == "cannot tell" else ""
    return Answer(ratio, low, high, inside, outside, word, reason)


def _ratio_interval(sums: Sums, level: float, seed: int) -> tuple[float, float] | None:
    """Requests that lie wholly inside or outside are resampled apart, so that no resample lacks one of them."""
    a, n, b, m = sums.inside, sums.rows_inside, sums.outside, sums.rows_outside
    influence = a / a.sum() - n / n.sum() - b / b.sum() + m / m.sum()
    ratio = float((a.sum() / n.sum()) / (b.sum() / m.sum()))
    by_t = _on_logarithm(ratio, influence, int(min((n > 0).sum(), (m > 0).sum())), level)
    if not ((n > 0) & (m > 0)).any():

        def apart(i: NDArray[np.int64], j: NDArray[np.int64], axis: int = -1) -> Floats:
            found: Floats = (a[i].sum(axis) / n[i].sum(axis)) / (b[j].sum(axis) / m[j].sum(axis))
            return found

        return _wider(_interval((np.flatnonzero(n), np.flatnonzero(m)), apart, level, seed), by_t)

    def together(i: NDArray[np.int64], axis: int = -1) -> Floats:
        found: Floats = (a[i].sum(axis) / n[i].sum(axis)) / (b[i].sum(axis) / m[i].sum(axis))
        return found

    return _wider(_interval((np.arange(len(a)),), together, level, seed), by_t)
