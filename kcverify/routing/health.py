"""Health of a candidate per clause and slice, and what it does to the route.

Each cell has a restarting detector (`runtime.detector`). Health is 1 without evidence of drift and 0 at its alarm.
The candidate's traffic goes to the guarded kernel while any health is below one half, and back when all are above three
quarters; an alarm, health 0, takes the contract's own answer: `rollback` leads to the safe kernel and `stop` to none,
while `guard` says that the guarded kernel is enough, and the route stays there, now until the candidate has shown itself
good again. So the word of the contract, which `prove.policy` and the promotion machine read too, decides how far a
clause goes, and candidate, guarded, safe is the path of a clause whose word is `rollback`. A severity that is only logged
moves nothing, and its health follows the present. An alarm is left only through the mirror image of the detector, fed by
copies of the traffic, after the answer's dwell and its number of measured requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcverify.delivery.machine import HEALTH, ROUTES, Plan
from kcverify.delivery.records import tested_limit
from kcverify.delivery.state import key
from kcverify.diagnostics import InputError, input_error
from kcverify.elaborate.contract import Contract
from kcverify.emit.plan import PlannedClause, plan
from kcverify.runtime.detector import Detector, units_between_alarms
from kcverify.runtime.errors import MonitorInputError

LOW, HIGH = 0.5, 0.75
DEFAULT_UNITS = 1_000_000.0
"""Requests between false alarms where a line of `escalate` states none."""
RETURN_UNITS = 10_000.0
"""Requests of a candidate that breaks its limit between two wrong returns: a wrong return costs another alarm."""
_CLEAN_RETURN = 59


@dataclass(frozen=True)
class WatchedCell:
    """A clause on a slice as a detector sees it. `target` is the route of its alarm, `recover` None where there is no return.

    `kind` is one of `detector.KINDS`, or `strict` for a clause without exception: its first exceedance is the alarm.
    """

    key: str
    severity: str
    target: str
    kind: str
    limit: float
    units: float
    dwell: int = 0
    recover: int | None = None
    bounded: bool = True


class Watch:
    """One cell: its detector, and after an alarm the mirror image that lets it return."""

    def __init__(self, cell: WatchedCell) -> None:
        self.cell = cell
        strict = cell.kind == "strict"
        self.above = None if strict else Detector(cell.kind, cell.limit, cell.units)
        mirrored = not strict and cell.bounded
        back = min(cell.units, RETURN_UNITS)
        self.below = Detector(cell.kind, cell.limit, back, "below") if mirrored else None
        self.tripped = False
        self.seen = self.clean = 0
        self.alarmed = False

    def add(self, low: float, high: float) -> None:
        """One request: the least and the most that its value can be; what is not in [0, 1] counts as 1."""
        self.seen += 1
        if self.above is None:
            self.alarmed = self.alarmed or low != 0.0
        else:
            self.above.add(low)
            self.alarmed = self.above.alarm or (self.alarmed and self.cell.target != "candidate")
        if not self.tripped:
            return
        self.clean += 1
        if self.below is not None:
            self.below.add(high)
        elif high != 0.0 and self.above is None:
            self.clean = 0

    @property
    def health(self) -> float:
        """In [0, 1]; after an alarm, how far the mirror image has come, below 1."""
        if self.tripped:
            if self.below is not None:
                return min(1.0 - self.below.health, 0.999)
            return min(self.clean / max(self.cell.recover or _CLEAN_RETURN, _CLEAN_RETURN), 0.999)
        if self.alarmed:
            return 0.0
        return 1.0 if self.above is None else self.above.health

    @property
    def returned(self) -> bool:
        """Whether the evidence says that the cell meets its limit again."""
        if not self.tripped:
            return self.health > HIGH
        enough = self.clean >= max(self.cell.recover or 0, 0 if self.below is not None else _CLEAN_RETURN)
        mirrored = self.below is None or self.below.alarm
        healthy = self.above is None or self.above.health > HIGH
        return enough and mirrored and healthy and not self.alarmed

    def trip(self) -> None:
        """The alarm was answered: forget what led to it, and start to gather evidence of the return."""
        self.reset()
        self.tripped = True

    def reset(self) -> None:
        """Start anew, healthy."""
        self.tripped = self.alarmed = False
        self.clean = 0
        for detector in (self.above, self.below):
            if detector is not None:
                detector.reset()

    def state_dict(self) -> dict[str, Any]:
        """Plain containers that `load_state_dict` restores."""
        detectors = [d if d is None else d.state_dict() for d in (self.above, self.below)]
        return {
            "tripped": self.tripped,
            "seen": self.seen,
            "clean": self.clean,
            "alarmed": self.alarmed,
            "detectors": detectors,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of this cell. Raises MonitorInputError where its detectors had other settings."""
        for detector, saved in zip((self.above, self.below), state["detectors"], strict=True):
            if detector is not None:
                detector.load_state_dict(saved)
        self.tripped, self.alarmed = bool(state["tripped"]), bool(state["alarmed"])
        self.seen, self.clean = int(state["seen"]), int(state["clean"])

    def data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        log_e = None if self.above is None else self.above.log_e
        log_r = None if self.above is None else max(self.above.log_r, 0.0)
        bound = None if self.above is None else self.above.log_threshold
        return {
            "cell": self.cell.key, "severity": self.cell.severity, "answer": self.cell.target, "health": self.health,
            "seen": self.seen, "tripped": self.tripped, "clean": self.clean, "log_e": log_e, "log_r": log_r, "log_threshold": bound,
            "return_log_r": None if self.below is None or not self.tripped else max(self.below.log_r, 0.0),
            "return_log_threshold": None if self.below is None else self.below.log_threshold,
        }  # fmt: skip


