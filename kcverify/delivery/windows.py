"""Evidence of a clause about a window in time: a record a window, and what one of the windows certifies.

A failure needs no windows: were each of them within the limit, all of them together would be. A certificate is of one
window, the n-th since the stage's first at the level `beta/(n(n+1))`: these levels add up to `beta`, so that the chance
of a wrong certificate does not grow with the windows that are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from kcverify.delivery.records import Record, tested
from kcverify.emit.plan import PlannedClause
from kcverify.runtime.sequential import Outcome

_MARK = " @ "
Parts = Mapping[int, Record]
"""Records by the number of their window."""


def name_at(cell: str, window: Fraction | None, at: int) -> str:
    """The name of a cell's record of the window that a time falls in, milliseconds since 1970; without one the cell's."""
    return cell if window is None else f"{cell}{_MARK}{at // max(1, int(window * 1000))}"


def gathered(records: Mapping[str, Record]) -> tuple[dict[str, Record], dict[str, dict[int, Record]]]:
    """The sum of each cell, and its windows where it was kept by window. Raises InputError: `evidence_invalid`."""
    sums: dict[str, Record] = {}
    windows: dict[str, dict[int, Record]] = {}
    for name, record in records.items():
        cell, mark, number = name.rpartition(_MARK)
        if not (mark and number.isascii() and number.isdigit()):
            cell = name
        else:
            windows.setdefault(cell, {})[int(number)] = record
        sums[cell] = record if cell not in sums else sums[cell].plus(record)
    return sums, windows


def certified(planned: PlannedClause, whole: Record, windows: Parts) -> Outcome:
    """The test of a clause about a window; whatever passes does so in one window alone."""
    outcome = tested(planned, whole)
    length = planned.clause.window
    assert length is not None
    told = f"{float(length):g} s"
    if outcome.verdict == "fail":
        return replace(outcome, log_e_pass=None)
    if not windows:
        reason = f"which of its windows of {told} a request is of was not kept: give a monitor's state of one window with --evidence"
        return (
            Outcome("unobservable", reason, outcome.log_e_fail)
            if outcome.verdict == "pass"
            else replace(outcome, log_e_pass=None)
        )
    first, best = min(windows), None
    for number, record in sorted(windows.items()):
        one, count = tested(planned, record), number - first + 1
        if one.log_e_pass is None:
            if one.verdict == "pass":
                return replace(one, reason=f"{one.reason}, in one window of {told}", log_e_fail=outcome.log_e_fail)
            continue
        weighed = one.log_e_pass - math.log(count * (count + 1))
        best = weighed if best is None else max(best, weighed)
    if best is not None and best >= math.log(1.0 / (1.0 - float(planned.clause.confidence))):
        reason = f"certified: the evidence of one window of {told} reached its threshold"
        return Outcome("pass", reason, outcome.log_e_fail, best)
    return Outcome("inconclusive", f"not enough evidence in one window of {told}", outcome.log_e_fail, best)
