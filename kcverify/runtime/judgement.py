"""From the merged record of a cell (a clause on a slice) to its verdict: which test, at which look, over how many slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kcverify.runtime import fixed_sample
from kcverify.runtime.clauses import Cell, ClauseSpec
from kcverify.runtime.many import Judged, judge_slices
from kcverify.runtime.observations import one_window
from kcverify.runtime.readings import judge_reading, reading_needs
from kcverify.runtime.sequential import (
    Outcome,
    Wealth,
    judge_binary,
    judge_clean,
    judge_mean,
    judge_share,
    mean_upper_limit,
    rate_upper_limit,
    requests_needed,
    share_upper_limit,
)
from kcverify.runtime.sources import OBSERVABLES, OBSERVED, READ

SMALLEST_RATE = 1e-12


@dataclass(frozen=True)
class Seen:
    """What was measured of one cell: its record, and the counts of rows of its slice.

    `rows`, `invalid`, `unknown` (membership not given), `missing` (inputs not given), `exceeding` rows; `limit` is the
    number that the clause's test compares with. Of observed metrics the counts are of observations. `second`, `table`
    (bins), `peak` and `bounds` are what `readings` reads, `observed` what `observations` counted.
    """

    clause: ClauseSpec
    cell: Cell
    record: Wealth
    limit: float
    rows: int
    invalid: int
    unknown: int
    missing: int
    exceeding: int
    bounds: tuple[float, float] = (-math.inf, math.inf)
    second: Wealth = field(default_factory=Wealth)
    table: Sequence[Sequence[int]] = ()
    peak: float | None = None
    observed: Sequence[int] = (0,) * 7

    @property
    def counted(self) -> tuple[int, int]:
        """Exceeding units and all units of a rate clause: tokens for `unit token`, else requests."""
        tokens = self.clause.unit == "token"
        return (self.exceeding, self.rows) if tokens else (self.record.exceeding, self.record.requests)


def judge_clause(cells: Sequence[Seen], *, one_look: bool = False) -> list[Judged]:
    """Verdicts of one clause on all of its slices: each slice's test, the rule over the slices, then what inputs say."""
    clause = cells[0].clause
    tests = [tested(seen, one_look=one_look) for seen in cells]
    judged = judge_slices(tests, clause.confidence, clause.severity, one_look=one_look)
    return [replace(j, outcome=stated(seen, j.outcome)) for seen, j in zip(cells, judged, strict=True)]


def tested(seen: Seen, *, one_look: bool = False) -> Outcome:
    """The test of the clause's kind of evidence on the merged record, as if the slice were alone."""
    clause, record, limit = seen.clause, seen.record, seen.limit
    if clause.source in READ:
        return judge_reading(seen)
    if clause.evidence == "mean":
        if one_look and clause.bounded and 0.0 < limit < 1.0:
            return fixed_sample.judge_mean(record, limit, clause.confidence)
        return judge_mean(record, limit, clause.confidence, bounded=clause.bounded)
    if limit >= 1.0:
        return Outcome("pass", "the clause allows every unit to exceed its limit")
    if clause.evidence == "maximum" or limit <= 0.0:
        bad = seen.exceeding if clause.source == "rows" else record.exceeding
        return judge_clean(bad, record.requests, clause.minimum_requests, clause.confidence)
    if clause.evidence == "share":
        judge = fixed_sample.judge_mean if one_look else judge_share
        return judge(record, limit, clause.confidence)
    binary = fixed_sample.judge_binary if one_look else judge_binary
    return binary(*seen.counted, limit, clause.confidence)


