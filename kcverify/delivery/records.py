"""Evidence of one clause on one slice as integers that add up, and the verdict of their sum.

The tests are those of `runtime.sequential`; what is counted is what a monitor counts of a cell. Readings of all
requests at once (calibration, effective sample share, throughput and the like) are not among them: they are read from a
monitor's state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from kcverify.diagnostics import input_error
from kcverify.emit.plan import PlannedBound, PlannedClause
from kcverify.exact import monitor_float_down, monitor_float_up
from kcverify.runtime.sequential import Outcome, Wealth, judge_binary, judge_clean, judge_mean, judge_share

COUNTS = ("rows", "invalid", "unknown", "missing", "exceeding")
KINDS = ("binary", "share", "mean", "maximum")
_SUMS = ("requests", "exceeding", "infinite", "total")


@dataclass(frozen=True)
class Record:
    """`limit` is the number that the wealths were computed for; the counts of rows are those of the cell's slice.

    `rows` seen, `invalid` ones, `unknown` (membership not given), `missing` (inputs not given), `exceeding` ones.
    """

    limit: float
    wealth: Wealth = field(default_factory=Wealth)
    rows: int = 0
    invalid: int = 0
    unknown: int = 0
    missing: int = 0
    exceeding: int = 0

    def plus(self, other: Record, path: str = "evidence") -> Record:
        """The sum. Raises InputError: `evidence_invalid` for records of different limits."""
        if self.limit != other.limit:
            reason = f"records for the limits {self.limit!r} and {other.limit!r} do not add up"
            raise input_error("evidence_invalid", path=path, reason=reason)
        wealth = Wealth()
        wealth.merge(self.wealth)
        wealth.merge(other.wealth)
        return Record(self.limit, wealth, *(getattr(self, c) + getattr(other, c) for c in COUNTS))

    def minus(self, other: Record) -> Record:
        """What was added since `other`, an earlier state of the same sums."""
        a, b = list(_integers(self.wealth)), list(_integers(other.wealth))
        wealth = _wealth([x - y for x, y in zip(a, b, strict=True)])
        return Record(self.limit, wealth, *(getattr(self, c) - getattr(other, c) for c in COUNTS))

    def text(self) -> str:
        """Canonical text: whole numbers of any size, the limit as the exact hexadecimal float."""
        numbers = [*_integers(self.wealth), *(getattr(self, c) for c in COUNTS)]
        return json.dumps([self.limit.hex(), *(str(n) for n in numbers)], separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Record:
        """What `text` gave. Raises ValueError, TypeError or KeyError for anything else."""
        limit, *words = json.loads(text)
        numbers = [int(word) for word in words]
        if len(numbers) != _LENGTH:
            raise ValueError(f"{len(numbers)} numbers instead of {_LENGTH}")
        return cls(float.fromhex(limit), _wealth(numbers[: -len(COUNTS)]), *numbers[-len(COUNTS) :])


def _integers(wealth: Wealth) -> Iterator[int]:
    yield from wealth.above
    yield from wealth.below
    yield from (getattr(wealth, name) for name in _SUMS)


def _wealth(numbers: list[int]) -> Wealth:
    bets = (len(numbers) - len(_SUMS)) // 2
    return Wealth(numbers[:bets], numbers[bets : 2 * bets], *numbers[2 * bets :])


_LENGTH = 2 * len(Wealth().above) + len(_SUMS) + len(COUNTS)


def tested_limit(planned: PlannedClause, temperature: float | None) -> float | None:
    """The number that the clause's test compares with, as the monitor computes it; None where it depends on a
    temperature that is not given."""
    if planned.limit is not None:
        return planned.limit
    if planned.upper is not None:
        return bound_at(planned.upper, temperature, down=True)
    if planned.lower is None:
        return None
    lower = bound_at(planned.lower, temperature, down=False)
    return None if lower is None else 1.0 - lower


def bound_at(bound: PlannedBound, temperature: float | None, *, down: bool) -> float | None:
    """One end of a limit at a temperature, rounded to the safe side; None where it depends on one that is not given."""
    if bound.value is not None:
        return bound.value
    if temperature is None:
        return None
    exact = bound.constant + bound.slope * Fraction(repr(float(temperature)))
    return monitor_float_down(exact) if down else monitor_float_up(exact)


def stated(planned: PlannedClause, record: Record, slice: str | None, outcome: Outcome) -> Outcome:
    """The test's outcome unless the inputs say otherwise, as `runtime.judgement` states it.

    Invalid rows fail, missing inputs and unknown membership never pass, nothing is inconclusive.
    """
    clause = planned.clause
    if record.invalid:
        return Outcome("fail", f"{record.invalid} of {record.rows} values are invalid")
    if outcome.verdict == "fail":
        return outcome
    if record.unknown:
        return Outcome("unobservable", f"membership of slice {slice} was not given for {record.unknown} rows")
    if record.missing:
        return Outcome("unobservable", f"inputs of the metric were not given for {record.missing} rows")
    if not record.wealth.requests:
        return Outcome("inconclusive", "no requests were measured")
    if outcome.verdict == "pass" and clause.unit == "token":
        return replace(outcome, reason=outcome.reason + ", assuming independent tokens")
    return outcome


def tested(planned: PlannedClause, record: Record) -> Outcome:
    """The test of the clause's kind of evidence, as if its slice were alone: `runtime.judgement` for `KINDS`."""
    clause, wealth, limit, reading = planned.clause, record.wealth, record.limit, planned.reading
    assert reading is not None
    confidence = float(clause.confidence)
    if planned.evidence not in KINDS:
        return Outcome("unobservable", f"evidence of the kind `{planned.evidence}` is read from a monitor's state")
    if planned.evidence == "mean":
        return judge_mean(wealth, limit, confidence, bounded=reading.bounded)
    if limit >= 1.0:
        return Outcome("pass", "the clause allows every unit to exceed its limit")
    if planned.evidence == "maximum" or limit <= 0.0:
        bad = record.exceeding if reading.source == "rows" else wealth.exceeding
        return judge_clean(bad, wealth.requests, planned.minimum_requests or 1, confidence)
    if planned.evidence == "share":
        return judge_share(wealth, limit, confidence)
    tokens = clause.unit == "token"
    units = (record.exceeding, record.rows) if tokens else (wealth.exceeding, wealth.requests)
    return judge_binary(*units, limit, confidence)