@dataclass(frozen=True)
class Shift:
    """A move of the route that health asks for: `kind` of event, the route it leads to, the cells, why.

    `mark` tells a decision from every other one, so that it is recorded once.
    """

    kind: str
    route: str
    severity: str
    cells: tuple[str, ...]
    reason: str
    clean: int = 0
    mark: str = ""

    @property
    def returns(self) -> bool:
        """Whether it leads back to the candidate."""
        return self.kind in ("recovered", "cleared")


@dataclass(frozen=True)
class Where:
    """What a decision needs of the store's state: the route, what it was left for, and for how long (ms)."""

    route: str
    cause: str
    stayed: int

    def after(self, shift: Shift) -> Where:
        """The same once a move is made, as `delivery.state` makes it."""
        if shift.returns:
            return Where("candidate", "", 0)
        route = ROUTES[max(ROUTES.index(self.route), ROUTES.index(shift.route))]
        if route == self.route and self.cause != HEALTH:
            return self
        return Where(route, shift.severity, 0)


class Watcher:
    """All cells of a contract on one stream of requests."""

    def __init__(self, cells: Iterable[WatchedCell]) -> None:
        self.watches = {cell.key: Watch(cell) for cell in cells}
        self.since = 0

    def add(self, values: Mapping[str, tuple[float, float]]) -> None:
        """One measured request of the candidate: `(least, most)` a cell; cells that it does not show are left out."""
        self.since += 1
        for name, (low, high) in values.items():
            watch = self.watches.get(name)
            if watch is not None:
                watch.add(low, high)

    def health(self) -> dict[str, float]:
        """Health by cell."""
        return {name: watch.health for name, watch in self.watches.items()}

    def decide(self, where: Where) -> Shift | None:
        """The move that is due, or None. The caller records it, then calls `took`."""
        acting = [w for w in self.watches.values() if w.cell.target != "candidate"]
        alarmed = [w for w in acting if w.alarmed]
        for watch in alarmed:
            if watch.tripped:
                watch.trip()  # still bad: the return starts anew
        worse = [w for w in alarmed if not w.tripped]
        if worse:
            return self._failed(worse, where)
        if where.route == "candidate":
            return self._guarded(acting)
        if where.cause == HEALTH and where.route == "guarded":
            if all(w.health > HIGH for w in acting):
                reason = f"every health is above {HIGH:g} again"
                return Shift("cleared", "candidate", HEALTH, (), reason, self.since)
            return None
        return self._recovered(acting, where)

    def _failed(self, alarmed: Sequence[Watch], where: Where) -> Shift:
        worst = max(alarmed, key=lambda w: (ROUTES.index(w.cell.target), w.cell.severity))
        cells = tuple(w.cell.key for w in alarmed if w.cell.severity == worst.cell.severity)
        route = ROUTES[max(ROUTES.index(where.route), ROUTES.index(worst.cell.target))]
        reason = f"{', '.join(cells)}: the detector reached its alarm after {worst.seen:,} measured requests"
        return Shift("failed", route, worst.cell.severity, cells, reason)

    def _guarded(self, acting: Sequence[Watch]) -> Shift | None:
        low = [w for w in acting if w.health < LOW]
        if not low:
            return None
        told = ", ".join(f"{w.cell.key} {w.health:.2f} after {w.seen:,} measured requests" for w in low)
        return Shift("guarded", "guarded", HEALTH, tuple(w.cell.key for w in low), f"health below {LOW:g}: {told}")

    def _recovered(self, acting: Sequence[Watch], where: Where) -> Shift | None:
        if where.route not in ("guarded", "safe"):
            return None
        answers = [w.cell for w in acting if w.cell.severity == where.cause]
        if not answers or answers[0].recover is None:
            return None
        tripped = [w for w in acting if w.tripped]
        if any(w.cell.recover is None for w in tripped):
            return None  # one of the failures has no way back, whatever the route was left for
        clean = min((w.clean for w in tripped), default=self.since)
        dwell = max(c.dwell for c in (answers[0], *(w.cell for w in tripped)))
        if clean < answers[0].recover or where.stayed < dwell or not all(w.returned for w in acting):
            return None
        names = tuple(w.cell.key for w in tripped)
        reason = f"{', '.join(names) or 'every cell'}: within the limit again, on {clean:,} copies of requests"
        return Shift("recovered", "candidate", where.cause, names, reason, clean)

    def took(self, shift: Shift) -> None:
        """The move was made."""
        self.since = 0
        for name, watch in self.watches.items():
            if shift.kind == "failed" and name in shift.cells:
                watch.trip()
            elif shift.kind == "recovered":
                watch.reset()

    def resume(self, where: Where, cells: Iterable[str]) -> None:
        """Continue behind a route that others moved, for these cells (all of the cause where none is known).

        A cell whose failure is over starts anew. All others keep their evidence: what others do is no reason to forget it.
        """
        known = [name for name in cells if name in self.watches]
        of_cause = [n for n, w in self.watches.items() if w.cell.severity == where.cause]
        failed = where.route != "candidate" and where.cause != HEALTH
        self.since = 0
        for name, watch in self.watches.items():
            if failed and not watch.tripped and name in (known or of_cause):
                watch.trip()
            elif watch.tripped and not (failed and (not known or name in known)):
                watch.reset()

    def state_dict(self) -> dict[str, Any]:
        """Plain containers that `load_state_dict` restores."""
        return {"since": self.since, "cells": {name: watch.state_dict() for name, watch in self.watches.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a watcher of the same cells. Raises MonitorInputError, KeyError, TypeError or ValueError."""
        for name, watch in self.watches.items():
            watch.load_state_dict(state["cells"][name])
        self.since = int(state["since"])

    def reset(self) -> None:
        """Start anew, as after a rollback or a new stage."""
        self.since = 0
        for watch in self.watches.values():
            watch.reset()


def watched(
    contract: Contract, machine: Plan, temperature: float | None = None
) -> tuple[tuple[WatchedCell, ...], dict[str, str]]:
    """The cells that can be watched, and why the others cannot.

    Raises InputError: `option_invalid` where an interval between false alarms cannot be counted in requests.
    """
    actions = {a.severity: a for a in contract.actions}
    answers = {a.severity: a for a in machine.answers}
    cells: list[WatchedCell] = []
    not_watched: dict[str, str] = {}
    for planned in plan(contract).clauses:
        clause, answer = planned.clause, answers.get(planned.clause.severity)
        limit = tested_limit(planned, temperature) if planned.enforced else None
        kind, reason = _kind(planned, limit)
        for name in clause.slices or (None,):
            if reason or limit is None:
                not_watched[key(clause.name, name)] = reason or planned.reason
                continue
            assert planned.reading is not None
            bounded = planned.evidence != "mean" or planned.reading.bounded
            target, dwell, recover = (
                ("candidate", 0, None) if answer is None else (answer.target, answer.dwell, answer.recover)
            )
            units = _units(contract, actions.get(clause.severity))
            cells.append(
                WatchedCell(
                    key(clause.name, name), clause.severity, target, kind, limit, units, dwell, recover, bounded
                )
            )
    return tuple(cells), not_watched


def _kind(planned: PlannedClause, limit: float | None) -> tuple[str, str]:
    """The kind of detector, and why there is none."""
    if not planned.enforced:
        return "", planned.reason
    if planned.evidence == "maximum" or (limit == 0.0 and planned.evidence != "mean"):
        return "strict", ""
    if planned.evidence not in ("binary", "share", "mean"):
        return "", f"evidence of the kind `{planned.evidence}` is a number of all requests, which no detector follows"
    if limit is None:
        return "", "its limit depends on the temperature, which the contract leaves open"
    if not 0.0 < limit < 1.0:
        return "", f"its limit {limit:g} is not between 0 and 1"
    return ("share" if planned.evidence == "binary" and planned.clause.unit == "token" else planned.evidence), ""


def _units(contract: Contract, action: Any) -> float:
    if action is None or action.false_alarm_every is None:
        return DEFAULT_UNITS
    try:
        return units_between_alarms(action, contract.assumptions.traffic)
    except MonitorInputError as error:
        raise _told(error) from None


def _told(error: MonitorInputError) -> InputError:
    return input_error(
        "option_invalid",
        option=str(error.holes.get("option", "escalate")),
        reason=str(error.holes.get("reason", error)),
    )
