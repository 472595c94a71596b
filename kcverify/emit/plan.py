"""What a monitor of a contract computes: row statistics, enforced clauses, limits rounded to the safe side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from kcverify.catalog.model import Statistic
from kcverify.elaborate.contract import Clause, Contract, Limit, Threshold
from kcverify.exact import monitor_float_down, monitor_float_up

DEFAULT_MINIMUM_REQUESTS = 59
"""Clean requests before a clause without exception passes: a rate below 5 % at 95 % confidence in one look."""


@dataclass(frozen=True)
class Reading:
    """How the value of a metric is read off a row.

    `statistics` are the row statistics it needs, `expression` the text that reads it (`v` maps statistics to columns),
    `token` the rule that finds the worst token, `bounded` whether it ranges over [0, 1]. `source` other than `rows`
    makes a value a request; `inputs` is what must be given beyond logits.
    """

    statistics: tuple[str, ...]
    expression: str
    token: str = ""
    bounded: bool = False
    source: str = "rows"
    inputs: tuple[str, ...] = ()


_SAMPLED = ("sampled_ids",)
READINGS: Mapping[str, Reading] = {
    "logit_drift": Reading(("logit_drift",), 'v["logit_drift"]', "drift"),
    "logit_span": Reading(("logit_span",), 'v["logit_span"]', "ratio"),
    "tv": Reading(("tv",), 'v["tv"]', "mass", bounded=True),
    "kl(candidate || reference)": Reading(("kl_candidate_reference",), 'v["kl_candidate_reference"]', "mass"),
    "kl(reference || candidate)": Reading(("kl_reference_candidate",), 'v["kl_reference_candidate"]', "mass"),
    "log_ratio": Reading(("log_ratio",), 'v["log_ratio"]', "ratio"),
    "importance_ratio": Reading(("ratio_min", "ratio_max"), 'v["ratio_min"], v["ratio_max"]', "ratio"),
    "chi2": Reading(("chi2",), 'v["chi2"]', "mass"),
    "affinity": Reading(("bc",), 'v["bc"]', "mass", bounded=True),
    "token_log_ratio": Reading(("token_log_ratio",), 'v["token_log_ratio"].abs()', "sampled", inputs=_SAMPLED),
    "sequence_ratio": Reading(("token_log_ratio",), 'v["token_log_ratio"]', source="sequence", inputs=_SAMPLED),
    "geometric_ratio": Reading(("token_log_ratio",), 'v["token_log_ratio"]', source="geometric", inputs=_SAMPLED),
}


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
    if clause.metric.name == "agreement":
        return _agreement(clause, contract)
    reading = READINGS[clause.metric.name]
    try:
        lower, upper = (
            _bound(clause.limit.lower, clause.limit, "lower"),
            _bound(clause.limit.upper, clause.limit, "upper"),
        )
    except _UnevaluableError as fault:
        return _listed(clause, str(fault))
    if clause.statistic is Statistic.MEAN:
        return _mean(PlannedClause(clause, "mean", "", reading, lower, upper))
    evidence, limit = _evidence(clause, contract, clause.exception, reading.source)
    return PlannedClause(clause, evidence, "", reading, lower, upper, limit)


def _listed(clause: Clause, reason: str) -> PlannedClause:
    return PlannedClause(clause, "none", reason)


def _obstacle(clause: Clause, contract: Contract) -> str:
    """Why a clause cannot be enforced, or the empty string."""
    name = clause.metric.name
    if clause.limit.hole:
        return "its limit is a hole that was not filled"
    if name not in READINGS and name != "agreement":
        return "not enforced yet"
    if clause.window is not None:
        return "a window in time: not enforced yet"
    if clause.band is not None and clause.band.parameter != "temperature":
        return f"a band of {clause.band.parameter}, which a monitor does not see"
    if name == "logit_span" and clause.argument("mass") not in (None, Fraction(1)):
        return "a trimmed span: not enforced yet"
    if clause.unit == "token" and not contract.assumptions.independent_tokens:
        return "counts tokens without the assumption of independent tokens"
    if clause.statistic not in (Statistic.MAX, Statistic.MEAN) and name != "agreement":
        return f"the statistic {clause.statistic.value} of {name}: not enforced yet"
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
            raise _UnevaluableError("a strict limit that depends on the temperature: not enforced yet")
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
    """A mean clause: one-sided, without exception, of a value a row; at-least only where the range is [0, 1]."""
    clause, reading = planned.clause, planned.reading
    assert reading is not None
    if clause.exception:
        return _listed(clause, "a mean with an exception has no meaning")
    if (planned.lower is None) == (planned.upper is None):
        return _listed(clause, "a mean inside an interval: not enforced yet")
    if reading.source != "rows" or len(reading.statistics) > 1:
        return _listed(clause, f"the mean of {clause.metric.name}: not enforced yet")
    if planned.lower is not None and not reading.bounded:
        return _listed(clause, "a lower limit of an unbounded mean: not enforced yet")
    return planned


def _agreement(clause: Clause, contract: Contract) -> PlannedClause:
    """Agreement of at least a share of tokens: disagreement is the exceedance, its allowed rate one minus the share."""
    lower = clause.limit.lower
    if lower is None or clause.limit.upper is not None or lower.terms or clause.exception:
        return _listed(clause, "only `agreement >= share` without exception is enforced yet")
    top, ordered = clause.argument("top"), clause.argument("ordered")
    count = int(top) if isinstance(top, Fraction) else 1
    key = (count, ordered == "true" and count > 1)
    column = f"agreement_{count}_ordered" if key[1] else f"agreement_{count}"
    reading = Reading((), f'v["{column}"]')
    evidence, limit = _evidence(clause, contract, max(Fraction(0), 1 - lower.constant), "rows")
    planned = PlannedClause(clause, evidence, "", reading, _bound(lower, clause.limit, "lower"), None, limit)
    return replace(planned, top=key)
