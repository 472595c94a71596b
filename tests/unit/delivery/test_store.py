"""The store: nothing recorded is lost by a kill, one of two processes wins, every change of the past is found."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from delivery_cases import HOUR, NOON, contract, feed, records
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.delivery import promotion
from kcverify.delivery.machine import plan_of
from kcverify.delivery.records import Record
from kcverify.delivery.state import State
from kcverify.delivery.store import Store
from kcverify.delivery.tables import SCHEMA
from kcverify.diagnostics import InputError
from kcverify.runtime.sequential import Wealth

LIFT = contract()
KILLS = 80


@pytest.fixture
def path(tmp_path: Path) -> Path:
    promotion.start(str(tmp_path / "s.db"), LIFT, NOON).close()
    return tmp_path / "s.db"


def full(path: Path) -> Store:
    """A store with one event of several kinds."""
    store = Store(path)
    feed(store, LIFT, 100)
    assert promotion.promote(store, LIFT, [], NOON + 1).moved
    feed(store, LIFT, 50)
    promotion.failed(store, "L2", NOON + 2, "drift")
    promotion.recovered(store, 200, NOON + HOUR)
    promotion.rollback(store, NOON + 2 * HOUR, reason="again")
    return store


def code(caught: pytest.ExceptionInfo[InputError]) -> str:
    return caught.value.diagnostics[0].code.slug


def _write_for_ever(path: Path, told: int) -> None:
    """A child: promotes, answers failures, rolls back, adds evidence; tells the number of each event that returned."""
    store = Store(path)
    while True:
        state = store.state()
        feed(store, LIFT, 60, writer=str(os.getpid()))
        if state.stage == "offline":
            after = promotion.promote(store, LIFT, [], state.at + 1).after
        elif state.route == "candidate":
            after = promotion.failed(store, "L2", state.at + 1)
        else:
            after = promotion.rollback(store, state.at + 1)
        os.write(told, b"%d %d\n" % (after.seq, store.evidence(after.run)[0]))


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing_that_was_recorded(path: Path) -> None:
    chance, seen, before = random.Random(7), 0, 0
    for _ in range(KILLS):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                _write_for_ever(path, write)
            finally:
                os._exit(9)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            told = [pipe.readline() for _ in range(chance.randrange(3))]
            time.sleep(chance.uniform(0.0, 0.02))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), "the child ended by itself"
            told += [line for line in pipe.read().splitlines(keepends=True) if line.endswith(b"\n")]
        with Store(path) as store:
            state, equal = store.rebuild()
            assert equal
            assert state == store.state()
            if told:
                assert state.seq >= int(told[-1].split()[0]) > before
                seen += len(told)
            assert state.seq >= before
            before = state.seq
    assert seen >= KILLS // 2, "the children were killed before they did anything"


RACER = """
import sys, time
sys.path.insert(0, {cases!r})
from delivery_cases import NOON, contract
from kcverify.delivery import promotion
from kcverify.delivery.store import Store
from kcverify.diagnostics import InputError
made, store = contract(), Store(sys.argv[1])
version = store.state().version
print("ready", flush=True)
sys.stdin.readline()
try:
    found = promotion.promote(store, made, [], NOON + 5, version=version)
    print("won" if found.moved else "refused")
except InputError as error:
    print(error.diagnostics[0].code.slug, error)
