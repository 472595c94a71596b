"""What a gateway shows and keeps of its evidence: counters of every unit, detectors that a restart does not forget."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from kcverify import driver
from kcverify.delivery import promotion
from kcverify.delivery.evidence import of_records
from kcverify.delivery.machine import plan_of
from kcverify.exporters import names
from kcverify.gateway.cells import Facts
from kcverify.gateway.guard import Guard
from kcverify.gateway.keeper import GONE_MILLISECONDS, Clock, Keeper
from kcverify.gateway.metrics import Metrics
from kcverify.gateway.observed import listed
from kcverify.routing.health import Watcher, Where, watched
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.sequential import SCALE
from kcverify.source import Source

TEXT = """contract kept version "1"
assume { temperature = 1; vocabulary = 40; independent tokens }
slice code = tag("code")
numerical {
  share:  tv <= 0.1 except 5%             -> L2
  gap:    mean tv <= 0.1 on code          -> L2
  tokens: tv <= 0.3 except 0.5% unit token -> L2
}
runtime { errors: failure_rate <= 1% -> L2 }
escalate { L2 -> guard, false_alarm_every 1_000 requests, recover 10 requests }
promote { shadow { for 0 s }; full { stable 0 s } }
"""
MADE = driver.load_source(Source("kept.kc", TEXT)).contracts[0]
CELLS = watched(MADE, plan_of(MADE), 1.0)[0]
WHERE = Where("candidate", "", 0)


def facts(i: int, **more: object) -> Facts:
    observed = {"failed": bool(more.pop("failed", False)), "latency": 0.1}
    return Facts(f"r{i}", 1, 1.0, **{"observed": observed, "unscored": True, **more})  # type: ignore[arg-type]


def test_counters_are_the_sums_of_the_evidence_invalid_units_included() -> None:
    guard, metrics = Guard(MADE, CELLS), Metrics("kept")
    metrics.declare(guard.cells, CELLS, lambda: guard.totals)
    for i in range(6):
        guard.add(facts(i, failed=i == 0), WHERE)
    guard.add(facts(6, broken=True, unscored=False, tags=frozenset({"code"})), WHERE)
    guard.add(facts(7, missing="no ids", unscored=False, tags=frozenset()), WHERE)
    (_, requests, records), *_ = guard.take()[0]
    assert requests == 8 and not guard.take()[0], "what was taken is gone, what is shown stays"
    found = {(s.name, *(s.labels[k] for k in names.LABELS), s.labels.get("side"), s.labels.get("bet")): s.value
             for family in metrics.registry.collect() for s in family.samples if "contract" in s.labels}  # fmt: skip

    def shown(name: str, clause: str, slice: str = "") -> float:
        return found[name, "kept", clause, slice, None, None]

    assert (shown(names.OBSERVATIONS, "errors"), shown(names.EXCEEDANCES, "errors")) == (8, 1)
    assert (shown(names.OBSERVATIONS, "share"), shown(names.INVALID, "share"), shown(names.MISSING, "share")) == (
        1,
        1,
        1,
    )
    assert (shown(names.OBSERVATIONS, "tokens"), shown(names.EXCEEDANCES, "tokens")) == (1, 1)
    assert shown(names.INVALID, "gap", "code") == 1
    for bet, value in enumerate(records["share"].wealth.above):
        assert found[names.LOG_WEALTH, "kept", "share", "", "above", str(bet)] == value / SCALE
    assert {key[2] for key in found if key[0] == names.LOG_WEALTH} == {"share", "gap"}
    verdicts = {c.clause: c.verdict for c in of_records("s", MADE, requests, records).cells}
    assert verdicts["share"] == verdicts["gap"] == verdicts["tokens"] == "fail"


def test_a_watcher_goes_on_where_it_was() -> None:
    draw, one = random.Random(3), Watcher(CELLS)
    values = [{"errors": (v, v), "share": (v / 2, v)} for v in (float(draw.random() < 0.03) for _ in range(400))]
    for value in values[:200]:
        one.add(value)
    two = Watcher(CELLS)
    two.load_state_dict(one.state_dict())
    for value in values[200:]:
        one.add(value)
        two.add(value)
    assert one.health() == two.health() and min(one.health().values()) < 1.0
    assert [w.data() for w in one.watches.values()] == [w.data() for w in two.watches.values()]
    with pytest.raises(KeyError):
        two.load_state_dict({"since": 0, "cells": {}})
    wrong = one.state_dict()
    wrong["cells"]["errors"]["detectors"][0]["settings"][2] = 0.5
    with pytest.raises(MonitorInputError):
        two.load_state_dict(wrong)


def test_detectors_are_taken_over_once_and_from_the_dead_alone(tmp_path: Path) -> None:
    path, host = str(tmp_path / "s.db"), socket.gethostname()
    now = Clock().now()
    with promotion.start(path, MADE, now - 60_000) as store:
        for number, (writer, at) in enumerate(
            [
                (f"gateway-{host}-{os.getppid()}-1", now),  # alive
                (f"gateway-{host}-999999999-1", now - 2_000),  # this process number cannot be
                ("gateway-elsewhere-5-1", now - 2 * GONE_MILLISECONDS),
                ("gateway-elsewhere-6-1", now),  # may be alive
            ]
        ):
            store.add(1, writer, 1, 1, {}, (at, {"number": number}))
    keeper = Keeper(path, MADE, Clock())
    assert [keeper.watch() for _ in range(3)] == [({"number": 1}, []), ({"number": 2}, []), None]
    with promotion.start(path, MADE, now) as store:
        store.add(1, f"gateway-{host}-999999999-1", 2, 1, {}, (now, {"number": 4}))
        promotion.rollback(store, now)
    assert keeper.watch() is None, "what was seen before a rollback says nothing about what comes now"


def sampled(guard: Guard, numbers: range, factor: float = 1.0) -> None:
    """Answers of one token, drawn at a temperature of `factor`."""
    for i in numbers:
        rng = np.random.default_rng(i)
        logits = rng.normal(size=40) * 3
        logs = logits - np.logaddexp.reduce(logits)
        token = int(np.argmax(logits / factor + rng.gumbel(size=40)))
        row = [(j, float(x)) for j, x in enumerate(logs)]
        guard.sampled(1, {"seed": i}, [(listed([float(logs[token])], [row], 40), (token,))], 1e-5, 40)
        guard.add(facts(i), WHERE)


def flushed(keeper: Keeper, guard: Guard) -> None:
    waiting, state, draws = guard.take()
    for run, requests, records in waiting:
        assert keeper.add(run, requests, records, {"route": "candidate", "cause": "", **state}, draws)


def resumed(keeper: Keeper) -> Guard:
    left = keeper.watch()
    assert left is not None
    guard = Guard(MADE, CELLS, 1)
    guard.watcher.load_state_dict(left[0]["watcher"])
    guard.drawn.load_state_dict(left[0]["drawn"], left[1])
    return guard


def test_the_watch_of_the_sampler_is_kept_whatever_ends_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lives that end without a word, the second before it has written anything: the third is where the first was."""
    path = str(tmp_path / "s.db")
    first, guard = Keeper(path, MADE, Clock()), Guard(MADE, CELLS, 1)
    sampled(guard, range(40), 1.6)
    flushed(first, guard)
    sampled(guard, range(40, 60), 1.6)
    flushed(first, guard)
    monkeypatch.setattr(Keeper, "_gone", lambda self, writer, at: True)
    assert resumed(Keeper(path, MADE, Clock())).drawn.watch.seen == 60
    keeper = Keeper(path, MADE, Clock())
    again = resumed(keeper)
    assert again.drawn.state_dict() == guard.drawn.state_dict() and guard.drawn.watch.log_e > 0.0
    for one in (guard, again):
        sampled(one, range(50, 80), 1.6)  # ten of them were there before
    assert again.drawn.state_dict() == guard.drawn.state_dict() and again.drawn.watch.seen == 80
    flushed(keeper, again)
    assert keeper.store.draws(1, keeper.writer) == [*range(60), *range(60, 80)]
    promotion.rollback(keeper.store, Clock().now() + 1000)
    assert Keeper(path, MADE, Clock()).watch() is None


