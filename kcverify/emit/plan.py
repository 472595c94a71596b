"""What a monitor of a contract computes: row statistics, enforced clauses, limits rounded to the safe side."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from kcverify.catalog.model import Direction, Statistic
from kcverify.elaborate.contract import Clause, Contract, Limit, Threshold
from kcverify.emit.readings import DEFAULT_BINS, READINGS, Reading, reading_of, top_of
from kcverify.exact import monitor_float_down, monitor_float_up

DEFAULT_MINIMUM_REQUESTS = 59
"""Clean requests before a clause without exception passes: a rate below 5 % at 95 % confidence in one look."""


@dataclass(frozen=True)
class PlannedBound:
    """One side of a limit: a double, or exact `constant + slope * temperature`."""

    value: float | None = None
    constant: Fraction = Fraction(0)
    slope: Fraction = Fraction(0)


@dataclass(frozen=True)
class PlannedClause:
    """One clause with everything that the generated text states; `evidence` `none` means not enforced, see `reason`."""

    clause: Clause
    evidence: str
    reason: str = ""
    reading: Reading | None = None
    lower: PlannedBound | None = None
    upper: PlannedBound | None = None
    limit: float | None = None
    top: tuple[int, bool] | None = None
    minimum_requests: int | None = None
    bins: int = 0
    own_bins: bool = False
    width: float = 1.0

    @property
    def enforced(self) -> bool:
        """Whether the monitor measures it."""
        return self.evidence != "none"


@dataclass(frozen=True)
class MonitorPlan:
    """Plan of one monitor: temperature range (doubles), planned clauses in file order, statistics, top-k agreements."""

    temperature: tuple[float, float] | None
    clauses: tuple[PlannedClause, ...]
    statistics: tuple[str, ...]
    top: tuple[tuple[int, bool], ...]
    minimum_requests: int

    @property
    def tv_limit(self) -> float | None:
        """The limit up to which a certificate stands for total variation; None where some clause needs its value.

        A clause `tv <= limit` on each row only compares: a row whose one-sweep bound is within the smallest such limit
        is decided, so that the second sweep is left out.
        """
        limits = []
        for c in self.clauses:
            if c.reading is None or not c.enforced or "tv" not in c.reading.statistics:
                continue
            if c.evidence == "mean" or c.lower is not None or c.upper is None or c.upper.value is None:
                return None
            limits.append(c.upper.value)
        return min(limits, default=None)


def plan(contract: Contract) -> MonitorPlan:
    """Plan the monitor of `contract`: every clause is either enforced or listed with the reason why not."""
    clauses = tuple(_planned(c, contract) for c in contract.clauses)
    enforced = [c for c in clauses if c.enforced]
    statistics = sorted({s for c in enforced if c.reading for s in c.reading.statistics})
    return MonitorPlan(
        _temperature(contract),
        clauses,
        tuple(statistics),
        tuple(sorted({c.top for c in enforced if c.top})),
        _minimum_requests(contract),
    )


def _temperature(contract: Contract) -> tuple[float, float] | None:
    interval = contract.assumptions.temperature
    if interval is None:
        return None
    low = 0.0 if interval.low is None else float(interval.low)
    return low, math.inf if interval.high is None else float(interval.high)


def _minimum_requests(contract: Contract) -> int:
    """What the offline stage promises, else the default."""
    offline = [s.min_requests for s in contract.stages if s.name == "offline" and s.min_requests]
    return offline[0] if offline else DEFAULT_MINIMUM_REQUESTS


def _planned(clause: Clause, contract: Contract) -> PlannedClause:
    reason = _obstacle(clause, contract)
    if reason:
        return _listed(clause, reason)
    reading = reading_of(clause)
    try:
        lower, upper = (
            _bound(clause.limit.lower, clause.limit, "lower"),
            _bound(clause.limit.upper, clause.limit, "upper"),
        )
    except _UnevaluableError as fault:
        return _listed(clause, str(fault))
    planned = PlannedClause(clause, "", "", reading, lower, upper)
    if reading.evidence:
        return _read(planned, contract)
    if clause.statistic is Statistic.RATE:
        return _rate(planned, contract)
    if clause.statistic is Statistic.MEAN:
        return _mean(planned)
    evidence, limit = _evidence(clause, contract, clause.exception, reading.source)
    return replace(planned, evidence=evidence, limit=limit, minimum_requests=_clean(evidence, contract))


def _clean(evidence: str, contract: Contract) -> int | None:
    """The requests that a clause without exception needs."""
    return _minimum_requests(contract) if evidence == "maximum" else None


def _read(planned: PlannedClause, contract: Contract) -> PlannedClause:
    """A reading of all requests, or a mean difference of paired values."""
    clause, reading = planned.clause, planned.reading
    assert reading is not None
    count = clause.argument("count")
    minimum = _minimum_requests(contract) if reading.decides_at is None else reading.decides_at
    return replace(
        planned,
        evidence=reading.evidence,
        minimum_requests=minimum if reading.evidence == "reading" else None,
        bins=(int(count) if isinstance(count, Fraction) else DEFAULT_BINS) if reading.source == "calibration" else 0,
        own_bins=clause.argument("bins") == "own",
        width=_width(contract) if clause.metric.name == "reward_delta" else 1.0,
    )


def _width(contract: Contract) -> float:
    """Length of the assumed range of the reward; 0 where the contract bounds none."""
    reward = contract.assumptions.reward
    if reward is None or reward.low is None or reward.high is None:
        return 0.0
    return monitor_float_up(reward.high - reward.low)


def _listed(clause: Clause, reason: str) -> PlannedClause:
    return PlannedClause(clause, "none", reason)


def _obstacle(clause: Clause, contract: Contract) -> str:
    """Why a clause cannot be enforced, or the empty string."""
    if clause.limit.hole:
        return "its limit is a hole that was not filled"
    if clause.metric.name not in READINGS:
        return f"{clause.metric.name} is no metric of a measured clause"
    if clause.band is not None and clause.band.parameter != "temperature":
        return f"a band of {clause.band.parameter}, which a monitor does not see"
    if clause.unit == "token" and not contract.assumptions.independent_tokens:
        return "counts tokens without the assumption of independent tokens"
    return ""


class _UnevaluableError(Exception):
    """A threshold that generated code cannot evaluate."""


def _bound(threshold: Threshold | None, limit: Limit, side: str) -> PlannedBound | None:
    """The bound of one side: `upper` rounds down, `lower` rounds up; a strict limit moves one double further."""
    if threshold is None:
        return None
    foreign = [name for name, _ in threshold.terms if name != "temperature"]
    if foreign:
        raise _UnevaluableError(f"its limit depends on {', '.join(foreign)}, which a monitor does not see")
    slope = sum((value for _, value in threshold.terms), Fraction(0))
    if slope:
        if limit.strict:
            raise _UnevaluableError("a strict limit that depends on the temperature has no largest double below it")
        return PlannedBound(None, threshold.constant, slope)
    upper = side == "upper"
    value = monitor_float_down(threshold.constant) if upper else monitor_float_up(threshold.constant)
    if limit.strict and Fraction(value) == threshold.constant:
        value = math.nextafter(value, -math.inf if upper else math.inf)
    return PlannedBound(value, threshold.constant)


def _evidence(clause: Clause, contract: Contract, rate: Fraction, source: str) -> tuple[str, float]:
    """Kind of evidence, and the rate that its test compares with, of a clause that allows exceedances at `rate`."""
    if rate == 0:
        return "maximum", 0.0
    counted = clause.unit == "token" and contract.assumptions.independent_tokens
    kind = "binary" if counted or source != "rows" else "share"
    return kind, monitor_float_down(rate)


def _mean(planned: PlannedClause) -> PlannedClause:
    """A mean clause without exception; at-least only where the range is [0, 1].

    Of an interval of an unbounded metric the upper end is tested: samples never refute the lower end, nor certify
    either.
    """
    clause, reading = planned.clause, planned.reading
    assert reading is not None
    if clause.exception:
        return _listed(clause, "a mean with an exception has no meaning")
    if planned.upper is None and not reading.bounded:
        return _listed(clause, "a lower limit of the mean of an unbounded metric: no sample refutes it")
    if planned.lower is not None and planned.upper is not None and reading.bounded:
        return _listed(clause, "a mean inside an interval: write one clause for each end")
    if len(reading.statistics) > 1:
        reading = replace(reading, statistics=reading.statistics[1:], expression=reading.expression.split(", ")[1])
    return replace(planned, evidence="mean", reading=reading)


def _rate(planned: PlannedClause, contract: Contract) -> PlannedClause:
    """A share of tokens or requests: what is allowed to exceed is the share, or one minus a share that is a floor."""
    clause, reading = planned.clause, planned.reading
    assert reading is not None
    lower, upper = clause.limit.lower, clause.limit.upper
    ends = [end for end in (lower, upper) if end is not None]
    if clause.metric.statistic is not Statistic.RATE:
        return _listed(clause, f"{clause.metric.name} is no rate")
    if clause.exception:
        return _listed(clause, "a rate with an exception has no meaning")
    if len(ends) != 1 or ends[0].terms:
        return _listed(clause, "a rate has one limit, and it is a number")
    if (lower is not None) != (clause.metric.direction is Direction.AT_LEAST):
        return _listed(clause, f"a rate of {clause.metric.name} is limited by {clause.metric.direction.value} only")
    share = ends[0].constant if lower is None else 1 - ends[0].constant
    evidence, limit = _evidence(clause, contract, max(Fraction(0), share), reading.source)
    top = top_of(clause) if clause.metric.name == "agreement" else None
    return replace(planned, evidence=evidence, limit=limit, top=top, minimum_requests=_clean(evidence, contract))
