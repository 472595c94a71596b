"""The closed loop of health: no false fallback, a fall in time, a return after repair, no flapping."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from routing_cases import CONTRACT, PLAN

from kcverify.delivery.machine import HEALTH
from kcverify.routing.health import Watch, WatchedCell, Watcher, Where, watched

HOUR = 3_600_000
ERRORS = WatchedCell("errors", "L3", "safe", "binary", 0.01, 1e6, HOUR, 1000)


class Loop:
    """A route that follows its watcher, as a gateway's does; time passes a second a request."""

    def __init__(self, *cells: WatchedCell) -> None:
        self.watcher = Watcher(cells)
        self.route, self.cause, self.since, self.moves = "candidate", "", 0, list[tuple[int, str, str]]()

    def run(self, count: int, value: Callable[[], float], key: str = "errors", start: int = 0) -> None:
        for i in range(start, start + count):
            x = value()
            self.watcher.add({key: (x, x)})
            shift = self.watcher.decide(Where(self.route, self.cause, (i - self.since) * 1000))
            if shift is None:
                continue
            self.watcher.took(shift)
            back = shift.kind in ("cleared", "recovered")
            self.route, self.cause, self.since = shift.route, "" if back else shift.severity, i
            self.moves.append((i, shift.kind, shift.route))


def rate(rng: random.Random, p: float) -> Callable[[], float]:
    return lambda: float(rng.random() < p)


def test_cells_of_a_contract() -> None:
    cells, reasons = watched(CONTRACT, PLAN)
    kinds = {c.key: (c.kind, c.target, round(c.limit, 12)) for c in cells}
    assert kinds["drift"] == ("share", "guarded", 0.01)
    assert kinds["far"] == ("strict", "safe", 0.0)
    assert kinds["part on long"][:2] == ("share", "guarded")
    assert kinds["soft"] == ("mean", "candidate", 0.02)
    assert kinds["errors"] == ("binary", "safe", 0.01)
    assert {c.units for c in cells} == {1e6}
    assert "number of all requests" in reasons["speed"]


def test_clean_runs_never_fall_and_a_drift_falls_in_time() -> None:
    """`benchmarks/sequential.py`, 600 runs: 732 requests in the median until safe (90 % within 1,216), 455 until guarded."""
    until_safe, until_guarded = [], []
    for seed in range(12):
        rng, loop = random.Random(seed), Loop(ERRORS)
        loop.run(4000, rate(rng, 0.004))
        assert not [m for m in loop.moves if m[1] == "failed"], seed
        loop.moves.clear()
        loop.route, loop.cause = "candidate", ""
        loop.run(3000, rate(rng, 0.03), start=4000)
        kinds = {kind: i - 4000 for i, kind, _ in reversed(loop.moves)}
        until_safe.append(kinds["failed"])
        until_guarded.append(kinds.get("guarded", kinds["failed"]))
    assert statistics.median(until_safe) < 1000
    assert statistics.mean(until_safe) < 1000
    assert statistics.median(until_guarded) < 700
    assert all(a <= b for a, b in zip(until_guarded, until_safe, strict=True))


def test_return_after_repair_needs_dwell_requests_and_evidence() -> None:
    rng, loop = random.Random(3), Loop(ERRORS)
    loop.run(3000, rate(rng, 0.2))
    assert (loop.route, loop.cause) == ("safe", "L3")
    falls = len(loop.moves)
    loop.run(6000, rate(rng, 0.03), start=3000)
    assert (loop.route, len([m for m in loop.moves[falls:] if m[1] == "recovered"])) == ("safe", 0)
    loop.run(9000, rate(rng, 0.002), start=9000)
    assert loop.route == "candidate"
    at = next(i for i, kind, _ in loop.moves[falls:] if kind == "recovered")
    assert at - 9000 >= 1000
    assert len(loop.moves) <= falls + 3, "the route flaps"


def test_the_word_of_the_contract_decides_how_far_a_clause_goes() -> None:
    """`guard` stays at the guarded kernel at health 0 and needs proof to return; `rollback` passes it on its way to safe."""
    for target, path in (("guarded", ["guarded", "guarded"]), ("safe", ["guarded", "safe"])):
        cell = WatchedCell("errors", "L2", target, "binary", 0.01, 1e6, 0, 200)
        rng, loop = random.Random(4), Loop(cell)
        loop.run(3000, rate(rng, 0.03))
        assert [route for _, _, route in loop.moves] == path
        assert (loop.moves[-1][1], loop.cause) == ("failed", "L2")


def test_the_health_of_what_is_only_logged_follows_the_present() -> None:
    loop = Loop(WatchedCell("errors", "L1", "candidate", "binary", 0.01, 1e4))
    loop.run(60, lambda: 1.0)
    assert loop.watcher.health() == {"errors": 0.0}
    loop.run(20_000, lambda: 0.0)
    assert loop.watcher.health() == {"errors": 1.0}
    assert not loop.moves


def test_a_precaution_ends_by_health_alone() -> None:
    loop = Loop(ERRORS)
    values = iter([1.0] * 3 + [0.0] * 3000)
    loop.run(3003, lambda: next(values))
    assert [kind for _, kind, _ in loop.moves] == ["guarded", "cleared"]
    assert loop.moves[0][0] < 3 < loop.moves[1][0]


def test_a_clause_without_exception_fails_at_once_and_returns_after_clean_requests() -> None:
    far = WatchedCell("far", "L3", "safe", "strict", 0.0, 1e6, 0, 100)
    loop = Loop(far)
    values = iter([0.0] * 5 + [1.0] + [0.0] * 50 + [1.0] + [0.0] * 120)
    loop.run(177, lambda: next(values), "far")
    assert loop.moves == [(5, "failed", "safe"), (156, "recovered", "candidate")]


def test_the_interval_decides_each_side_by_its_own_end() -> None:
    """A value that is not known neither fails the clause nor brings it back."""
    watch = Watch(WatchedCell("drift", "L3", "safe", "share", 0.01, 1e4, 0, 10))
    for _ in range(5000):
        watch.add(0.0, 1.0)
    assert watch.health == 1.0
    watch.trip()
    for _ in range(5000):
        watch.add(0.0, 1.0)
    assert not watch.returned
    for _ in range(3000):
        watch.add(0.0, 0.0)
    assert watch.returned


@pytest.mark.parametrize("broken", [math.nan, math.inf, -1.0, 2.0])
def test_what_is_no_value_is_the_worst(broken: float) -> None:
    loop = Loop(ERRORS)
    loop.run(60, lambda: broken)
    assert loop.route == "safe"
    strict = Watch(WatchedCell("far", "L3", "safe", "strict", 0.0, 1e6))
    strict.add(broken, broken)
    assert strict.health == 0.0


def test_a_restart_continues_behind_the_route() -> None:
    watcher = Watcher(watched(CONTRACT, PLAN)[0])
    watcher.resume(Where("safe", "L3", 0), ["errors"])
    assert [k for k, w in watcher.watches.items() if w.tripped] == ["errors"]
    watcher.resume(Where("safe", "L3", 0), [])
    assert sorted(k for k, w in watcher.watches.items() if w.tripped) == ["errors", "far"]
    watcher.resume(Where("guarded", HEALTH, 0), ["errors"])
    assert not any(w.tripped for w in watcher.watches.values())
