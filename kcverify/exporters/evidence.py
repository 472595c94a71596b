"""The tests of a clause as expressions of PromQL over the counters: the same functions as in `runtime.sequential`.

Evidence is the e-value itself, a sum of positive terms, so that an overflow means a decision and never a wrong one. For a
given number of units each term grows with the exceedances; hence a clause fails from one number of exceedances on, the
integer table `runtime.sequential.alarm_count`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kcverify.catalog.model import Statistic
from kcverify.delivery.records import tested_limit
from kcverify.elaborate.contract import Contract
from kcverify.emit.plan import PlannedClause, plan
from kcverify.exporters.names import LOG_WEALTH
from kcverify.exporters.text import promql, promql_choice
from kcverify.runtime.many import rule_of
from kcverify.runtime.sequential import BETS, rate_points

EXCEEDING, CLEAN, SEEN = "kcverify:exceedances:sum", "kcverify:clean:sum", "kcverify:observations:sum"
INVALID, MISSING = "kcverify:invalid:sum", "kcverify:missing:sum"
AGAINST, FOR = "kcverify:evidence_against:value", "kcverify:evidence_for:value"
FAILS, VERDICT = "kcverify:fails:bool", "kcverify:verdict:sign"

_BY = "contract, clause, slice"
_HUGE = 1e300
"""Stands for minus infinity as a factor of a count: the exponential is 0 from 1 on, and there is no infinity times 0."""


@dataclass(frozen=True)
class Measured:
    """One clause whose verdict the counters give.

    `against` and `for_` are expressions of the e-values (None: that side decides nothing), `threshold` what either must
    reach. A clause without exception fails at the first exceedance and passes after `minimum` clean requests.
    """

    planned: PlannedClause
    kind: str
    limit: float
    threshold: float
    against: str | None
    for_: str | None
    minimum: int | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """The clause's name."""
        return self.planned.clause.name

    @property
    def allowed(self) -> Fraction:
        """The exact rate of units that may exceed, of a clause that counts them."""
        clause = self.planned.clause
        if clause.statistic is not Statistic.RATE:
            return clause.exception
        lower, upper = clause.limit.lower, clause.limit.upper
        return upper.constant if upper is not None else 1 - lower.constant if lower is not None else Fraction(0)

    @property
    def slices(self) -> tuple[str, ...]:
        """Values of the label `slice`; one empty text for a clause about all traffic."""
        return self.planned.clause.slices or ("",)


def selector(contract: str, clause: str | None = None, slices: Sequence[str] = (), **labels: str) -> str:
    """Label matchers in braces."""
    parts = [f"contract={promql(contract)}"]
    if clause is not None:
        parts.append(f"clause={promql(clause)}")
    if len(slices) == 1:
        parts.append(f"slice={promql(slices[0])}")
    elif slices:
        parts.append(f"slice=~{promql_choice(slices)}")
    parts += [f"{name}={promql(value)}" for name, value in labels.items()]
    return "{" + ", ".join(parts) + "}"


def measured(contract: Contract) -> tuple[list[Measured], dict[str, str]]:
    """The clauses that counters decide, and of each other one why they do not."""
    found: list[Measured] = []
    silent: dict[str, str] = {}
    for planned in plan(contract).clauses:
        one = _measured(contract, planned)
        if isinstance(one, Measured):
            found.append(one)
        else:
            silent[planned.clause.name] = one
    return found, silent


def _measured(contract: Contract, planned: PlannedClause) -> Measured | str:
    clause = planned.clause
    if not planned.enforced:
        return planned.reason
    if planned.evidence in ("reading", "paired"):
        return f"{clause.metric.name} is read from all requests at once, and no counter adds up to it"
    limit = tested_limit(planned, None)
    threshold = 1.0 / (1.0 - float(clause.confidence))
    series = selector(contract.name, clause.name, clause.slices or ("",))
    if planned.evidence == "mean":
        return _mean(planned, limit, threshold, series)
    assert limit is not None
    if limit >= 1.0:
        return "it allows every unit to exceed its limit"
    if planned.evidence == "maximum" or limit <= 0.0:
        return Measured(planned, "clean", 0.0, threshold, None, None, planned.minimum_requests or 1, _window(planned))
    rate = _rate(limit, "below", series)
    if planned.evidence == "share":
        below = f"(\n  {_wealth(series, 'below')}\n+\n{rate}\n) / 2"
        return Measured(
            planned, "share", limit, threshold, _wealth(series, "above"), _unless_windowed(planned, below),
            note=_window(planned),
        )  # fmt: skip
    note = "it rests on the assumption of independent tokens" if clause.unit == "token" else ""
    return Measured(
        planned, "binary", limit, threshold, _rate(limit, "above", series), _unless_windowed(planned, rate),
        note="; ".join(filter(None, (note, _window(planned)))),
    )  # fmt: skip


