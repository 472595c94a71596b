"""A store that others move, replace, damage or hold while a gateway runs: nothing is lost silently, the problem is told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kcverify import driver
from kcverify.delivery import promotion
from kcverify.delivery.machine import plan_of
from kcverify.diagnostics import InputError
from kcverify.gateway import keeper as keepers
from kcverify.gateway.cells import Facts
from kcverify.gateway.core import Gateway
from kcverify.gateway.keeper import Keeper
from kcverify.gateway.settings import Settings, checked_urls
from kcverify.routing.health import Shift, Watcher, Where, watched
from kcverify.source import Source

pytestmark = pytest.mark.needs("torch")
TEXT = """contract held version "1"
runtime { errors: failure_rate <= 1% -> L1; slow: p99 latency <= 1 s -> L2 }
escalate {
  L1 -> rollback, false_alarm_every 1_000 requests, recover 5 requests
  L2 -> rollback, false_alarm_every 1_000 requests, recover 5 requests
}
promote { shadow { for 0 s }; canary { traffic 1%, 5% }; full { stable 0 s } }
"""
MADE = driver.load_source(Source("held.kc", TEXT)).contracts[0]
NOBODY = checked_urls({"reference": "http://127.0.0.1:9", "candidate": "http://127.0.0.1:10"})


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every earlier process has ended; nobody is waited for."""
    monkeypatch.setattr(Keeper, "_gone", lambda self, writer, at: True)
    monkeypatch.setattr(keepers, "STORE_SECONDS", 0.05)


async def opened(path: Path) -> Gateway:
    gateway = Gateway(MADE, Settings(NOBODY, "salt"), str(path))

    async def nobody(upstream: object) -> None:
        """No upstream is asked."""

    gateway._meet = nobody  # type: ignore[assignment,method-assign]
    await gateway.open()
    for task in gateway._tasks:
        task.cancel()
    return gateway


def ask(gateway: Gateway, count: int, **seen: Any) -> list[Shift]:
    """Measured requests; the moves that they decide, of which nobody is told."""
    found = []
    for i in range(count):
        facts = Facts(f"r{i}", gateway.state.run, 1.0, unscored=True, observed={"failed": False, "latency": 0.1} | seen)
        shift = gateway.guard.add(facts, gateway.where).shift
        found += [] if shift is None else [shift]
    return found


async def failed(gateway: Gateway) -> Shift:
    """A failure that is decided and not recorded."""
    return next(s for s in ask(gateway, 30, failed=True) if s.kind == "failed")


def lives(scene: Callable[[Path], Awaitable[None]], tmp_path: Path) -> None:
    asyncio.run(scene(tmp_path / "s.db"))  # type: ignore[arg-type]


def kinds(gateway: Gateway) -> list[str]:
    return [e["kind"] for e in gateway.events]


@pytest.mark.parametrize("to", ["canary 1/2", "canary 2/2"])
def test_a_promotion_between_alarm_and_record_loses_no_failure(to: str, tmp_path: Path) -> None:
    async def scene(path: Path) -> None:
        gateway = await opened(path)
        with promotion.start(str(path), MADE, 0) as other:
            if to == "canary 2/2":
                other.append("promoted", {"to": "canary 1/2", "carried": {}}, other.state().at)
                await gateway.take()
            found = await failed(gateway)
            other.append("promoted", {"to": to, "carried": {}}, other.state().at)
        await gateway.shift(found)
        assert gateway.state.route == gateway.router.table.route == "safe" and gateway.state.position == to
        assert kinds(gateway).count("failed") == 1 and gateway.guard.watcher.watches["errors"].tripped
        await gateway.close()

    lives(scene, tmp_path)


def test_a_rollback_between_alarm_and_record_ends_it(tmp_path: Path) -> None:
    async def scene(path: Path) -> None:
        gateway = await opened(path)
        found = await failed(gateway)
        with promotion.start(str(path), MADE, 0) as other:
            promotion.rollback(other, other.state().at)
        await gateway.shift(found)
        assert "failed" not in kinds(gateway) and gateway.state.run == 2
        assert gateway.router.table.route == "candidate" and not gateway.guard.due
        await gateway.close()

    lives(scene, tmp_path)


@pytest.mark.parametrize("seen_before", [False, True])
def test_no_return_over_a_failure_that_others_recorded(seen_before: bool, tmp_path: Path) -> None:
    async def scene(path: Path) -> None:
        gateway = await opened(path)
        await gateway.shift(await failed(gateway))
        back = next(s for s in ask(gateway, 3000) if s.kind == "recovered")
        with promotion.start(str(path), MADE, 0) as other:
            promotion.failed(other, "L2", other.state().at, "slow", cells=["slow"], writer="another")
        if seen_before:
            await gateway.take()
        await gateway.shift(back)
        assert gateway.state.route == gateway.router.table.route == "safe" and not gateway.guard.due
        assert [n for n, w in gateway.guard.watcher.watches.items() if w.tripped] == ["errors", "slow"]
        await gateway.close()

    lives(scene, tmp_path)


