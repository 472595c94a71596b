"""A store on disk: events in a hash chain, the state that they add up to, evidence that many processes add to.

SQLite in WAL mode with full synchronisation: what `append` or `add` returned from is on disk, and a process that is
killed at any moment leaves either all of a transaction or nothing of it. Writers take turns. The state row repeats the
number and hash of the last event, so that a cut at the end of the chain shows too; who can write the whole file can
forge all of it, which only a head noted elsewhere (`verify(anchor=...)`) can tell.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rfc8785

from kcverify.delivery import chain, tables
from kcverify.delivery.chain import Event
from kcverify.delivery.machine import Plan
from kcverify.delivery.records import Record
from kcverify.delivery.state import State, apply, fold, started
from kcverify.diagnostics import InputError, input_error

WAIT_SECONDS = 30
Watch = tuple[int, Mapping[str, Any]]
"""Time in milliseconds since 1970, and the state of a writer's detectors."""


class Store:
    """One open store. Not shared between threads or forked processes: each opens its own."""

    def __init__(self, path: str | Path, *, create: bool = False, wait: float = WAIT_SECONDS) -> None:
        self.path, self._wait = str(path), wait
        target = Path(path)
        if not create and not self._is_there(target):
            raise input_error("store_missing", path=self.path)
        try:
            self._open(target, "mode=rwc" if create else "mode=rw")
        except InputError:
            if create or not _unwritable(target):
                raise
            self._open(target, "mode=ro&immutable=1")

    def _is_there(self, target: Path) -> bool:
        try:
            return target.is_file()
        except (OSError, ValueError) as error:
            raise self._invalid(error) from None

    def _open(self, target: Path, how: str) -> None:
        with self._told():
            try:
                uri = f"{target.resolve().as_uri()}?{how}"
            except (ValueError, RuntimeError) as error:
                raise self._invalid(error) from None
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=self._wait)
            try:
                self._db.execute("PRAGMA trusted_schema = OFF")
                if "immutable" not in how:
                    self._db.execute("PRAGMA journal_mode = WAL")
                    self._db.execute("PRAGMA synchronous = FULL")
                self._known()
            except BaseException:
                self._db.close()
                raise

    @classmethod
    def start(
        cls, path: str | Path, contract: str, digest: str, plan: Plan, now: int, *, wait: float = WAIT_SECONDS
    ) -> Store:
        """A new store in the first place of the plan; the one that is there where another process started it already."""
        store = cls(path, create=True, wait=wait)
        with store.writing():
            if store._head() is None:
                event = chain.follow(None, "started", now, started(contract, digest, plan))
                store._insert(event, apply(None, event))
        return store

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns what the database says into diagnostics."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise input_error("store_busy", path=self.path, seconds=f"{self._wait:g}") from None
            raise self._invalid(error) from None
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise self._invalid(error) from None

    def _invalid(self, error: Exception) -> InputError:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        hint = "free some space and do it again: nothing of it was recorded" if "full" in reason else ""
        return input_error("store_invalid", path=self.path, reason=reason, hint=hint)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All or nothing, one process at a time. A transaction inside another is part of it."""
        with self._told():
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One moment of the store, however many reads."""
        with self._told():
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _known(self) -> None:
        """Create the tables in an empty file; refuse files of others and of other versions."""
        with self.reading():
            if tables.there(self._db, self.path):
                return
        with self.writing():
            if not tables.there(self._db, self.path):
                tables.make(self._db)

    def events(self, after: int = 0, kinds: Sequence[str] = ()) -> Iterator[Event]:
        """The events in their order, unchecked; those with a larger number than `after`, of these kinds if any is named."""
        rows = self._db.execute(
            "SELECT seq, kind, at, body, previous, hash FROM events WHERE seq > ? "
            "AND (? OR kind IN (SELECT value FROM json_each(?))) ORDER BY seq",
            (after, not kinds, json.dumps(list(kinds))),
        )
        for seq, kind, at, body, previous, own in rows:
            try:
                content = json.loads(body)
            except (TypeError, ValueError, RecursionError):
                content = None
            if not isinstance(content, dict) or not isinstance(at, int):
                raise input_error("event_tampered", path=self.path, seq=seq, reason="its content is no JSON object")
            yield Event(seq, str(kind), at, content, str(previous), str(own))

    def _head(self) -> tuple[int, str, str] | None:
        row = self._db.execute("SELECT seq, hash, body FROM state").fetchone()
        if row is not None and not isinstance(row[0], int):
            raise input_error("state_differs", path=self.path, detail="it cannot be read")
        return None if row is None else (row[0], str(row[1]), str(row[2]))

    def state(self) -> State:
        """The state as it is kept. Raises InputError: `store_missing` before the first event, `state_differs`."""
        with self.reading():
            head = self._head()
            if head is None:
                if self._db.execute("SELECT count(*) FROM events").fetchone()[0]:
                    raise input_error("state_differs", path=self.path, detail="it is not there")
                raise input_error("store_missing", path=self.path)
            state = self._kept(head)
            if state is None or (state.seq, state.hash) != head[:2]:
                raise input_error("state_differs", path=self.path, detail="it cannot be read")
            last = self._db.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
            if last != head[:2]:
                self.verify()
            return state

    def _kept(self, head: tuple[int, str, str]) -> State | None:
        try:
            state = State.of_data(json.loads(head[2]))
            chain.canonical(state.data())
            return state
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None

    def append(self, kind: str, body: Mapping[str, Any], now: int, *, version: int | None = None) -> State:
        """Add an event and return the state after it.

        Raises InputError: `stage_moved` where the place was moved after `version`, `clock_behind`, `transition_illegal`.
        """
        with self.writing():
            state = self.state()
            if version is not None and state.version != version:
                last = self._event(state.version)
                raise input_error("stage_moved", seq=last.seq, kind=last.kind, position=state.position)
            if now < state.at:
                raise input_error("clock_behind", now=chain.shown(now), last=chain.shown(state.at))
            seq, previous = state.seq + 1, state.hash
            try:
                event = chain.event(seq, kind, now, body, previous)
            except ValueError as error:
                raise input_error(
                    "evidence_invalid", path=self.path, reason=f"it cannot be recorded: {error}"
                ) from None
            after = apply(state, event)
            self._insert(event, after)
            return after

    def _event(self, seq: int) -> Event:
        return next(e for e in self.events(seq - 1))

    def _insert(self, event: Event, state: State) -> None:
        body = rfc8785.dumps(dict(event.body)).decode()
        self._db.execute(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
            (event.seq, event.kind, event.at, body, event.previous, event.hash),
        )
        self._keep(state)

    def _keep(self, state: State) -> None:
        text = rfc8785.dumps(state.data()).decode()
        self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?)", (state.seq, state.hash, text))

    def add(
        self,
        run: int,
        writer: str,
        number: int,
        requests: int,
        records: Mapping[str, Record],
        watch: Watch | None = None,
        draws: tuple[Sequence[int], int] = ((), 0),
    ) -> bool:
        """Add what a writer counted since its last call: `requests` in all, a record a cell (see `state.key`).

        `watch` is the state of the writer's detectors after them, kept instead of its last one, `draws` are seeds that its
        watch of the sampler has used up since, and how many of the oldest it has forgotten. `number` grows from call to
        call of a writer; a repeated one is ignored (False), so a writer that was killed before it was answered may send again. Raises InputError: `evidence_stale` for another run than the current one.
        """
        with self.writing():
            current = self.state().run
            if run != current:
                raise input_error("evidence_stale", run=run, current=current)
            known = self._db.execute(
                "SELECT number, requests FROM writers WHERE run = ? AND writer = ?", (run, writer)
            ).fetchone() or (-1, 0)
            if number <= known[0]:
                return False
            self._db.execute(
                "INSERT OR REPLACE INTO writers VALUES (?, ?, ?, ?)", (run, writer, number, known[1] + requests)
            )
            for cell, record in records.items():
                self._add(run, cell, record)
            if watch is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO watches VALUES (?, ?, ?, ?)", (writer, run, watch[0], json.dumps(watch[1]))
                )
            self._drew(run, writer, *draws)
            return True

    def _drew(self, run: int, writer: str, seeds: Sequence[int], forgotten: int) -> None:
        if seeds:
            self._db.execute("DELETE FROM draws WHERE run < ?", (run,))
            rows = [(writer, run, str(seed)) for seed in seeds]
            self._db.executemany("INSERT INTO draws (writer, run, seed) VALUES (?, ?, ?)", rows)
        if forgotten:
            self._db.execute(
                "DELETE FROM draws WHERE number IN (SELECT number FROM draws WHERE writer = ? ORDER BY number LIMIT ?)",
                (writer, forgotten),
            )

    def draws(self, run: int, writer: str) -> list[int]:
        """Seeds that a writer's watch of the sampler has used up in a run, oldest first."""
        rows = self._db.execute("SELECT seed FROM draws WHERE run = ? AND writer = ? ORDER BY number", (run, writer))
        return [int(seed) for (seed,) in rows.fetchall()]

    def take_watch(
        self, run: int, gone: Callable[[str, int], bool], heir: str, now: int
    ) -> tuple[Mapping[str, Any], list[int]] | None:
        """The detectors' state, and the seeds, of a writer of this run that is gone (asked with its name and last time).

        The newest one. It becomes the heir's: of two writers that start, one gets it, and one that ends before it has
        written leaves it to the next. What cannot be read is none.
        """
        with self.writing():
            rows = self._db.execute("SELECT writer, at, body FROM watches WHERE run = ? ORDER BY at DESC", (run,))
            for writer, at, body in rows.fetchall():
                if writer != heir and gone(str(writer), int(at)):
                    self._db.execute("DELETE FROM watches WHERE writer = ?", (writer,))
                    self._db.execute("DELETE FROM draws WHERE writer = ?", (heir,))
                    self._db.execute("UPDATE draws SET writer = ? WHERE writer = ?", (heir, writer))
                    self._db.execute("INSERT OR REPLACE INTO watches VALUES (?, ?, ?, ?)", (heir, run, now, body))
                    with suppress(ValueError, RecursionError):
                        found, seeds = json.loads(body), self.draws(run, heir)
                        return (found, seeds) if isinstance(found, dict) else None
            return None

    def _add(self, run: int, cell: str, record: Record) -> None:
        row = self._db.execute("SELECT record FROM evidence WHERE run = ? AND cell = ?", (run, cell)).fetchone()
        whole = record if row is None else self._record(cell, row[0]).plus(record, self.path)
        self._db.execute("INSERT OR REPLACE INTO evidence VALUES (?, ?, ?)", (run, cell, whole.text()))

    def _record(self, cell: str, text: str) -> Record:
        try:
            return Record.of_text(text)
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise input_error(
                "evidence_invalid", path=self.path, reason=f"the record of `{cell}` cannot be read"
            ) from None

    def evidence(self, run: int) -> tuple[int, dict[str, Record]]:
        """Requests of a run and the merged record of each cell."""
        with self.reading():
            total = self._db.execute("SELECT coalesce(sum(requests), 0) FROM writers WHERE run = ?", (run,)).fetchone()[
                0
            ]
            rows = self._db.execute("SELECT cell, record FROM evidence WHERE run = ? ORDER BY cell", (run,))
            return int(total), {cell: self._record(cell, text) for cell, text in rows.fetchall()}

    def evidence_digest(self, run: int) -> str:
        """SHA-256 of the canonical JSON of a run's evidence, as the event that ended the run states it."""
        with self.reading():
            requests, records = self.evidence(run)
            content = {"requests": str(requests), "cells": {k: r.text() for k, r in records.items()}}
            return hashlib.sha256(rfc8785.dumps(content)).hexdigest()

    def verify(self, anchor: tuple[int, str] | None = None, each: Callable[[Event], None] | None = None) -> State:
        """Check every event, the end of the chain and the evidence of ended runs; the state that the events give.

        `anchor`: number and hash of an event as they were noted elsewhere. `each` gets the events that were found good, one
        by one. Raises InputError: `event_tampered`.
        """
        with self.reading():
            last: Event | None = None
            state: State | None = None
            head = self._head()
            for event in chain.verified(self.events(), self.path):
                last = event
                if anchor is not None and event.seq == anchor[0]:
                    chain.head_matches(event, *anchor, self.path)
                before, state = state, fold([event], self.path, state)
                self._evidence_matches(before, event)
                if each is not None:
                    each(event)
            if head is not None:
                chain.head_matches(last, head[0], head[1], self.path)
            if anchor is not None and (last is None or last.seq < anchor[0]):
                chain.head_matches(last, *anchor, self.path)
            if state is None:
                raise input_error("store_missing", path=self.path)
            return state

    def checked(self) -> State:
        """The kept state, after every event was checked. Raises InputError: `event_tampered`, `state_differs`."""
        with self.reading():
            given, state = self.verify(), self.state()
            if chain.canonical(given.data()) != chain.canonical(state.data()):
                raise input_error("state_differs", path=self.path, detail="its place or route is another")
            return state

    def _evidence_matches(self, before: State | None, event: Event) -> None:
        stated = event.body.get("evidence")
        if before is None or stated is None or (event.kind == "promoted" and _same_stage(before, event)):
            return
        if self.evidence_digest(before.run) != stated:
            reason = f"the evidence of run {before.run}, which it rests on, was changed"
            raise input_error("event_tampered", path=self.path, seq=event.seq, reason=reason)

    def rebuild(self, *, repair: bool = False, anchor: tuple[int, str] | None = None) -> tuple[State, bool]:
        """The state from the events alone, and whether the kept one is equal; with `repair` it is replaced."""
        with self.writing() if repair else self.reading():
            state, head = self.verify(anchor), self._head()
            kept = None if head is None else self._kept(head)
            equal = kept is not None and chain.canonical(kept.data()) == chain.canonical(state.data())
            if repair and not equal:
                self._keep(state)
            return state, equal


def _unwritable(target: Path) -> bool:
    """Whether the folder takes no files, as on a read-only medium, and all of the store is in the file itself."""
    wal = target.with_name(target.name + "-wal")
    return not os.access(target.parent, os.W_OK) and not (wal.exists() and wal.stat().st_size)


def _same_stage(before: State, event: Event) -> bool:
    """Whether the run goes on after a promotion: between steps of a stage, and after the last stage."""
    return before.plan.at(str(event.body["to"])).stage == before.stage
