"""What a store's file may hold after another hand was in it: every command says so, none fails or goes on."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from delivery_cases import HOUR, NOON, contract, feed

from kcverify.delivery import chain, promotion
from kcverify.delivery import store as stores
from kcverify.delivery.store import Store
from kcverify.diagnostics import InputError

LIFT = contract()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with promotion.start(str(tmp_path / "s.db"), LIFT, NOON) as store:
        feed(store, LIFT, 100)
        assert promotion.promote(store, LIFT, [], NOON + 1).moved
        promotion.rollback(store, NOON + 2, reason="again")
    return tmp_path / "s.db"


def code(caught: pytest.ExceptionInfo[InputError]) -> str:
    return caught.value.diagnostics[0].code.slug


def change(path: Path, text: str, *values: Any) -> None:
    raw = sqlite3.connect(path)
    with raw:
        raw.execute(text, values)
    raw.close()


def kept(path: Path) -> dict[str, Any]:
    raw = sqlite3.connect(path)
    body: dict[str, Any] = json.loads(raw.execute("SELECT body FROM state").fetchone()[0])
    raw.close()
    return body


STATES: list[Mapping[str, Any]] = [
    {"entered": None}, {"entered": {"a": 1}}, {"stepped": 1e400}, {"route_since": "x"}, {"position": "nowhere"},
    {"position": 3}, {"route": []}, {"route": "elsewhere"}, {"version": 2**60}, {"run": "2"}, {"at": True},
    {"carried": {"drift": [float("nan"), 3]}}, {"carried": {"drift": [1.0]}}, {"carried": []}, {"decided": {"drift": 1}},
    {"used": {"x": "y"}}, {"paused": "no"}, {"cause": None}, {"digest": 5}, {"plan": {"positions": [], "answers": []}},
    {"plan": "x"}, {"plan": {"positions": [{"name": 1, "stage": "x", "step": 0}], "answers": []}}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("what", STATES, ids=str)
def test_a_state_of_other_kinds_is_named_and_repaired(what: Mapping[str, Any], path: Path) -> None:
    change(path, "UPDATE state SET body = ?", json.dumps({**kept(path), **what}))
    with Store(path) as store:
        with pytest.raises(InputError) as caught:
            store.state()
        assert code(caught) == "state_differs"
        assert not store.rebuild(repair=True)[1]
        assert store.state() == store.verify()


BODIES: list[Any] = [
    {"what": float("nan")}, {"what": 2**60}, {"what": "\ud800"}, {"what": -1e400}, {"reason": ["\udfff"]},
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_an_event_that_has_no_canonical_form_is_named(body: Any, path: Path) -> None:
    change(path, "UPDATE events SET body = ? WHERE seq = 2", json.dumps(body))
    with Store(path) as store, pytest.raises(InputError, match="event 2: its content is no canonical JSON") as caught:
        store.verify()
    assert code(caught) == "event_tampered"


@pytest.mark.parametrize(("kind", "body"), [("decided", {"cells": []}), ("promoted", {"to": "shadow", "carried": []})])
def test_an_event_of_another_shape_is_named(kind: str, body: Any, path: Path) -> None:
    with Store(path) as store:
        state = store.state()
        forged = chain.event(state.seq + 1, kind, NOON + 3, body, state.hash)
        store._insert(forged, state)
        store._db.execute("UPDATE state SET seq = ?, hash = ?", (forged.seq, forged.hash))
        with pytest.raises(InputError, match="its content is not that of such an event"):
            store.verify()


def test_events_are_in_the_order_of_time() -> None:
    first = chain.follow(None, "started", NOON, {})
    later = chain.follow(first, "noted", NOON - 5, {})
    with pytest.raises(InputError, match="event 2: it is 5 ms earlier than event 1"):
        list(chain.verified([first, later], "s.db"))


def test_nothing_is_promoted_on_a_changed_past(path: Path) -> None:
    """A state that says another place would skip stages, and a chain with a gap would carry a promotion."""
    with Store(path) as store:
        feed(store, LIFT, 300)
    late = NOON + 9 * HOUR
    body = kept(path)
    change(path, "UPDATE state SET body = ?", json.dumps({**body, "position": "canary 2/2"}))
    with Store(path) as store, pytest.raises(InputError) as caught:
        promotion.promote(store, LIFT, [], late)
    assert code(caught) == "state_differs"
    change(path, "UPDATE state SET body = ?", json.dumps(body))
    change(path, "UPDATE events SET body = '{}' WHERE seq = 3")
    with Store(path) as store:
        with pytest.raises(InputError) as caught:
            promotion.promote(store, LIFT, [], late)
        assert code(caught) == "event_tampered"
        assert store.state().seq == body["seq"]


def test_text_that_utf_8_cannot_hold_is_recorded_with_a_mark(path: Path) -> None:
    with Store(path) as store:
        promotion.rollback(store, NOON + 4, reason="a \udcff b")
        assert [e.body["reason"] for e in store.events(kinds=("rolled_back",))][-1] == "a \ufffd b"
        with pytest.raises(InputError, match="it cannot be recorded"):
            promotion.noted(store, "count", NOON + 5, requests=2**60)
        assert store.rebuild()[1]


@pytest.mark.parametrize("name", ["x" * 300 + ".db", "a\0b.db", "x" * 5000])
def test_a_name_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    for create, slugs in ((False, ("store_invalid", "store_missing")), (True, ("store_invalid",))):
        with pytest.raises(InputError) as caught:
            Store(tmp_path / name, create=create)
        assert code(caught) in slugs


def test_a_table_text_that_is_no_utf_8(path: Path) -> None:
    with Store(path) as store:
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    at = content.index(b"CREATE TABLE events") + len("CREATE TABLE events (seq ")
    path.write_bytes(content[:at] + b"\xda\x20" + content[at + 2 :])
    with pytest.raises(InputError) as caught:
        Store(path)
    assert code(caught) == "store_invalid"


def test_a_full_disk_says_what_to_do(path: Path) -> None:
    with Store(path) as store:
        store._db.execute(f"PRAGMA max_page_count = {store._db.execute('PRAGMA page_count').fetchone()[0]}")
        before = store.state()
        with pytest.raises(InputError, match="full") as caught:
            promotion.rollback(store, NOON + 4, reason="x" * 100_000)
        assert (code(caught), caught.value.diagnostics[0].hint[:15]) == ("store_invalid", "free some space")
        assert store.state() == before


def test_a_store_on_a_read_only_medium_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an auditor has it: the folder takes no lock and no journal."""
    with Store(path) as store:
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        expected = store.verify()
    connect, access = sqlite3.connect, os.access

    def refusing(name: str, **more: Any) -> sqlite3.Connection:
        if "immutable=1" not in name:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(name, **more)

    monkeypatch.setattr(stores.sqlite3, "connect", refusing)
    monkeypatch.setattr(stores.os, "access", lambda given, mode: access(given, mode) and given != path.parent)
    with Store(path) as store:
        assert store.rebuild() == (expected, True)
        with pytest.raises(InputError, match="readonly") as caught:
            promotion.rollback(store, NOON + 4)
        assert code(caught) == "store_invalid"


def test_reading_waits_for_no_writer(path: Path) -> None:
    with Store(path) as writer, writer.writing(), Store(path, wait=0.05) as reader:
        assert reader.rebuild()[1] and reader.state().seq == 4