def _mean(planned: PlannedClause, limit: float | None, threshold: float, series: str) -> Measured | str:
    reading = planned.reading
    assert reading is not None
    if limit is not None and reading.bounded and limit >= 1.0:
        return "its limit is the end of the metric's range"
    if limit is not None and limit <= 0.0:
        note = "a mean of 0 cannot be certified from samples"
        return Measured(planned, "clean", 0.0, threshold, None, None, None, note)
    below = _unless_windowed(planned, _wealth(series, "below")) if reading.bounded else None
    note = "" if reading.bounded else "the mean of an unbounded metric cannot be certified from samples"
    note = "; ".join(filter(None, (note, _window(planned))))
    return Measured(planned, "mean", limit or 0.0, threshold, _wealth(series, "above"), below, note=note)


def _unless_windowed(planned: PlannedClause, expression: str) -> str | None:
    return None if planned.clause.window is not None else expression


def _window(planned: PlannedClause) -> str:
    if planned.clause.window is None:
        return ""
    return "it is about a window in time, and a counter does not keep which requests are of one: it fails, and never passes"


def _rate(limit: float, side: str, series: str) -> str:
    """The mixture of `log_e_rate`, one alternative a line."""
    lines = []
    for weight, up, down in rate_points(limit, side):
        factor = repr(-_HUGE if math.isinf(up) else up)
        share, clean = repr(math.exp(weight)), f"{down!r} * {CLEAN}{series}"
        lines.append(f"{share} * exp({factor} * {EXCEEDING}{series} + {clean})")
    return "  " + "\n+ ".join(lines)


def _wealth(series: str, side: str) -> str:
    """The average wealth of `log_e_mean`: logarithms add over processes first."""
    inner = f"sum by ({_BY}, bet) ({LOG_WEALTH}{series[:-1]}, side={promql(side)}}})"
    return f"sum by ({_BY}) (exp({inner})) / {BETS}"


def fails(one: Measured, contract: str) -> str:
    """1 where the clause fails on the slice, else 0: the rule over the slices, and values that are not finite."""
    series = selector(contract, one.name, one.slices)
    invalid = f"({INVALID}{series} > bool 0)"
    if one.against is None:
        return f"clamp_max(({EXCEEDING}{series} > bool 0) + {invalid}, 1)"
    value = AGAINST + series
    count = len(one.slices)
    rule = rule_of(count, one.planned.clause.severity)
    if not rule.startswith("e-BH"):
        return f"clamp_max(({value} >= bool {one.threshold * count!r}) + {invalid} or {invalid}, 1)"
    steps = []
    for k in range(1, count + 1):
        enough = f"({value} >= bool {one.threshold * count / k!r})"
        steps.append(f"{enough} * on (contract, clause) group_left () (sum by (contract, clause) {enough} >= bool {k})")
    return "clamp_max(\n  " + "\n+ ".join([*steps, invalid]) + f"\nor {invalid},\n1)"


def verdict(one: Measured, contract: str) -> str:
    """1 pass, 0 inconclusive, -1 fail; a unit whose inputs were not given keeps the clause from passing."""
    series = selector(contract, one.name, one.slices)
    bad, complete = FAILS + series, f"({MISSING}{series} == bool 0)"
    if one.kind == "clean" and one.minimum is not None and one.planned.clause.window is None:
        enough = f"({SEEN}{series} >= bool {one.minimum})"
    elif one.for_ is not None:
        enough = f"({FOR}{series} >= bool {one.threshold!r})"
    else:
        return f"0 - {bad}"
    return f"{enough} * {complete} * (1 - {bad}) - {bad}"