def stated(seen: Seen, outcome: Outcome) -> Outcome:
    """The test's outcome unless the inputs say otherwise: invalid rows fail closed, missing inputs never pass."""
    clause = seen.clause
    if clause.source in OBSERVED:
        return _windowed(seen, _stated_observations(seen, outcome))
    if seen.invalid:
        return Outcome(
            "fail", f"{seen.invalid} of {seen.rows} rows are invalid (NaN, +inf, or a side without any token)"
        )
    if outcome.verdict == "fail":
        return outcome
    if seen.unknown:
        reason = f"the mask of slice {seen.cell.slice} was not given for {seen.unknown} rows"
        return Outcome("unobservable", reason)
    if seen.missing:
        return Outcome("unobservable", f"{' and '.join(clause.inputs)} not given for {seen.missing} rows")
    if seen.rows == 0:
        return Outcome("inconclusive", "no rows were measured")
    if outcome.verdict == "pass" and clause.unit == "token":
        reason = outcome.reason + ", assuming independent tokens"
        outcome = replace(outcome, reason=reason)
    return _windowed(seen, outcome)


def _stated_observations(seen: Seen, outcome: Outcome) -> Outcome:
    """The same for an observed metric: values that are not finite fail, what was not given is named."""
    clause, what = seen.clause, OBSERVABLES[seen.clause.metric].missing
    if seen.invalid:
        beyond = " or beyond the assumed range" if clause.source == "paired" else ""
        return Outcome("fail", f"{seen.invalid} of {seen.rows} values are not finite{beyond}")
    if outcome.verdict == "fail":
        return outcome
    if seen.unknown:
        return Outcome(
            "unobservable", f"membership of slice {seen.cell.slice} was not given for {seen.unknown} requests"
        )
    if seen.missing:
        return Outcome("unobservable", f"{what} was not given for {seen.missing} of {seen.rows} requests")
    if not seen.rows:
        return Outcome("unobservable", f"{what} was not given")
    return outcome


def _windowed(seen: Seen, outcome: Outcome) -> Outcome:
    """A clause about a window in time passes only where all that was seen is of one: evidence of several is a blend.

    It fails like any other: were every window within the limit, all of them together would be.
    """
    window = seen.clause.window
    if window is None or outcome.verdict != "pass":
        return outcome
    if one_window(seen.observed):
        return replace(outcome, reason=f"{outcome.reason}, in one window of {window:g} s")
    counted, call = seen.observed[0], "observe" if seen.clause.source in OBSERVED else "update"
    if seen.observed[4] == counted:
        reason = f"requests are of several windows of {window:g} s: report and reset at the end of each"
        return replace(outcome, verdict="inconclusive", reason=reason)
    reason = f"the time of each request was not given: give `times` to `{call}`"
    return replace(outcome, verdict="unobservable", reason=reason)


def at_most(seen: Seen, level: float, *, one_look: bool = False) -> float | None:
    """Upper confidence limit of what the clause tests (rate, mean share or mean of values in [0, 1]), rounded up.

    Valid at all looks together (or at the one look) with probability `1 - level`. None where nothing was measured,
    where inputs were missing, and for a mean without an upper end.
    """
    clause, record = seen.clause, seen.record
    incomplete = seen.unknown or seen.missing or not record.requests
    if clause.source in READ or incomplete or (clause.evidence == "mean" and (not clause.bounded or record.infinite)):
        return None
    if clause.evidence == "binary":
        limit = fixed_sample.upper_limit if one_look else rate_upper_limit
        return limit(*seen.counted, level)
    if one_look:
        return fixed_sample.mean_upper_limit(record, level)
    if seen.limit >= 1.0:
        return rate_upper_limit(record.exceeding, record.requests, level)
    upper = mean_upper_limit if clause.evidence == "mean" else share_upper_limit
    return upper(record, max(seen.limit, 0.0), level)


def needed(clause: ClauseSpec, limit: float, *, one_look: bool = False) -> int | None:
    """Clean requests (tokens for `unit token`) until pass; None where no number of them is enough or any is."""
    if clause.source in READ:
        return reading_needs(clause, limit)
    if clause.evidence == "maximum" or (clause.evidence != "mean" and limit <= 0.0):
        return clause.minimum_requests
    if not SMALLEST_RATE <= limit < 1.0 or not clause.bounded:
        return None
    if one_look:
        return fixed_sample.requests_needed(limit, clause.confidence)
    return requests_needed(limit, clause.confidence, clause.evidence)


def p_value(log_e: float | None) -> float | None:
    """The one-look p-value of a side, from minus its log."""
    return None if log_e is None else math.exp(-log_e)
