"""The only hand on the store: one thread that writes evidence and events, and reads the state that others may have moved."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from kcverify.delivery import promotion
from kcverify.delivery.evidence import of_records
from kcverify.delivery.machine import HEALTH, ROUTES
from kcverify.delivery.promotion import summary
from kcverify.delivery.records import Record
from kcverify.delivery.state import State
from kcverify.delivery.store import Store
from kcverify.delivery.windows import gathered
from kcverify.diagnostics import InputError
from kcverify.elaborate.contract import Contract
from kcverify.routing.health import Shift
from kcverify.runtime.sequential import SCALE

T = TypeVar("T")
Known = tuple[State, list[dict[str, Any]]]
EVENTS_KEPT = 200
GONE_MILLISECONDS = 10_000
STORE_SECONDS = 2.0
"""How long others may keep the store to themselves before a call is given up, and made again with the next tick."""


_RETURNS = ("recovered", "cleared", "promoted", "rolled_back", "started")
MOVES = ("failed", "guarded", "recovered", "cleared", "promoted", "rolled_back")
"""Events that move the place or the route."""


def failing(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cells whose failure was recorded since the candidate was last in its place."""
    cells: list[str] = []
    for event in reversed(events):
        if event["kind"] in _RETURNS:
            break
        if event["kind"] == "failed":
            cells += event["body"].get("cells", [])
    return list(dict.fromkeys(cells))


class Clock:
    """Milliseconds since 1970 that never go back, and that a step of the machine's clock does not move."""

    def __init__(self) -> None:
        self._start, self._mono = time.time_ns() // 1_000_000, time.monotonic_ns()

    def now(self) -> int:
        """The time of this moment."""
        return self._start + (time.monotonic_ns() - self._mono) // 1_000_000

    def at_least(self, at: int) -> None:
        """Continue behind a time that a store has recorded already."""
        self._start += max(0, at - self.now())


def _mean(record: Record) -> float | None:
    """Mean over the requests of what the test of a share or a mean counts; None where there are none."""
    wealth = record.wealth
    if not wealth.requests:
        return None
    return math.inf if wealth.infinite else wealth.total / SCALE / wealth.requests


