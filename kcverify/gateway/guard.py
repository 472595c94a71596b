"""What the measured requests add up to between two writes: evidence by run, health, worst witnesses, counts.

Everything here belongs to the thread that measures; what others read are copies that it leaves behind.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kcverify.delivery.machine import HEALTH
from kcverify.delivery.records import Record
from kcverify.delivery.windows import name_at
from kcverify.elaborate.contract import Contract
from kcverify.gateway.cells import CellValue, Facts, PlannedCell, planned_cells, values_of
from kcverify.gateway.drawn import Drawn
from kcverify.gateway.measures import Rows
from kcverify.gateway.observed import Listed
from kcverify.routing.health import Shift, WatchedCell, Watcher, Where

WITNESSES = 8
"""Worst requests that are kept for each cell."""
SHOWN = 24
"""Positions of a witness around its worst one."""
REASONS = 50
"""Different reasons that are counted for each cell."""
SECONDS = 3600
"""Length of the history of health."""


Draws = tuple[Sequence[int], int]
"""Seeds that were used up, and how many of the oldest were forgotten for them."""


@dataclass(frozen=True)
class Found:
    """What came of one request: the move of the route that is due, and the values of the cells."""

    shift: Shift | None
    values: Mapping[str, CellValue]


class Guard:
    """Evidence that waits to be written, that of the whole life of this process (`totals`), and the watchers of its stream.

    `run` is the current one: a request of an earlier run that is measured late says nothing about the health of this one.
    `due` are the moves of the route that were decided and that the store does not have yet, in their order: what comes next
    is decided as if they were made, and no return is while one of them is not.
    """

    def __init__(self, contract: Contract, watched: tuple[WatchedCell, ...], run: int | None = None) -> None:
        self.contract, self.run = contract, run
        self.drawn = Drawn()
        self.cells, self.never = planned_cells(contract)
        self.by_key: dict[str, PlannedCell] = {c.key: c for c in self.cells}
        self.slices = {s.name: s for s in contract.slices}
        self.watcher = Watcher(watched)
        self.due: list[Shift] = []
        self._unsaved = False
        self.worst: dict[str, list[dict[str, Any]]] = {c.key: [] for c in self.cells}
        self.reasons: dict[str, Counter[str]] = {c.key: Counter() for c in self.cells}
        self.history: deque[dict[str, Any]] = deque(maxlen=SECONDS)
        self.measured = 0
        self.totals: dict[str, Record] = {c.key: Record(c.limit) for c in self.cells}
        self._waiting: dict[int, tuple[int, dict[str, Record]]] = {}
        self._lock = threading.Lock()

    def add(self, facts: Facts, where: Where) -> Found:
        """Count one request of the candidate, and say what the route must do."""
        values = values_of(self.cells, self.slices, facts)
        self.measured += 1
        with self._lock:
            requests, kept = self._waiting.get(facts.run, (0, {}))
            for name, value in values.items():
                stored = name_at(name, self.by_key[name].planned.clause.window, facts.at)
                before = kept.get(stored)
                kept[stored] = value.record if before is None else before.plus(value.record)
                self.totals[name] = self.totals[name].plus(value.record)
            self._waiting[facts.run] = (requests + 1, kept)
        for name, value in values.items():
            if value.reason:
                known = self.reasons[name]
                known[
                    value.reason[:200] if value.reason[:200] in known or len(known) < REASONS else "other reasons"
                ] += 1
            if value.worst is not None and facts.rows is not None and value.at is not None:
                self._offer(name, value, facts, facts.rows)
        seen = {k: (v.low, v.high) for k, v in values.items() if v.low is not None and v.high is not None}
        with self._lock:
            if not self._current(facts.run):
                return Found(None, values)
            self.watcher.add(seen)
            shift = self.watcher.decide(self._behind(where))
            if shift is None or (shift.returns and self.due):
                return Found(None, values)
            shift = replace(shift, mark=secrets.token_hex(8))
            self.watcher.took(shift)
            self.due = [*self.due, shift]
        return Found(shift, values)

    def _behind(self, where: Where) -> Where:
        """The route as it is once all that is due is made."""
        for shift in self.due:
            where = where.after(shift)
        return where

    def settled(self, shift: Shift) -> None:
        """A move is in the store, or is not due any more; the detectors are to be written again beside it."""
        with self._lock:
            self.due = [d for d in self.due if d is not shift]
            self._unsaved = True

    def again(self, route: str, cause: str, cells: Sequence[str]) -> None:
        """The store that had recorded the failure in force is gone: it is due in the one that took its place."""
        if cause in ("", HEALTH):
            return
        reason = "recorded before in a store that is not there any more"
        with self._lock:
            again = Shift("failed", route, cause, tuple(cells), reason, mark=secrets.token_hex(8))
            self.due = [again, *(d for d in self.due if not d.returns)]

    def overtaken(self) -> None:
        """Others recorded a failure: a return that was decided without it is not due any more."""
        with self._lock:
            self.due = [d for d in self.due if not d.returns]

    def resume(self, where: Where, cells: Sequence[str]) -> None:
        """Continue behind a route that somebody else moved, for the cells that failed there."""
        with self._lock:
            failed = [] if any(d.returns for d in self.due) else list(cells)
            failed += [name for d in self.due if d.kind == "failed" for name in d.cells]
            self.watcher.resume(self._behind(where), failed)
            self._unsaved = True

    def load(self, body: Mapping[str, Any], due: Sequence[Shift]) -> None:
        """Go on with detectors that were left. Raises MonitorInputError, KeyError, TypeError or ValueError."""
        with self._lock:
            self.watcher.load_state_dict(body)
            self.due = list(due)

    def _current(self, run: int) -> bool:
        return self.run is None or run == self.run

    def sampled(
        self, run: int, fields: Mapping[str, Any], answers: Sequence[tuple[Listed, tuple[int, ...]]], error: float, size: int | None
    ) -> str:  # fmt: skip
        """What is wrong with the candidate's sampler after one more answer, a pair a choice; empty: nothing."""
        with self._lock:
            return self.drawn.add(fields, answers, error, size) if self._current(run) else ""

    def take(self) -> tuple[list[tuple[int, int, dict[str, Record]]], dict[str, Any], Draws]:
        """Evidence since the last call, by run, the state of the detectors after it, and the seeds used up.

        Where the route has moved since, the detectors are written without evidence too.
        """
        with self._lock:
            out = [(run, requests, records) for run, (requests, records) in sorted(self._waiting.items())]
            self._waiting = {}
            if self._unsaved and self.run is not None and self.run not in [run for run, *_ in out]:
                out.append((self.run, 0, {}))
            if not out:
                return out, {}, ((), 0)
            self._unsaved = False
            due = [asdict(shift) for shift in self.due]
            watch = {"watcher": self.watcher.state_dict(), "drawn": self.drawn.state_dict(), "due": due}
            return out, watch, self.drawn.taken()

    def give_back(self, run: int, requests: int, records: Mapping[str, Record], draws: Draws = ((), 0)) -> None:
        """What could not be written waits on."""
        with self._lock:
            if self._current(run):
                self.drawn.give_back(draws)
            count, kept = self._waiting.get(run, (0, {}))
            for name, record in records.items():
                kept[name] = record if name not in kept else kept[name].plus(record)
            self._waiting[run] = (count + requests, kept)
            self._unsaved = True

    def remember(self, at: int) -> None:
        """One point of the history of health."""
        self.history.append({"at": at, "health": {k: round(v, 4) for k, v in self.watcher.health().items()}})

    def _offer(self, name: str, value: CellValue, facts: Facts, rows: Rows) -> None:
        """Keep the worst requests of a cell, with the tokens around the worst position."""
        assert value.worst is not None and value.at is not None
        planned = self.by_key[name].planned
        score = math.inf if math.isnan(value.worst) else (value.worst if planned.upper is not None else -value.worst)
        kept = self.worst[name]
        if len(kept) >= WITNESSES and score <= kept[-1]["score"]:
            return
        at = min(value.at, len(rows) - 1)
        choice = max(i for i, (start, _) in enumerate(rows.choices) if start <= at)
        start, stop = rows.choices[choice]
        first = max(start, at - SHOWN // 2)
        span = slice(first, min(first + SHOWN, stop))
        witness = {
            "request_id": facts.request_id, "value": _plain(value.worst), "score": score, "position": at - start,
            "choice": choice if rows.spans else None, "first": first - start, "tokens": list(rows.tokens[span]), "texts": list(rows.reference.texts[span]), "tv_low": [_plain(x) for x in rows.tv.low[span]],
            "tv_high": [_plain(x) for x in rows.tv.high[span]],
            "reference": [_plain(x) for x in rows.reference.logprobs[span]],
            "candidate": [_plain(x) for x in rows.candidate.logprobs[span]],
        }  # fmt: skip
        self.worst[name] = sorted([*kept, witness], key=lambda w: -w["score"])[:WITNESSES]

    def witnesses(self) -> dict[str, list[dict[str, Any]]]:
        """Worst requests by cell, worst first."""
        return {k: [{n: x for n, x in w.items() if n != "score"} for w in v] for k, v in self.worst.items() if v}

    def restart(self, run: int, *, rolled_back: bool = True) -> None:
        """A new stage or a rollback: detectors and witnesses start anew.

        In a new stage the candidate is still the one whose failure is due.
        """
        with self._lock:
            self.run, self.drawn = run, Drawn()
            self.due = [] if rolled_back else [d for d in self.due if d.kind == "failed"]
            self.watcher.reset()
            for shift in self.due:
                self.watcher.took(shift)
        for name in self.worst:
            self.worst[name] = []


def _plain(x: float) -> float | str:
    return round(float(x), 9) if math.isfinite(x) else str(float(x))
