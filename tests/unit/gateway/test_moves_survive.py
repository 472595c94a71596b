"""Moves of the route, the detectors behind them, and processes that end at the worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcverify import driver
from kcverify.diagnostics import input_error
from kcverify.gateway.cells import Facts
from kcverify.gateway.core import Gateway
from kcverify.gateway.keeper import Keeper
from kcverify.gateway.settings import Settings, checked_urls
from kcverify.routing.health import Shift
from kcverify.source import Source

pytestmark = pytest.mark.needs("torch")
TEXT = """contract moved version "1"
runtime { errors: failure_rate <= 1% -> L2 }
escalate { L2 -> rollback, false_alarm_every 1_000 requests, recover 10 requests }
promote { shadow { for 0 s }; full { stable 0 s } }
"""
MADE = driver.load_source(Source("moved.kc", TEXT)).contracts[0]
NOBODY = checked_urls({"reference": "http://127.0.0.1:9", "candidate": "http://127.0.0.1:10"})


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every earlier process has ended."""
    monkeypatch.setattr(Keeper, "_gone", lambda self, writer, at: True)


async def opened(store: Path) -> Gateway:
    gateway = Gateway(MADE, Settings(NOBODY, "salt"), str(store))
    await gateway.open()
    for task in gateway._tasks:
        task.cancel()
    return gateway


async def alarmed(gateway: Gateway) -> Shift:
    """Failures until the detector has its alarm; nothing is recorded."""
    for i in range(400):
        facts = Facts(f"r{i}", gateway.state.run, 1.0, unscored=True, observed={"failed": True, "latency": 0.1})
        found = gateway.guard.add(facts, gateway.where).shift
        if found is not None and found.kind == "failed":
            return found
        if found is not None:
            await gateway.shift(found)
    raise AssertionError("no alarm")


def killed(gateway: Gateway) -> Any:
    """What a process that ends without a word leaves: its store's file, and what it knew."""
    return gateway.keeper.call(lambda: gateway.keeper.store.close())


def detectors(gateway: Gateway) -> list[dict[str, Any]]:
    return [watch.data() for watch in gateway.guard.watcher.watches.values()]


async def _shifted(gateway: Gateway, found: Shift) -> None:
    await gateway.flush()
    await gateway.shift(found)
    await gateway.flush()


async def _recorded(gateway: Gateway, found: Shift) -> None:
    await gateway.flush()
    await gateway.keeper.call(gateway.keeper.shift, found, gateway.state, {})


async def _counted(gateway: Gateway, found: Shift) -> None:
    await gateway.flush()


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("moment", [_shifted, _recorded, _counted])
def test_an_alarm_and_its_detectors_survive_whenever_the_process_ends(
    moment: Callable[[Gateway, Shift], Any], tmp_path: Path
) -> None:
    """Evidence is written between the alarm and the move, and the process ends: after the move, before it knew, before the move."""

    async def lives() -> None:
        first = await opened(tmp_path / "s.db")
        await moment(first, await alarmed(first))
        before = detectors(first)
        assert before[0]["tripped"] and before[0]["seen"] > 0
        await killed(first)
        second = await opened(tmp_path / "s.db")
        assert detectors(second) == before
        assert second.state.route == second.router.table.route == "safe"
        assert [e["kind"] for e in second.events].count("failed") == 1
        assert not second.guard.due
        await second.flush()
        await killed(second)
        third = await opened(tmp_path / "s.db")
        assert detectors(third) == before
        await third.close()

    asyncio.run(lives())


@pytest.mark.usefixtures("gone")
def test_a_move_that_the_store_refuses_stays_in_force_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the alarm comes; the place of another process' move does not bring the candidate back."""

    def full(self: Keeper, *arguments: Any) -> Any:
        raise input_error("store_busy", path=self.path, seconds=1)

    async def life() -> None:
        gateway = await opened(tmp_path / "s.db")
        found = await alarmed(gateway)
        with monkeypatch.context() as broken:
            broken.setattr(Keeper, "shift", full)
            await gateway.shift(found)
            assert gateway.router.table.route == "safe" and gateway.state.route != "safe"
            await gateway.keeper.call(gateway.keeper.note, "looked", {})
            await gateway.take()
            assert gateway.router.table.route == "safe" and gateway.counts["shifts_refused"] == 1
        await gateway._overdue()
        assert gateway.state.route == "safe" and not gateway.guard.due
        await gateway._overdue()
        assert [e["kind"] for e in gateway.events].count("failed") == 1
        await gateway.close()

    asyncio.run(life())


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("due", [3, [{"kind": "failed"}], [{"cells": 3}], [7]])
def test_moves_that_cannot_be_read_are_counted(due: Any, tmp_path: Path) -> None:
    async def life() -> None:
        first = await opened(tmp_path / "s.db")
        body = {"route": "candidate", "cause": "", "watcher": first.guard.watcher.state_dict(), "due": due}
        await first.keeper.call(first.keeper.add, 1, 0, {}, body, ((), 0))
        await killed(first)
        second = await opened(tmp_path / "s.db")
        assert second.counts["detectors_unreadable"] == 1 and not second.guard.due
        await second.close()

    asyncio.run(life())