def test_what_could_not_be_written_waits_on() -> None:
    guard = Guard(MADE, CELLS, 1)
    sampled(guard, range(5))
    waiting, _, draws = guard.take()
    assert draws == ([0, 1, 2, 3, 4], 0)
    guard.give_back(*waiting[0], draws)
    assert guard.take()[::2] == (waiting, draws)
    guard.restart(2)
    guard.give_back(*waiting[0], draws)
    assert guard.take()[2] == ([], 0), "the seeds of a run that has ended"


def test_a_store_without_the_newer_tables_opens(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    promotion.start(str(path), MADE, 1000).close()
    with contextlib.closing(sqlite3.connect(path)) as old, old:
        old.execute("DROP TABLE watches")
        old.execute("DROP TABLE draws")
    keeper = Keeper(str(path), MADE, Clock())
    assert keeper.watch() is None
    guard = Guard(MADE, CELLS, 1)
    sampled(guard, range(3))
    flushed(keeper, guard)
    assert keeper.store.draws(1, keeper.writer) == [0, 1, 2]
    keeper.store.verify()


def test_a_state_of_an_earlier_version_starts_the_watch_of_the_sampler_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    body = {"route": "candidate", "cause": "", "watcher": Watcher(CELLS).state_dict()}
    with promotion.start(path, MADE, 1000) as store:
        store.add(1, f"gateway-{socket.gethostname()}-999999999-1", 1, 1, {}, (1000, body))
    assert Keeper(path, MADE, Clock()).watch() == (json.loads(json.dumps(body)), [])


def test_a_request_of_an_earlier_run_says_nothing_of_the_health_of_this_one() -> None:
    """A backlog that is worked off after a rollback belongs to the run it was asked in."""
    guard = Guard(MADE, CELLS, 2)
    before = guard.watcher.state_dict()
    for i in range(50):
        guard.add(facts(i, failed=True), WHERE)
    assert guard.watcher.state_dict() == before
    assert guard.take()[0][0][:2] == (1, 50), "its evidence is that of its own run"
    guard.restart(1)
    guard.add(facts(50, failed=True), WHERE)
    assert guard.watcher.state_dict() != before
