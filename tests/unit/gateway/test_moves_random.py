"""Random lives of a gateway: alarms, returns, moves of others, a store that refuses, and its memory lost at every await."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcverify import driver
from kcverify.delivery import promotion
from kcverify.delivery.machine import ROUTES
from kcverify.delivery.store import Store
from kcverify.diagnostics import InputError, input_error
from kcverify.gateway.cells import Facts
from kcverify.gateway.core import Gateway
from kcverify.gateway.keeper import Keeper
from kcverify.gateway.settings import Settings, checked_urls
from kcverify.routing.health import Shift
from kcverify.source import Source

pytestmark = pytest.mark.needs("torch")
TEXT = """contract lives version "1"
runtime { errors: failure_rate <= 1% -> L1; slow: p99 latency <= 1 s -> L2 }
escalate {
  L1 -> guard, false_alarm_every 1_000 requests, recover 5 requests
  L2 -> rollback, false_alarm_every 1_000 requests, recover 5 requests
}
promote { shadow { for 0 s }; canary { traffic 1%, 5% }; full { stable 0 s } }
"""
MADE = driver.load_source(Source("lives.kc", TEXT)).contracts[0]
NOBODY = checked_urls({"reference": "http://127.0.0.1:9", "candidate": "http://127.0.0.1:10"})
RETURNED = ("recovered", "rolled_back")


class Killed(BaseException):
    """The process ends here."""


class Life:
    """One store, the gateway on it, and what must not be forgotten of what it decided."""

    def __init__(self, path: Path, seed: int, kill_at: int) -> None:
        self.path, self.draw, self.kill_at = str(path), random.Random(seed), kill_at
        self.points = self.number = 0
        self.refuses = False
        self.decided: list[tuple[Shift, int]] = []
        self.other = promotion.start(self.path, MADE, 0)

    async def call(self, keeper: Keeper, work: Callable[..., Any], *arguments: Any) -> Any:
        """`Keeper.call` in one thread: the process may end before and behind each of them."""
        self.point()
        if self.refuses and work.__name__ in ("add", "shift", "known", "state"):
            raise input_error("store_busy", path=self.path, seconds=1)
        found = work(*arguments)
        self.point()
        return found

    def point(self) -> None:
        self.points += 1
        if self.points == self.kill_at:
            raise Killed

    def events(self) -> list[Any]:
        return list(self.other.events())

    async def opened(self) -> None:
        self.gateway = Gateway(MADE, Settings(NOBODY, "salt"), self.path)
        self.gateway._meet = nobody  # type: ignore[method-assign]
        await self.gateway.open()
        for task in self.gateway._tasks:
            task.cancel()

    async def killed(self) -> None:
        """Start again. What was neither recorded nor written beside the evidence was in the memory alone."""
        store, self.refuses = self.gateway.keeper._store, False
        if store is not None:
            store.close()
        left = self.other._db.execute("SELECT body FROM watches").fetchall()
        kept = "".join(body for (body,) in left) + "".join(str(e.body.get("mark")) for e in self.events())
        self.decided = [pair for pair in self.decided if pair[0].mark in kept]
        await self.opened()

    async def traffic(self, count: int, bad: float, clause: str) -> None:
        for _ in range(count):
            wrong, self.number = self.draw.random() < bad, self.number + 1
            seen = {"failed": wrong and clause == "errors", "latency": 9.0 if wrong and clause == "slow" else 0.1}
            gateway = self.gateway
            facts = Facts(f"r{self.number}", gateway.state.run, 1.0, unscored=True, observed=seen, at=self.number)
            where = gateway.where if self.draw.random() < 0.9 else self.where  # a thread may know an earlier one
            self.where = gateway.where
            found = gateway.guard.add(facts, where).shift
            if found is not None:
                self.decided += [(found, gateway.state.seq)] if found.kind == "failed" else []
                self.point()
                await gateway.shift(found)

    async def step(self) -> None:
        """Anything that can happen next."""
        draw, clause = self.draw, self.draw.choice(("errors", "slow"))
        what = draw.choice(("bad", "good", "good", "flush", "tick", "tick", "other", "refuse"))
        if what == "bad":
            await self.traffic(draw.choice((1, 4)), 1.0, clause)
        elif what == "good":
            await self.traffic(40, 0.0, clause)
        elif what == "flush":
            await self.gateway.flush()
        elif what == "tick":
            await self.ticked()
        elif what == "other":
            self.others(clause)
        else:
            self.refuses = not self.refuses

    async def ticked(self) -> None:
        await self.gateway.flush()
        try:
            await self.gateway.take()
        except InputError:
            return
        await self.gateway._overdue()

    def others(self, clause: str) -> None:
        """A move of another process; what the state does not allow does not happen."""
        store, state = self.other, self.other.state()
        more = {"cells": [clause], "writer": "another"}
        moves: list[Callable[[], Any]] = [
            lambda: promotion.failed(store, "L1" if clause == "errors" else "L2", state.at, "bad", **more),
            lambda: promotion.recovered(store, 100, state.at, "good", writer="another"),
            lambda: promotion.guarded(store, state.at, "low", writer="another"),
            lambda: promotion.cleared(store, state.at, "high", writer="another"),
            lambda: promotion.paused(store, state.at, on=self.draw.random() < 0.5),
            lambda: promotion.rollback(store, state.at),
            lambda: store.append("promoted", {"to": state.plan.next(state.position), "carried": {}}, state.at),
        ]
        try:
            self.draw.choice(moves)()
        except InputError:
            return

    def live(self) -> list[Shift]:
        """Decided failures that nothing has undone."""
        events, due = self.events(), {shift.mark for shift in self.gateway.guard.due}
        out = []
        for shift, seq in self.decided:
            at = next((e.seq for e in events if e.body.get("mark") == shift.mark), None)
            over = ("rolled_back",) if at is None and shift.mark in due else RETURNED
            if not any(e.kind in over and e.seq > (at or seq) for e in events):
                out.append(shift)
        return out

    def check(self) -> None:
        """Nothing forgotten, nothing twice, nothing less safe."""
        marks = [e.body["mark"] for e in self.events() if e.body.get("mark")]
        assert len(set(marks)) == len(marks)
        table, recorded = self.gateway.router.table, self.gateway.state.route
        assert ROUTES.index(table.route) >= ROUTES.index(recorded)
        for shift in self.live():
            watch = self.gateway.guard.watcher.watches[shift.cells[0]]
            assert ROUTES.index(table.route) >= ROUTES.index(watch.cell.target), shift
            assert watch.tripped or any(d.returns for d in self.gateway.guard.due), shift
        if recorded == "candidate" and not self.gateway.guard.due:
            assert not any(w.tripped for w in self.gateway.guard.watcher.watches.values()), "it would not fail again"

    async def lived(self, steps: int) -> None:
        try:
            await self.opened()
        except Killed:
            await self.killed()
        self.where = self.gateway.where
        for number in range(steps + 1):
            try:
                if number < steps:
                    await self.step()
                else:
                    self.refuses = False
                    await self.ticked()
            except Killed:
                await self.killed()
            self.check()
        assert not self.gateway.guard.due and self.gateway.state == self.other.state()
        assert self.gateway.router.table.route == ("safe" if self.gateway.state.paused else self.gateway.state.route)
        await self.ended()

    async def ended(self) -> None:
        self.other.checked()
        self.kill_at = 0
        await self.gateway.close()
        self.other.close()


async def nobody(upstream: object) -> None:
    """No upstream is asked."""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int, int], Life]:
    """Lives whose stores do not wait for the disk, and whose earlier processes have ended."""
    monkeypatch.setattr(Keeper, "_gone", lambda self, writer, at: True)
    opening = Store._open

    def quick(self: Store, *given: Any) -> None:
        opening(self, *given)
        self._db.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(Store, "_open", quick)

    def made(path: Path, seed: int, kill_at: int) -> Life:
        life = Life(path, seed, kill_at)
        monkeypatch.setattr(Keeper, "call", lambda keeper, work, *given: life.call(keeper, work, *given))
        return life

    return made


STEPS = 30


@pytest.mark.parametrize("seed", range(4))
def test_nothing_decided_is_forgotten_wherever_the_process_ends(
    seed: int, alone: Callable[[Path, int, int], Life], tmp_path: Path
) -> None:
    async def lives() -> None:
        kill_at = points = 1
        while kill_at <= points:
            life = alone(tmp_path / f"{kill_at}.db", seed, kill_at)
            try:
                await life.lived(STEPS)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, killed at {kill_at} of {life.points}: {error}") from error
            points, kill_at = life.points, kill_at + 11

    asyncio.run(lives())
