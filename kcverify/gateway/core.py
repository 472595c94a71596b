"""The gateway: everything that one process holds, and the moves of its route."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kcverify.delivery.machine import HEALTH, ROUTES
from kcverify.delivery.state import State
from kcverify.diagnostics import InputError
from kcverify.elaborate.contract import Contract
from kcverify.gateway.cells import temperature_of
from kcverify.gateway.guard import Guard
from kcverify.gateway.keeper import EVENTS_KEPT, MOVES, STORE_SECONDS, Clock, Keeper, failing
from kcverify.gateway.log import RequestLog
from kcverify.gateway.metrics import Metrics
from kcverify.gateway.observed import Claims
from kcverify.gateway.origin import provenance
from kcverify.gateway.settings import Settings
from kcverify.gateway.upstream import Fault, Upstream
from kcverify.routing.health import Shift, Where, watched
from kcverify.routing.table import Router, RouteTable, table_of
from kcverify.runtime.errors import MonitorInputError

TICK_SECONDS = 1.0
"""Evidence is written, and the state of others read, this often."""


class Gateway:
    """One process in front of its upstreams. `state` is the store's as far as this process knows it."""

    def __init__(self, contract: Contract, settings: Settings, store: str) -> None:
        self.contract, self.settings = contract, settings
        self.clock = Clock()
        self.keeper = Keeper(store, contract, self.clock)
        self.upstreams = _upstreams(settings)
        self.metrics = Metrics(contract.name)
        self.log = RequestLog(settings.log)
        self.counts: Counter[str] = Counter()
        self.void: Counter[str] = Counter()
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.first: dict[int, tuple[Claims, Claims]] = {}
        self.started = self.clock.now()
        self.since_left: dict[str, int] = {}
        self.problem = ""
        self.unwritten: InputError | None = None
        self._evidence: list[dict[str, Any]] = []
        self.closing = False
        self._left = time.monotonic()
        self._left_before = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._moving, self._flushing = asyncio.Lock(), asyncio.Lock()

    async def open(self) -> None:
        """Open the store, take its route, meet the upstreams. Raises InputError where the store cannot be used."""
        self.state, events = await self.keeper.call(self.keeper.known)
        self.events.extend(events)
        cells, self.not_watched = watched(
            self.contract, self.state.plan, temperature_of(self.contract.assumptions.temperature)
        )
        self.guard = Guard(self.contract, cells, self.state.run)
        self.metrics.declare(self.guard.cells, cells, lambda: self.guard.totals)
        self._resumed(await self.keeper.call(self.keeper.watch))
        self.router = Router(self._table())
        self._in_force()
        await self._overdue()
        await asyncio.gather(*(self._meet(u) for u in set_of(self.upstreams)))
        self._tasks = [asyncio.create_task(self._tick(), name="tick")]

    async def close(self) -> None:
        """Write what is left and stop, not in the middle of a write."""
        self.closing = True
        async with self._flushing, self._moving:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._overdue()
        await self.flush()
        for upstream in set_of(self.upstreams):
            await upstream.client.aclose()
        self.log.close()
        await self.keeper.close()

    def upstream(self, role: str) -> Upstream:
        """The server of a role."""
        return self.upstreams[role]

    # -- the route -------------------------------------------------------------------------------------------------

    @property
    def where(self) -> Where:
        """Route, what it was left for, how long this process has known it, added to what was before (ms)."""
        stayed = int((time.monotonic() - self._left) * 1000) + self._left_before
        state = self.state
        return Where(state.route, state.cause, stayed)

    def _table(self, route: str | None = None, reason: str = "") -> RouteTable:
        health = {k: round(v, 4) for k, v in self.guard.watcher.health().items()}
        return table_of(self.contract, self.state, salt=self.settings.salt, route=route, reason=reason, health=health)

    def _resumed(self, left: tuple[Mapping[str, Any], list[int]] | None) -> None:
        """Continue behind the store's route, with the detectors of a process that left it so.

        The time that the route has lasted is the smaller of both clocks' accounts.
        """
        self._left, self._left_before = time.monotonic(), max(0, self.clock.now() - self.state.route_since)
        body, seeds = ({}, []) if left is None else left
        try:
            due = [Shift(**{**d, "cells": tuple(d["cells"])}) for d in body.get("due", ())]
            if "watcher" in body:
                self.guard.load(body["watcher"], [d for d in due if not d.returns])
        except (MonitorInputError, AttributeError, KeyError, TypeError, ValueError):
            self.guard.restart(self.state.run)
            self.counts["detectors_unreadable"] += 1
        self.guard.resume(self.where, failing(list(self.events)))
        if "drawn" in body:
            try:
                self.guard.drawn.load_state_dict(body["drawn"], seeds)
            except (KeyError, TypeError, ValueError):
                self.counts["detectors_unreadable"] += 1

    def swap(self, table: RouteTable) -> None:
        """Put a table in force."""
        before = self.router.swap(table)
        if (before.route, before.position) != (table.route, table.position):
            self.metrics.moved(table)

    async def shift(self, shift: Shift) -> None:
        """Make a move that health asks for: the safer route first, then the event, then what the store says.

        What the store did not take stays due, and its safer route in force.
        """
        if any(shift is d for d in self.guard.due) and _safer(shift.route, self.router.table.route):
            self.swap(self._table(shift.route, shift.reason))
        await self._overdue()

    async def _overdue(self) -> bool:
        """Record what is due in its order, as far as the store takes it; whether it took all."""
        async with self._moving:
            while self.guard.due:
                shift = self.guard.due[0]
                requests = {"requests": self.counts["requests"], "measured": self.guard.measured}
                try:
                    done = await self.keeper.call(self.keeper.shift, shift, self.state, requests)
                    await self._take(done=shift, resume=shift.returns and not done)
                except InputError as error:
                    self.problem = str(error)
                    self.counts["shifts_refused"] += 1
                    return False
                self.counts["shifts_refused"] += shift.returns and not done
        return True

    async def take(self) -> None:
        """Read the store's state and put it in force."""
        async with self._moving:
            await self._take()

    async def _take(self, *, resume: bool = False, done: Shift | None = None) -> None:
        """The same; `done` is a move that the store has now, or that is given up: then detectors `resume` behind the route."""
        before, recorded = self.state, failing(list(self.events))
        state, self.events = await self._known()
        self.state = state
        if done is not None:
            self.guard.settled(done)
        new = [e for e in self.events if e["seq"] > before.seq]
        unseen = state.seq - before.seq != len(new)
        if state.seq < before.seq or any(e["seq"] == before.seq and e["hash"] != before.hash for e in self.events):
            self.counts["store_replaced"] += 1
            self.guard.again(before.route, before.cause, recorded)
        moves = [e for e in new if e["kind"] in MOVES and e["body"].get("writer") != self.keeper.writer]
        if unseen or any(e["kind"] == "failed" for e in moves):
            self.guard.overtaken()
        if state.run != before.run:
            self.guard.restart(state.run, rolled_back=any(e["kind"] == "rolled_back" for e in moves))
        if (state.route, state.cause, state.route_since) != (before.route, before.cause, before.route_since) or resume:
            self._left, self._left_before = time.monotonic(), 0
        if moves or unseen or resume:
            self.guard.resume(self.where, failing(list(self.events)))
        self._in_force()

    def _in_force(self) -> None:
        """Put the store's route in force, or a safer one that is due."""
        reason = next((str(e["body"]["reason"]) for e in reversed(self.events) if e["body"].get("reason")), "")
        worst = max(self.guard.due, key=lambda d: ROUTES.index(d.route), default=None)
        if worst is not None and _safer(worst.route, self.state.route):
            self.swap(self._table(worst.route, worst.reason))
        else:
            self.swap(self._table(reason=reason))

    async def _known(self) -> tuple[State, deque[dict[str, Any]]]:
        state, events = await self.keeper.call(self.keeper.known)
        return state, deque(events, maxlen=EVENTS_KEPT)

    # -- the rhythm ------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Once a second: write evidence, take what others decided, look at upstreams that are down."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                written = await self.flush()
                async with self._moving:
                    state = await self.keeper.call(self.keeper.state)
                    if (state.seq, state.hash) != (self.state.seq, self.state.hash):
                        await self._take()
                if await self._overdue() and written:
                    self.problem = ""
            except InputError as error:
                self.problem = str(error)
                self.counts["store_faults"] += 1
            self.guard.remember(self.clock.now())
            self.log.flush()
            self.metrics.health(self.guard.watcher.health(), self.router.table)
            for upstream in set_of(self.upstreams):
                if upstream.health.down or not upstream.models:
                    await self._meet(upstream)

    async def flush(self) -> bool:
        """Write the evidence that waits, whether all was; what a new run has overtaken is counted as lost."""
        async with self._flushing:
            waiting, detectors, draws = self.guard.take()
            watch = {"route": self.state.route, "cause": self.state.cause, **detectors}
            self.unwritten = None
            for run, requests, records in waiting:
                try:
                    kept = await self.keeper.call(self.keeper.add, run, requests, records, watch, draws)
                    if not kept and requests:
                        self.lost("stale_run", requests)
                except InputError as error:
                    self.problem, self.unwritten = str(error), error
                    self.guard.give_back(run, requests, records, draws)
            return self.unwritten is None

    async def evidence(self) -> list[dict[str, Any]]:
        """Every cell of the current run as the store has it, or had it last: `problem` says why it does not answer."""
        keeper = self.keeper
        if not self.problem:
            await self.flush()
        try:
            async with asyncio.timeout(STORE_SECONDS):
                self._evidence = await keeper.call(keeper.evidence)
        except InputError as error:
            self.problem = str(error)
        except TimeoutError:
            self.problem = self.problem or f"the store has not answered for {STORE_SECONDS:g} s"
        return self._evidence

    async def _meet(self, upstream: Upstream) -> None:
        try:
            await upstream.learn()
        except Fault as fault:
            upstream.health.last = str(fault)

    # -- what happens to requests ----------------------------------------------------------------------------------

    def lost(self, what: str, count: int = 1) -> None:
        """A measurement that was not made, for lack of room or time: counted, never silent."""
        self.counts[f"dropped_{what}"] += count
        self.metrics.dropped.labels(what).inc(count)

    def answered(self, upstream: Upstream) -> None:
        """An upstream answered."""
        if upstream.health.answered():
            self.metrics.up(upstream.name, True)

    def failed(self, upstream: Upstream, fault: Fault) -> None:
        """An upstream did not."""
        self.counts[f"fault_{upstream.name}_{fault.kind}"] += 1
        if upstream.health.failed(str(fault)):
            self.metrics.up(upstream.name, False)

    async def identity(
        self, run: int, candidate: Claims, reference: Claims, traced: frozenset[str]
    ) -> tuple[Claims, Claims]:
        """Who both sides were first in this run, in this or another process; the first time it is recorded."""
        known = self.first.get(run)
        if known is None:
            sides = {"candidate": candidate, "reference": reference}
            told = provenance(self.contract, sides, self.settings.fingerprints, traced)
            body = {**{side: asdict(claims) for side, claims in sides.items()}, "provenance": told}
            found = await self.keeper.call(self.keeper.identity, run, body)
            known = (Claims(**found["candidate"]), Claims(**found["reference"]))
            self.first[run] = known
        return known

    @property
    def cause_is_health(self) -> bool:
        """Whether the route was left as a precaution."""
        return self.state.cause == HEALTH

    def counted(self) -> Mapping[str, int]:
        """Counters for the status."""
        return dict(sorted(self.counts.items()))


def _safer(route: str, than: str) -> bool:
    return ROUTES.index(route) > ROUTES.index(than)


def _upstreams(settings: Settings) -> dict[str, Upstream]:
    """One upstream a URL; roles that share a URL share it."""
    by_url: dict[str, Upstream] = {}
    for role, url in settings.urls.items():
        by_url.setdefault(url, Upstream.at(role, url, settings.limits))
    return {role: by_url[url] for role, url in settings.urls.items()}


def set_of(upstreams: Mapping[str, Upstream]) -> list[Upstream]:
    """Each upstream once."""
    return list({id(u): u for u in upstreams.values()}.values())
