"""One request of the candidate as increments of evidence: a record a cell, an interval a detector, the worst value.

A share or a bounded mean keeps both ends: the wealths against the clause count the low end, those for it the high end.
Where one number must serve both sides (clauses without exception, binary ones) a value that is not decided counts as
missing, so that the clause can fail and cannot pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kcverify.delivery.records import Record, tested_limit
from kcverify.delivery.state import key
from kcverify.elaborate.contract import Contract, Interval, SliceDef
from kcverify.elaborate.membership import Field, belongs
from kcverify.emit.plan import PlannedClause, plan
from kcverify.gateway.measures import MEASURES, Rows, exceeding, limits_at
from kcverify.runtime.sequential import Wealth


@dataclass(frozen=True)
class PlannedCell:
    """A clause on a slice that traffic may show; `limit` is what its test compares with."""

    key: str
    planned: PlannedClause
    slice: str | None
    limit: float


@dataclass(frozen=True)
class Facts:
    """What is known of one request of the candidate.

    `rows` None: no numbers, for the reason `missing`; `unscored`: they could have been had, and were not (a lost
    measurement, no property of the traffic). `broken`: its numbers were not finite, so that none could be kept. `void`: an identity check that failed, which is looked at before any number; `blamed`: health suffers from it. `at` is when it was asked, milliseconds since 1970.
    """

    request_id: str
    run: int
    temperature: float
    rows: Rows | None = None
    missing: str = ""
    unscored: bool = False
    void: str = ""
    observed: Mapping[str, float | bool | None] = field(default_factory=dict)
    fields: Mapping[str, Field] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    broken: bool = False
    blamed: bool = True
    at: int = 0


@dataclass(frozen=True)
class CellValue:
    """What one request adds to one cell. `reason`: why it cannot be seen; `at` the position of its worst row."""

    record: Record
    low: float | None = None
    high: float | None = None
    reason: str = ""
    worst: float | None = None
    at: int | None = None


def temperature_of(interval: Interval | None) -> float | None:
    """The only temperature that a contract assumes; None where it leaves a range, or none."""
    if interval is None or interval.low is None or interval.low != interval.high:
        return None
    return float(interval.low)


def planned_cells(contract: Contract) -> tuple[tuple[PlannedCell, ...], dict[str, str]]:
    """The cells that traffic may show, and why it cannot show the others."""
    cells: list[PlannedCell] = []
    never: dict[str, str] = {}
    at = temperature_of(contract.assumptions.temperature)
    for planned in plan(contract).clauses:
        clause = planned.clause
        measure = MEASURES.get(clause.metric.name)
        limit = tested_limit(planned, at) if planned.enforced else None
        reason = (
            planned.reason if not planned.enforced else "no measure of a gateway" if measure is None else measure.never
        )
        if not reason and limit is None:
            reason = "its limit depends on the temperature, which the contract leaves open"
        for name in clause.slices or (None,):
            if reason or limit is None:
                never[key(clause.name, name)] = reason
            else:
                cells.append(PlannedCell(key(clause.name, name), planned, name, limit))
    return tuple(cells), never


def values_of(cells: tuple[PlannedCell, ...], slices: Mapping[str, SliceDef], facts: Facts) -> dict[str, CellValue]:
    """What a request adds to each cell that it belongs to."""
    out: dict[str, CellValue] = {}
    done: dict[str, CellValue | None] = {}
    for cell in cells:
        clause = cell.planned.clause
        if clause.band is not None and not _in_band(clause.band.interval, facts.temperature):
            continue
        if clause.name not in done:
            done[clause.name] = _value(cell, facts)
        value = done[clause.name]
        if value is None:
            continue
        if cell.slice is not None:
            inside = belongs(slices[cell.slice].predicate, facts.fields, facts.tags)
            if inside is False:
                continue
            if inside is None:
                unknown = Record(cell.limit, unknown=max(value.record.rows, 1))
                value = CellValue(unknown, reason=f"whether a request is in the slice {cell.slice} is not known")
        out[cell.key] = value
    return out


def _in_band(interval: Interval, temperature: float) -> bool:
    if interval.low is not None and temperature < interval.low:
        return False
    return (
        interval.high is None
        or temperature < interval.high
        or (not interval.open_high and temperature == interval.high)
    )


def _value(cell: PlannedCell, facts: Facts) -> CellValue | None:
    """One clause of one request; None where the request says nothing about it."""
    measure = MEASURES[cell.planned.clause.metric.name]
    if facts.void:
        bad = 1.0 if facts.blamed else None
        return CellValue(Record(cell.limit, missing=1), bad, bad, f"void: {facts.void}")
    if measure.observed:
        return _observed(cell, measure.observed, facts.observed)
    if facts.broken:
        return _broken(cell)
    if facts.rows is None:
        return None if facts.unscored else _missing(cell, facts.missing)
    rows = facts.rows
    if not len(rows):
        return None
    if not rows.tempered and not measure.untempered:
        return _missing(
            cell, "the engines report log-probabilities before temperature, and the request has another one than 1"
        )
    assert measure.rows is not None
    found = measure.rows(rows, cell.planned)
    if isinstance(found, str):
        return _missing(cell, found)
    broken = rows.by_choice(rows.broken) if measure.request else rows.broken
    if cell.planned.evidence == "mean":
        return _mean(cell, rows, found, broken)
    return _counted(cell, rows, found, broken, request=measure.request)


def _broken(cell: PlannedCell) -> CellValue:
    """An answer of numbers that are none: one invalid row that exceeds every limit."""
    wealth, planned = Wealth(), cell.planned
    assert planned.reading is not None
    bounded = planned.evidence != "mean" or planned.reading.bounded
    wealth.add(1.0 if bounded else math.inf, cell.limit, bounded=bounded)
    return CellValue(Record(cell.limit, wealth, 1, 1, exceeding=1), 1.0, 1.0, "a value that is not finite")


def _missing(cell: PlannedCell, reason: str) -> CellValue:
    return CellValue(Record(cell.limit, missing=1), reason=reason)


def _observed(cell: PlannedCell, name: str, observed: Mapping[str, float | bool | None]) -> CellValue | None:
    """A number of the exchange: seconds, or whether it failed or parsed; or a bound of it, `_most` or `_least`.

    A client that left has not seen the end: what that would have shown, the request says nothing about.
    """
    given, most, least = (observed.get(name + end) for end in ("", "_most", "_least"))
    if given is None and cell.planned.evidence != "mean":
        limit = limits_at(cell.planned, 1.0)[1]
        if most is not None and float(most) <= limit:
            given = most
        elif least is not None and float(least) > limit:
            given = least
    if given is None:
        return None if observed.get("left") else _missing(cell, "this exchange does not show it")
    planned, value = cell.planned, float(given)
    wealth = Wealth()
    if planned.evidence == "mean":
        wealth.add(math.inf if math.isnan(value) else value, cell.limit, bounded=False)
        return CellValue(Record(cell.limit, wealth, rows=1), value, value, worst=value)
    assert planned.reading is not None
    if planned.reading.source == "outcome":
        exceeds = value == (0.0 if planned.lower is not None else 1.0)
    else:
        low, high = limits_at(planned, 1.0)
        exceeds = not low <= value <= high
    wealth.add(float(exceeds), cell.limit)
    return CellValue(
        Record(cell.limit, wealth, rows=1, exceeding=int(exceeds)), float(exceeds), float(exceeds), worst=value
    )


def _counted(
    cell: PlannedCell, rows: Rows, found: tuple[np.ndarray, np.ndarray], broken: np.ndarray, *, request: bool
) -> CellValue:
    """Shares and counts of positions that exceed the limit, or whether any choice of the request does."""
    surely, maybe = exceeding(found, cell.planned, rows.temperature)
    badness, at = _worst(found, cell.planned, broken, rows, request=request)
    surely, maybe = surely | broken, maybe | broken
    if request:
        surely, maybe, broken = (np.array([bool(x.any())]) for x in (surely, maybe, broken))
    low, high = float(surely.mean()), float(maybe.mean())
    size, invalid, bad = len(surely), int(broken.sum()), int(surely.sum())
    if cell.planned.evidence == "share":
        record = Record(cell.limit, split_wealth(low, high, cell.limit), size, invalid, exceeding=bad)
        return CellValue(record, low, high, worst=badness, at=at)
    undecided = int((maybe & ~surely).sum())
    wealth = Wealth()
    wealth.add(float(bad > 0) if cell.planned.evidence == "maximum" or request else low, cell.limit)
    record = Record(cell.limit, wealth, size, invalid, missing=undecided, exceeding=bad)
    reason = f"{undecided} positions are not decided by what the answers carry" if undecided else ""
    one = cell.planned.evidence == "maximum"
    return CellValue(record, float(bad > 0) if one else low, float(maybe.any()) if one else high, reason, badness, at)


def _mean(cell: PlannedCell, rows: Rows, found: tuple[np.ndarray, np.ndarray], broken: np.ndarray) -> CellValue:
    """The mean over the positions (or choices), or one minus it for a floor."""
    planned = cell.planned
    assert planned.reading is not None
    bounded = planned.reading.bounded
    low, high = found
    if planned.upper is None:
        low, high = 1.0 - high, 1.0 - low
    worst = 1.0 if bounded else math.inf
    low, high = np.where(broken, worst, low), np.where(broken, worst, high)
    a, b = max(float(np.mean(low)), 0.0), float(np.mean(high))
    _, at = _worst((low, high), planned, broken, rows, request=len(low) != len(rows))
    wealth = split_wealth(min(a, 1.0), min(b, 1.0), cell.limit) if bounded else Wealth()
    if not bounded:
        wealth.add(a, cell.limit, bounded=False)
    record = Record(cell.limit, wealth, len(low), int(broken.sum()))
    return CellValue(record, a, b, worst=a, at=at)


def split_wealth(low: float, high: float, limit: float) -> Wealth:
    """A request whose value is in `[low, high]`, both in [0, 1]: `above` from the low end, all else from the high end."""
    against, certify = Wealth(), Wealth()
    against.add(low, limit)
    certify.add(high, limit)
    return Wealth(against.above, certify.below, 1, certify.exceeding, 0, certify.total)


def _worst(
    found: tuple[np.ndarray, np.ndarray], planned: PlannedClause, broken: np.ndarray, rows: Rows, *, request: bool
) -> tuple[float | None, int | None]:
    """The value that is surely the worst, and its position (where its choice begins); a broken one is worse than any."""
    low, high = found
    floor = planned.upper is None
    values = -high if floor else low
    if broken.any():
        worst, at = math.nan, int(np.argmax(broken))
    elif not len(values) or np.isnan(values).all():
        return None, None
    else:
        at = int(np.nanargmax(values))
        worst = float(high[at] if floor else low[at])
    return worst, rows.choices[at][0] if request else at
