"""Verdicts on one number of all requests: effective sample share, perplexity, calibration, speed, memory, differences.

A reading states what was measured and no more: it is compared with its limit once enough requests were seen, and has
no confidence beyond them. A paired difference is a mean and has a sequential test on either side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kcverify.runtime.calibration import calibration_errors
from kcverify.runtime.clauses import ClauseSpec
from kcverify.runtime.sequential import SCALE, Outcome, Wealth, bets, log_e_mean, log_sum

LARGEST_WEIGHT = float(1 << 20)
"""Weights of responses beyond it count as infinite: such a response outweighs a million others."""


class Reads(Protocol):
    """What a reading is made of."""

    @property
    def clause(self) -> ClauseSpec:
        """The clause."""

    @property
    def record(self) -> Wealth:
        """Sums over its requests."""

    @property
    def second(self) -> Wealth:
        """The second sums, of the sources that keep them."""

    @property
    def table(self) -> Sequence[Sequence[int]]:
        """Bins of a calibration."""

    @property
    def peak(self) -> float | None:
        """Largest value that was observed."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper limit, infinite where there is none."""


def _ess(seen: Reads) -> float | None:
    """`(sum w)^2 / (n sum w^2)`, Kish 1965, from sums in units of 2^-32."""
    record, squares = seen.record, seen.second
    if record.infinite or record.total == 0:
        return 0.0
    return record.total**2 / (record.requests * squares.total * SCALE)


def _perplexity(seen: Reads) -> float | None:
    """exp of the mean of `ln(p/q)` of the given tokens."""
    rows = seen.second.total
    if seen.record.infinite:
        return math.inf
    exponent = -seen.record.total / rows if rows else 0.0
    return math.exp(exponent) if exponent < 709.0 else math.inf


def _calibration(seen: Reads) -> float | None:
    errors = calibration_errors(seen.table)
    return None if errors is None else abs(errors[1] - errors[0])


def _throughput(seen: Reads) -> float | None:
    return seen.record.total / seen.second.total if seen.second.total else None


def _peak(seen: Reads) -> float | None:
    return seen.peak


def _difference(seen: Reads) -> float | None:
    """`|mean of candidate - reference|` from the mean of `(1 + d/width)/2`."""
    width = seen.clause.width or 1.0
    return abs(2.0 * (seen.record.total / seen.record.requests / SCALE) - 1.0) * width


_READERS: Mapping[str, Callable[[Reads], float | None]] = {
    "ess": _ess,
    "perplexity": _perplexity,
    "calibration": _calibration,
    "throughput": _throughput,
    "peak": _peak,
    "paired": _difference,
}


def reading(seen: Reads) -> float | None:
    """The number of a clause of a source in `sources.READ`, in the metric's canonical unit; None without requests."""
    return _READERS[seen.clause.source](seen) if seen.record.requests else None


def judge_reading(seen: Reads) -> Outcome:
    """Verdict on the reading, from the merged sums alone."""
    clause, requests = seen.clause, seen.record.requests
    value = reading(seen)
    if clause.source == "paired":
        return judge_paired(seen)
    if value is None:
        return Outcome("inconclusive", "nothing was measured")
    if seen.record.infinite:
        return Outcome("fail", f"{seen.record.infinite} requests have an infinite ratio")
    low, high = seen.bounds
    held = low <= value <= high
    if clause.source == "peak" and not held:
        return Outcome("fail", "the largest value is beyond the limit")
    if requests < clause.minimum_requests:
        return Outcome("inconclusive", f"the reading of {requests} requests; {clause.minimum_requests} are needed")
    word = "within" if held else "beyond"
    reason = f"the reading of {requests} requests is {word} the limit; it says nothing of others (no confidence)"
    return Outcome("pass" if held else "fail", reason)


def judge_paired(seen: Reads) -> Outcome:
    """Verdict on `|E[candidate - reference]| <= x`, differences in [-width, width], valid under peeking.

    `Y = (1 + d/width)/2` and its mirror image each have mean at most `m = (1 + x/width)/2` under the clause: the average
    of both fail sides is an e-value against it. It passes where both pass sides reach their threshold, so no level is
    split there.
    """
    clause, (record, mirror) = seen.clause, (seen.record, seen.second)
    limit, level = seen.bounds[1], 1.0 - clause.confidence
    if clause.width <= 0.0:
        return Outcome("unobservable", "the range of the reward is not given: assume { reward in [a, b] }")
    if limit >= clause.width:
        return Outcome("pass", "the limit is the end of the metric's range")
    fail = log_sum([log_e_mean(record.above), log_e_mean(mirror.above)]) - math.log(2.0)
    certify = min(log_e_mean(record.below), log_e_mean(mirror.below))
    bound = math.log(1.0 / level)
    if fail >= bound:
        return Outcome("fail", "the evidence against the limit reached its threshold", fail, certify)
    if certify >= bound:
        return Outcome(
            "pass", "certified on both sides: the evidence for the limit reached its threshold", fail, certify
        )
    return Outcome("inconclusive", "not enough evidence for either side", fail, certify)


def paired_null(limit: float, width: float) -> float:
    """The mean `m` of `Y` that a paired clause allows."""
    return 0.5 * (1.0 + limit / width)


def reading_needs(clause: ClauseSpec, limit: float) -> int | None:
    """Requests until a reading decides; for a paired clause pairs without any difference until it passes."""
    if clause.source != "paired":
        return clause.minimum_requests
    if not 0.0 < limit < clause.width:
        return None
    null = paired_null(limit, clause.width)
    steps = [math.log1p(bet * (null - 0.5)) for bet in bets(null, "below")]
    bound, high = math.log(1.0 / (1.0 - clause.confidence)), 1

    def enough(n: int) -> bool:
        return log_e_mean([math.floor(n * step * SCALE) for step in steps]) >= bound

    while not enough(high):
        if high > 1 << 50:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
