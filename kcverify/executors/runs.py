"""One run over shards on any executor: finished ones are recorded and found again, lost ones are said, Ctrl-C ends it whole."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

from kcverify.diagnostics import InputError
from kcverify.executors.pool import Answer, Executor
from kcverify.executors.records import Records, Summary


class Work(Protocol):
    """A job: the name of its shard and the files that it reads."""

    @property
    def name(self) -> str:
        """Of the shard."""

    @property
    def files(self) -> tuple[Path, ...]:
        """What its state depends on."""


W = TypeVar("W", bound=Work)


@dataclass(frozen=True)
class Reports:
    """What is told of a run: `tell` lines, `progress` done and all; `done` is the verb; `clock` gives seconds."""

    done: str
    tell: Callable[[str], None] | None = None
    progress: Callable[[int, int], None] | None = None
    clock: Callable[[], float] = time.perf_counter


class ShardRun:
    """What is done and what was lost. `add` takes each finished shard once, in any order, new or recorded."""

    def __init__(self, add: Callable[[Summary], None], records: Records | None, reports: Reports) -> None:
        self.add, self.records, self.reports = add, records, reports
        self.done: dict[str, Summary] = {}
        self.lost: dict[str, str] = {}

    def through(self, executor: Executor, function: Callable[[W], Summary], jobs: Sequence[W]) -> bool:
        """Do what is left of the jobs; False where Ctrl-C ended it.

        Raises InputError as the jobs say; RuntimeError for a fault of kcverify in one.
        """
        start = self.reports.clock()
        before = len(self.done)
        left = list(self._left(jobs))
        known, complete = len(self.done), True
        if known > before:
            self._tell(f"{known - before} of {len(jobs)} shards were {self.reports.done} before")
        answers = executor.map(function, left)
        try:
            for answer in answers:
                with interrupt_afterwards():
                    self._take(left[answer.index].name, answer)
                if self.reports.progress is not None:
                    self.reports.progress(len(self.done) - before + len(self.lost), len(jobs))
        except KeyboardInterrupt:
            complete = False
        finally:
            answers.close()
        seconds = self.reports.clock() - start
        rows = sum(summary.rows for summary in list(self.done.values())[known:])
        rate = f", {rows / seconds:,.0f} rows/s" if rows and seconds > 0 else ""
        count = len(self.done) - known
        self._tell(f"{count} shard{'' if count == 1 else 's'}, {rows:,} rows in {seconds:.1f} s{rate}")
        return complete

    def _left(self, jobs: Sequence[W]) -> Iterator[W]:
        """The jobs that are not done; finished ones are added."""
        for job in jobs:
            found, reason = (None, "") if self.records is None else self.records.find(job.name, job.files)
            if found is not None:
                self._add(found)
                continue
            if reason:
                self._tell(f"shard {job.name} is {self.reports.done} again: {reason}")
            yield job

    def _take(self, name: str, answer: Answer) -> None:
        if answer.diagnostics:
            raise InputError(*answer.diagnostics)
        if answer.fault:
            raise RuntimeError(f"shard {name}: {answer.fault}")
        if answer.lost:
            self.lost[name] = answer.lost
            self._tell(f"shard {name} was lost: {answer.lost}")
            return
        if self.records is not None:
            self.records.keep(answer.value)
        self._add(answer.value)

    def _add(self, summary: Summary) -> None:
        """A finished shard: its state is handed on and let go."""
        self.add(summary)
        self.done[summary.name] = replace(summary, state=b"")

    def _tell(self, text: str) -> None:
        if self.reports.tell is not None:
            self.reports.tell(text)


@contextmanager
def interrupt_afterwards() -> Iterator[None]:
    """Hold back Ctrl-C until the block is done, so that what it writes is never half written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    previous = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if held:
        raise KeyboardInterrupt
