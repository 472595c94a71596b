"""What two rows that were rounded and clipped in a file say about the rows that the engine had: intervals, never points.

A stored entry `a` with error `e` stands for a log-probability in `[a - e, a + e]`; one at or below the row's floor `f`
for any number up to `f + e`, minus infinity included. Every interval below contains the value of the engine's own rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcverify.readers.stream import Flags, Floats

_SLACK = 1e-12
"""Rounding of sums of at most 2^20 terms of at most 1 in float64, with pairwise summation, with room."""

Interval = tuple[Floats, Floats]


@dataclass(frozen=True)
class Stored:
    """Rows of log-probabilities as a file holds them: `values` float64 `[T, V]`, `error` and `floor` float64 `[T]`."""

    values: Floats
    error: Floats
    floor: Floats

    @property
    def clipped(self) -> Flags:
        """Bool `[T, V]`: entries that are known from above only."""
        return np.asarray(self.values <= self.floor[:, None])

    @property
    def highest(self) -> Floats:
        """The largest log-probability that an entry may stand for, at most 0, `[T, V]`."""
        return np.minimum(np.where(self.clipped, self.floor[:, None], self.values) + self.error[:, None], 0.0)

    @property
    def smallest(self) -> Floats:
        """The smallest log-probability that an entry may stand for, `[T, V]`."""
        return np.where(self.clipped, -np.inf, self.values - self.error[:, None])


def tv_interval(reference: Stored, candidate: Stored) -> Interval:
    """Total variation of each row, `[T]`: `Σ(p - q)₊` with every difference at its smallest, `1 - Σ min(p, q)` likewise."""
    p, q = (_probabilities(side) for side in (reference, candidate))
    one = np.sum(np.maximum(p[0] - q[1], 0.0), axis=1)
    two = np.sum(np.maximum(q[0] - p[1], 0.0), axis=1)
    upper = 1.0 - np.sum(np.minimum(p[0], q[0]), axis=1)
    unknown = ~(np.isfinite(reference.error) & np.isfinite(candidate.error))
    low = np.clip(np.maximum(one, two) - _SLACK, 0.0, 1.0)
    high = np.clip(upper + _SLACK, 0.0, 1.0)
    return np.where(unknown, 0.0, low), np.where(unknown, 1.0, high)


def _probabilities(side: Stored) -> Interval:
    return np.exp(side.smallest), np.exp(side.highest)


def kl_interval(reference: Stored, candidate: Stored) -> Interval:
    """KL(reference || candidate) of each row in nats, `[T]`; the upper end is infinite where the candidate was clipped.

    Each term is `g(x) = x (ln x - L)` with `x` the reference's probability and `L` the candidate's log-probability, at
    its largest for the lower end: convex in `x`, smallest at `e^(L - 1)` or at an end. Terms that are not known on
    both sides are bounded by the log-sum inequality too, `P ln(P / Q)` of their masses; the larger lower end counts.
    """
    low, high = _probabilities(reference)
    at_most, at_least = candidate.highest, candidate.smallest
    terms = _term(np.clip(np.exp(at_most - 1.0), low, high), at_most)
    known = ~(reference.clipped | candidate.clipped)
    least = np.sum(np.where(known, terms, 0.0), axis=1)
    rest = np.sum(np.where(known, 0.0, terms), axis=1)
    lower = np.maximum(least + np.maximum(rest, _masses(low, high, np.exp(at_least), known)), 0.0)
    with np.errstate(invalid="ignore"):
        ends = np.maximum(_term(low, at_least), _term(high, at_least))
    upper = np.sum(ends, axis=1)
    unknown = ~(np.isfinite(reference.error) & np.isfinite(candidate.error))
    slack = _SLACK * (1 + np.abs(least))
    return np.where(unknown, 0.0, np.maximum(lower - slack, 0.0)), np.where(unknown, np.inf, upper + slack)


def _term(x: Floats, exponent: Floats) -> Floats:
    """`x (ln x - L)`, 0 at x = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x > 0, x * (np.log(x) - exponent), 0.0)


def _masses(low: Floats, high: Floats, other: Floats, known: Flags) -> Floats:
    """`P ln(P / Q)` at its smallest, for the masses P and Q of the entries that are not known on both sides, `[T]`."""
    least = np.clip(1.0 - np.sum(np.where(known, high, 0.0), axis=1) - _SLACK, 0.0, 1.0)
    most = np.clip(1.0 - np.sum(np.where(known, low, 0.0), axis=1) + _SLACK, 0.0, 1.0)
    rest = np.clip(1.0 - np.sum(np.where(known, other, 0.0), axis=1) + _SLACK, _SLACK, 1.0)
    return _term(np.clip(rest / np.e, least, most), np.log(rest))