def test_a_move_that_was_recorded_before_the_end_is_not_recorded_again(tmp_path: Path) -> None:
    """The process ends behind its record, another one brings the candidate back, and only then the next life begins."""

    async def scene(path: Path) -> None:
        gateway = await opened(path)
        found = await failed(gateway)
        await gateway.flush()
        for shift in list(gateway.guard.due):
            await gateway.keeper.call(gateway.keeper.shift, shift, gateway.state, {})
        assert found is shift
        await gateway.keeper.close()
        with promotion.start(str(path), MADE, 0) as other:
            promotion.recovered(other, 100, other.state().at, writer="another")
        second = await opened(path)
        assert kinds(second).count("failed") == 1 and second.state.route == second.router.table.route == "candidate"
        await second.close()

    lives(scene, tmp_path)


def test_moves_of_others_cost_no_evidence(tmp_path: Path) -> None:
    """A precaution of another gateway came and went: what this one has seen of its own detectors stays."""

    async def scene(path: Path) -> None:
        gateway = await opened(path)
        ask(gateway, 1, failed=True)
        before = gateway.guard.watcher.health()
        with promotion.start(str(path), MADE, 0) as other:
            promotion.guarded(other, other.state().at, "low", writer="another")
            await gateway.take()
            promotion.cleared(other, other.state().at, "high", writer="another")
        await gateway.take()
        assert gateway.guard.watcher.health() == before and before["errors"] < 1.0
        await gateway.close()

    lives(scene, tmp_path)


def test_a_failure_without_a_way_back_is_not_ended_by_the_answer_to_another() -> None:
    text = TEXT.replace("L1 -> rollback, false_alarm_every 1_000 requests, recover 5 requests", "L1 -> rollback")
    made = driver.load_source(Source("held.kc", text)).contracts[0]
    watcher = Watcher(watched(made, plan_of(made))[0])
    watcher.resume(Where("safe", "L2", 0), ["errors", "slow"])
    found = []
    for _ in range(3000):
        watcher.add({"errors": (0.0, 0.0), "slow": (0.0, 0.0)})
        found.append(watcher.decide(Where("safe", "L2", 10**9)))
    assert not any(found)
    watcher.watches["errors"].reset()
    assert watcher.decide(Where("safe", "L2", 10**9)) is not None


def gone(path: Path) -> None:
    for name in (path, *path.parent.glob("s.db-*")):
        name.unlink(missing_ok=True)


def test_a_store_that_is_gone_is_told_and_waited_for(tmp_path: Path) -> None:
    async def scene(path: Path) -> None:
        gateway = await opened(path)
        ask(gateway, 5)
        await gateway.flush()
        await gateway.shift(await failed(gateway))
        assert gateway.state.route == "safe"
        gone(path)
        ask(gateway, 5)
        assert not await gateway.flush() and "holds no store" in gateway.problem
        assert await gateway.evidence() == []
        with promotion.start(str(path), MADE, 0) as other:
            assert other.state().route == "candidate"
        assert await gateway.flush()
        await gateway.take()
        await gateway._overdue()
        assert gateway.state.route == gateway.router.table.route == "safe", (
            "the failure is known, whatever the file says"
        )
        assert kinds(gateway) == ["started", "failed"] and gateway.counts["store_replaced"] == 1
        cells = {c["clause"]: c["requests"] for c in await gateway.evidence()}
        assert cells["errors"] >= 5 and gateway.unwritten is None
        await gateway.close()

    lives(scene, tmp_path)


def test_a_damaged_page_is_read_again_after_its_repair(tmp_path: Path) -> None:
    async def scene(path: Path) -> None:
        gateway = await opened(path)
        ask(gateway, 5)
        await gateway.flush()
        raw = sqlite3.connect(path)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\x5a" * (len(whole) - 4096))
        ask(gateway, 5)
        assert not await gateway.flush() and gateway.unwritten is not None
        known = gateway.problem
        assert known and await gateway.evidence() is not None
        with path.open("r+b") as file:
            file.write(whole)
        assert await gateway.flush()
        await gateway.take()
        cells = {c["clause"]: c["requests"] for c in await gateway.evidence()}
        assert cells["errors"] == 10
        await gateway.close()

    lives(scene, tmp_path)


def test_a_store_that_is_held_delays_neither_status_nor_end(tmp_path: Path) -> None:
    async def scene(path: Path) -> None:
        gateway = await opened(path)
        ask(gateway, 5)
        assert (await gateway.evidence())[0]["requests"] == 5
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        found = await failed(gateway)
        await gateway.shift(found)
        assert gateway.router.table.route == "safe" and gateway.state.route == "candidate"
        assert not await gateway.flush() and "held by other processes" in gateway.problem
        assert (await gateway.evidence())[0]["requests"] == 5
        other.rollback()
        other.close()
        await gateway.close()
        assert gateway.unwritten is None
        with promotion.start(str(path), MADE, 0) as left:
            assert left.state().route == "safe" and left.evidence(1)[0] == 35

    lives(scene, tmp_path)


def test_what_could_not_be_written_at_the_end_is_told(tmp_path: Path) -> None:
    async def scene(path: Path) -> None:
        gateway = await opened(path)
        ask(gateway, 5)
        gone(path)
        await gateway.close()
        assert isinstance(gateway.unwritten, InputError)

    lives(scene, tmp_path)