class Keeper:
    """Calls on one store, in their order, never on the thread that answers requests."""

    def __init__(self, path: str, contract: Contract, clock: Clock) -> None:
        self.path, self.contract, self.clock = path, contract, clock
        self._thread = ThreadPoolExecutor(1, "kcverify-store")
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self.writer = f"gateway-{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"
        self._number = 0

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run on the store's thread. Raises what the work raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._done, work, *arguments)

    def _done(self, work: Callable[..., T], *arguments: Any) -> T:
        """A connection that met a damaged file may remember what it read: the next call opens another."""
        try:
            return work(*arguments)
        except InputError as error:
            if error.diagnostics[0].code.slug == "store_invalid" and self._store is not None:
                self._store.close()
                self._store = None
            raise

    @property
    def store(self) -> Store:
        """The open store; on its own thread only. What is written to a file that was deleted or replaced, nobody finds: then
        it is the store that is at its place now, and none is started there a second time."""
        if self._store is not None and self._there() != self._file:
            self._store.close()
            self._store = None
        if self._store is None:
            again = self._file is not None
            self._store = self._opened() if again else promotion.start(
                self.path, self.contract, self.clock.now(), wait=STORE_SECONDS
            )  # fmt: skip
            self._file = self._there()
            state = promotion.own(self._store, self.contract)
            self.clock.at_least(state.at)
        return self._store

    def _opened(self) -> Store:
        found = Store(self.path, wait=STORE_SECONDS)
        try:
            promotion.own(found, self.contract)
        except InputError:
            found.close()
            raise
        return found

    def _there(self) -> tuple[int, int] | None:
        """Which file is at the path."""
        try:
            found = Path(self.path).stat()
        except (OSError, ValueError):
            return None
        return found.st_dev, found.st_ino

    def state(self) -> State:
        """The state as it is now."""
        state = self.store.state()
        self.clock.at_least(state.at)
        return state

    def known(self) -> Known:
        """The state and the last events, oldest first."""
        with self.store.reading():
            state = self.state()
            events = [e.data() for e in self.store.events(max(0, state.seq - EVENTS_KEPT))]
        return state, events

    def watch(self) -> tuple[Mapping[str, Any], list[int]] | None:
        """The detectors' state, and the seeds used up, that a process of this run left behind when it ended, however it ended."""
        with self.store.writing():
            return self.store.take_watch(self.state().run, self._gone, self.writer, self.clock.now())

    def _gone(self, writer: str, at: int) -> bool:
        """Whether a writer has ended: no such process on this machine, or nothing from it for long."""
        host, _, pid = writer.removeprefix("gateway-").rpartition("-")[0].rpartition("-")
        if host != socket.gethostname() or not pid.isdigit():
            return self.clock.now() - at > GONE_MILLISECONDS
        try:
            os.kill(int(pid), 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        return int(pid) == os.getpid()

    def after(self, seq: int) -> list[dict[str, Any]]:
        """Events behind a number."""
        return [e.data() for e in self.store.events(seq)]

    def add(
        self, run: int, requests: int, records: Mapping[str, Record], watch: Mapping[str, Any],
        draws: tuple[Sequence[int], int],
    ) -> bool:  # fmt: skip
        """Add evidence, and keep the detectors' state beside it; False where it belongs to a run that has ended."""
        self._number += 1
        try:
            self.store.add(run, self.writer, self._number, requests, records, (self.clock.now(), watch), draws)
        except InputError as error:
            if error.diagnostics[0].code.slug == "evidence_stale":
                return False
            self._number -= 1
            raise
        return True

    def shift(self, shift: Shift, known: State, more: Mapping[str, Any]) -> bool:
        """Record a move of the route once; whether the store has it. `known` is the state that it was decided behind.

        What a rollback has overtaken is not recorded any more, and no return that others have: a failure that `known` does
        not have may be among what they did.
        """
        store = self.store
        with store.writing():
            state = self.state()
            if shift.mark and any(e.body.get("mark") == shift.mark for e in store.events(kinds=(shift.kind,))):
                return True
            since = {event.kind for event in store.events(known.seq, MOVES)}
            if "rolled_back" in since or (shift.returns and since):
                return False
            now, facts = max(self.clock.now(), state.at), {"cells": list(shift.cells), "writer": self.writer, **more}
            return self._shifted(shift, state, now, {**facts, "mark": shift.mark})

    def _shifted(self, shift: Shift, state: State, now: int, facts: Mapping[str, Any]) -> bool:
        if shift.kind == "failed":
            if not self._answered(state, shift):
                promotion.failed(self.store, shift.severity, now, shift.reason, **facts)
        elif shift.kind == "guarded" and state.route == "candidate":
            promotion.guarded(self.store, now, shift.reason, **facts)
        elif shift.kind == "cleared" and (state.route, state.cause) == ("guarded", HEALTH):
            promotion.cleared(self.store, now, shift.reason, **facts)
        elif shift.kind == "recovered" and state.route != "candidate":
            try:
                promotion.recovered(self.store, shift.clean, now, shift.reason, **facts)
            except InputError as error:
                if error.diagnostics[0].code.slug != "transition_illegal":
                    raise
                return False
        else:
            return False
        return True

    def _answered(self, state: State, shift: Shift) -> bool:
        """Whether another process has recorded the failure of these cells, and the answer to it is in force."""
        if ROUTES.index(state.route) < ROUTES.index(shift.route):
            return False
        events = [e.data() for e in self.store.events(max(0, state.seq - EVENTS_KEPT))]
        return set(shift.cells) <= set(failing(events))

    def identity(self, run: int, claims: Mapping[str, Any]) -> Mapping[str, Any]:
        """Who both sides were first in a run; what is given, where nothing is recorded yet."""
        with self.store.writing():
            for event in self.store.events(kinds=("noted",)):
                if event.body.get("what") == "identity" and event.body.get("run") == run:
                    return dict(event.body)
            body = {"run": run, **claims}
            promotion.noted(self.store, "identity", self._at(), **body)
            return body

    def note(self, what: str, body: Mapping[str, Any]) -> State:
        """Remember something that moves nothing."""
        return promotion.noted(self.store, what, self._at(), **{**body, "writer": self.writer})

    def pause(self, on: bool, reason: str) -> State:
        """Keep traffic off the candidate, or let it back."""
        return promotion.paused(self.store, self._at(), reason, on=on)

    def rollback(self, to: str | None, reason: str) -> State:
        """Go back to an earlier place."""
        return promotion.rollback(self.store, self._at(), to=to, reason=reason)

    def gate(self) -> dict[str, Any]:
        """The gate's decision about the current stage; a crossing that is new is recorded."""
        return summary(promotion.gate_store(self.store, self.contract, [], self._at()))

    def evidence(self) -> list[dict[str, Any]]:
        """Every cell of the current run with its verdict, as the store's evidence gives it."""
        state = self.state()
        requests, records = self.store.evidence(state.run)
        found = of_records(self.path, self.contract, requests, records)
        records, _ = gathered(records)
        return [
            {
                "clause": c.clause, "slice": c.slice, "kind": c.kind, "verdict": c.verdict, "reason": c.reason,
                "requests": c.requests, "log_e_fail": c.log_e_fail, "log_e_pass": c.log_e_pass, "needed": c.needed,
                "limit": records[c.key].limit, "exceeding": records[c.key].exceeding, "rows": records[c.key].rows,
                "invalid": records[c.key].invalid, "missing": records[c.key].missing,
                "exceeding_requests": records[c.key].wealth.exceeding, "mean": _mean(records[c.key]),
            }
            for c in found.cells
        ]  # fmt: skip

    def _at(self) -> int:
        return max(self.clock.now(), self.store.state().at)

    async def close(self) -> None:
        """Give the file back."""

        def shut() -> None:
            if self._store is not None:
                self._store.close()
                self._store = None

        await self.call(shut)
        self._thread.shutdown()