"""


def test_of_two_processes_one_promotes_and_the_other_is_told(path: Path) -> None:
    with Store(path) as store:
        feed(store, LIFT, 100)
    code = RACER.format(cases=str(Path(__file__).parent))
    runs = [subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=-1, stdout=-1, text=True) for _ in range(2)]
    for run in runs:
        assert run.stdout is not None and run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    answers = sorted(run.communicate(timeout=60)[0].strip() for run in runs)
    assert answers[1] == "won"
    assert answers[0].startswith(
        "stage_moved another process was first: event 3 (promoted) put the candidate in `shadow`"
    )
    with Store(path) as store:
        assert [e.kind for e in store.events()] == ["started", "decided", "promoted"]


def test_many_processes_add_evidence_and_none_is_lost(path: Path) -> None:
    children = []
    for writer in range(4):
        child = os.fork()
        if child == 0:
            store = Store(path)
            for number in range(25):
                store.add(1, f"w{writer}", number, 3, records(LIFT, 3, drift=1))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    with Store(path) as store:
        requests, found = store.evidence(1)
    assert requests == 300
    whole = records(LIFT, 3, drift=1)
    for cell, record in found.items():
        expected = whole[cell]
        for _ in range(99):
            expected = expected.plus(whole[cell])
        assert record == expected


def test_evidence_that_is_sent_twice_counts_once_and_stale_evidence_is_refused(path: Path) -> None:
    with Store(path) as store:
        assert store.add(1, "w", 5, 10, records(LIFT, 100))
        assert not store.add(1, "w", 5, 10, records(LIFT, 100))
        assert store.evidence(1)[0] == 10
        promotion.rollback(store, NOON)
        with pytest.raises(InputError) as caught:
            store.add(1, "w", 6, 1, {})
        assert code(caught) == "evidence_stale"


CHANGES = {
    "UPDATE events SET body = replace(body, 'drift', 'other') WHERE seq = 2": (2, "its content has the hash"),
    "UPDATE events SET at = at - 1 WHERE seq = 3": (3, "its content has the hash"),
    "UPDATE events SET hash = previous WHERE seq = 3": (3, "its content has the hash"),
    "UPDATE events SET previous = hash WHERE seq = 4": (4, "it follows"),
    "UPDATE events SET body = '[]' WHERE seq = 4": (4, "its content is no JSON object"),
    "DELETE FROM events WHERE seq = 2": (2, "it is missing: event 3 comes after event 1"),
    "DELETE FROM events WHERE seq = 1": (1, "it is missing"),
    "DELETE FROM events WHERE seq = 6": (6, "it is missing: 6 events were recorded, 5 are here"),
    "DELETE FROM events WHERE seq > 3": (4, "it is missing: 6 events were recorded, 3 are here"),
    "INSERT INTO events SELECT seq + 1, kind, at, body, hash, hash FROM events WHERE seq = 6": (7, "its content"),
    "UPDATE evidence SET record = replace(record, '\"100\"', '\"101\"') WHERE run = 1": (3, "the evidence of run 1"),
    "UPDATE writers SET requests = requests + 1 WHERE run = 1": (3, "the evidence of run 1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_past_is_found_and_named(change: str, path: Path) -> None:
    full(path).close()
    with Store(path) as store:
        assert store.verify().seq == 6
    raw = sqlite3.connect(path)
    with raw:
        assert raw.execute(change).rowcount > 0
    raw.close()
    seq, reason = CHANGES[change]
    with Store(path) as store, pytest.raises(InputError) as caught:
        store.verify()
    assert code(caught) == "event_tampered"
    assert f"event {seq}: {reason}" in str(caught.value)


def test_a_cut_that_hides_itself_is_found_by_a_head_that_was_noted(path: Path) -> None:
    with full(path) as store:
        noted = store.state()
        events = list(store.events())
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("DELETE FROM events WHERE seq = 6")
        raw.execute("DELETE FROM state")
    raw.close()
    with Store(path) as store:
        with pytest.raises(InputError) as caught:
            store.state()
        assert code(caught) == "state_differs"
        state, equal = store.rebuild(repair=True)
        assert (state.seq, equal) == (5, False)
        assert store.rebuild(anchor=(5, events[4].hash))[1]
        with pytest.raises(InputError, match="event 6: it is missing: 6 events were recorded, 5 are here"):
            store.verify(anchor=(noted.seq, noted.hash))
        with pytest.raises(InputError, match="event 5: it has the hash"):
            store.verify(anchor=(5, noted.hash))


def test_an_event_that_cannot_have_been_is_found_though_its_hashes_fit(path: Path) -> None:
    from kcverify.delivery import chain

    with Store(path) as store:
        last = list(store.events())[-1]
        body = {"from": "offline", "to": "full", "files": {}, "carried": {}, "evidence": "", "gate": {}}
        forged = chain.follow(last, "promoted", NOON, body)
        store._insert(forged, store.state())
        store._db.execute("UPDATE state SET seq = ?, hash = ?", (forged.seq, forged.hash))
        with pytest.raises(InputError, match="event 2: it cannot have been: a promotion to `full` is not possible"):
            store.verify()


def test_a_state_that_differs_is_named_and_repaired(path: Path) -> None:
    full(path).close()
    raw = sqlite3.connect(path)
    with raw:
        raw.execute('UPDATE state SET body = replace(body, \'"position":"offline"\', \'"position":"full"\')')
    raw.close()
    with Store(path) as store:
        assert store.state().position == "full"
        state, equal = store.rebuild()
        assert (state.position, equal) == ("offline", False)
        assert not store.rebuild(repair=True)[1]
        assert store.rebuild()[1]
        assert store.state() == state


def test_states_survive_json(path: Path) -> None:
    with full(path) as store:
        state = store.state()
        assert State.of_data(state.data()) == state


def test_files_that_are_no_store(tmp_path: Path) -> None:
    def slug(path: Path, *, create: bool = False) -> str:
        with pytest.raises(InputError) as caught:
            Store(path, create=create)
        return code(caught)

    assert slug(tmp_path / "none.db") == "store_missing"
    assert slug(tmp_path) == "store_missing"
    assert slug(tmp_path / "no" / "folder.db", create=True) == "store_invalid"
    (tmp_path / "text.db").write_text("not a database, whatever its name says" * 100)
    assert slug(tmp_path / "text.db") == "store_invalid"
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    assert slug(tmp_path / "other.db") == "store_invalid"
    (tmp_path / "empty.db").touch()
    with Store(tmp_path / "empty.db") as store, pytest.raises(InputError) as caught:
        store.state()
    assert code(caught) == "store_missing"


def test_another_schema_is_refused(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    raw.close()
    with pytest.raises(InputError) as caught:
        Store(path)
    assert code(caught) == "store_schema"


def test_a_held_file_and_a_clock_that_goes_back(path: Path) -> None:
    with Store(path) as holder, Store(path, wait=0.05) as store:
        with holder.writing(), pytest.raises(InputError) as caught:
            promotion.rollback(store, NOON)
        assert code(caught) == "store_busy"
        with pytest.raises(InputError) as caught:
            promotion.rollback(store, NOON - 1)
        assert code(caught) == "clock_behind"
        assert store.state().seq == 1


def test_a_failed_transaction_leaves_nothing(path: Path) -> None:
    with Store(path) as store:
        with pytest.raises(RuntimeError), store.writing():
            promotion.rollback(store, NOON)
            raise RuntimeError
        assert store.state().seq == 1


def test_start_is_idempotent(path: Path) -> None:
    with Store.start(path, "other", "sha256:x", plan_of(LIFT), NOON + 9) as store:
        assert (store.state().contract, store.state().seq) == ("lift", 1)


numbers = st.integers(-(2**80), 2**80)
wealths = st.builds(
    Wealth, st.lists(numbers, min_size=16, max_size=16), st.lists(numbers, min_size=16, max_size=16), numbers, numbers,
    numbers, numbers,
)  # fmt: skip
made = st.builds(Record, st.just(0.1), wealths, numbers, numbers, numbers, numbers, numbers)


@settings(max_examples=50, deadline=None)
@given(st.lists(made, min_size=2, max_size=5), st.randoms())
def test_records_add_up_in_any_order_beyond_64_bits(parts: list[Record], chance: random.Random) -> None:
    def total(some: list[Record]) -> Record:
        whole = some[0]
        for part in some[1:]:
            whole = whole.plus(part)
        return whole

    shuffled = list(parts)
    chance.shuffle(shuffled)
    assert total(shuffled) == total(parts)
    assert Record.of_text(total(parts).text()) == total(parts)
    assert total(parts).minus(parts[0]) == total(parts[1:])


def test_hashes_follow_each_other(path: Path) -> None:
    with full(path) as store:
        events = list(store.events())
    assert all(b.previous == a.hash and b.seq == a.seq + 1 for a, b in pairwise(events))
