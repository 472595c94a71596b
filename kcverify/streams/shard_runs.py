"""Compares dumps in several files: each pair of shards gives a state, the states are merged, one answer is made.

Merging is exact and free of order, so the answer is the same on every executor, with any number of workers, and after a
kill and a restart. Requests that lie in shards of other names on the two sides are paired across shards at the end.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kcverify import __version__
from kcverify.diagnostics import InputError, input_error
from kcverify.digests import sha256_of
from kcverify.executors.pool import Executor, Processes
from kcverify.executors.records import FileState, Records, Summary
from kcverify.executors.runs import Reports, ShardRun
from kcverify.readers.opening import open_stream
from kcverify.readers.stream import Counted, Request, Stream
from kcverify.streams.adding import packed, unpacked
from kcverify.streams.align import Matching, Pair, pairs
from kcverify.streams.compare import answered, masses_of, setting_of
from kcverify.streams.observing import Observation, Options


@dataclass(frozen=True)
class Part:
    """A file of one side. `name` stands before its requests' ids, empty for none; `shard` before those that its reader
    counted, so that files which count alike stay apart.
    """

    path: Path
    name: str = ""
    shard: str = ""

    def named(self, request_id: str) -> str:
        """The id of one of its requests beside the other files."""
        if isinstance(request_id, Counted):
            return f"{self.shard}:{request_id}" if self.shard else request_id
        return f"{self.name}/{request_id}" if self.name else request_id


@dataclass(frozen=True)
class Job:
    """Files of both sides whose requests belong together; a side may have none. `only` keeps requests of these names,
    under their own ids.

    `by` is how requests are paired, `number` the place of the shard among all, `hashed` whether its files are recorded.
    """

    name: str
    number: int
    sides: tuple[tuple[Part, ...], tuple[Part, ...]]
    declare: tuple[tuple[str, ...], tuple[str, ...]]
    options: Options
    by: str
    hashed: bool = False
    only: tuple[frozenset[str], frozenset[str]] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Of both sides."""
        return tuple(part.path for side in self.sides for part in side)

    def streams(self) -> tuple[Stream, Stream]:
        """Both sides. Raises InputError as `open_stream`."""
        return self._stream(0), self._stream(1)

    def _stream(self, side: int) -> Stream:
        parts, declare = self.sides[side], self.declare[side]
        if not parts:
            return replace(self._stream(1 - side), carries=frozenset(), open=lambda: iter(()))
        streams = [open_stream(part.path, declare) for part in parts]

        def requests() -> Iterator[Request]:
            for part, stream in zip(parts, streams, strict=True):
                for request in stream.requests():
                    name = part.named(request.request_id)
                    if self.only is None or (name in self.only[side] and isinstance(request.request_id, Counted)):
                        yield replace(request, request_id=name)
                    elif name in self.only[side]:
                        yield request

        carries = frozenset().union(*(stream.carries for stream in streams))
        return replace(streams[0], carries=carries, open=requests)

    def pairs(self, found: Matching) -> Iterator[Pair]:
        """Pairs of requests; raises InputError as the readers do."""
        return pairs(*self.streams(), found, self.by)


def observe_shard(job: Job) -> Summary:
    """See one pair of shards. Raises InputError as the readers; `file_unreadable` for a file that changes meanwhile."""
    try:
        before = [path.stat() for path in job.files]
        seen = Observation(setting_of(*job.streams(), job.options), job.options.project, job.number)
        longest = 0

        def watched() -> Iterator[Pair]:
            nonlocal longest
            for pair in job.pairs(seen.matching):
                longest = max(longest, len(pair.left), len(pair.right))
                yield pair

        seen.take(watched())
        files = tuple(_read_state(path, was, job.hashed) for path, was in zip(job.files, before, strict=True))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise input_error("file_unreadable", path=error.filename or job.files[0], reason=reason) from None
    state = packed(seen.dump())
    return Summary(job.name, state, seen.matching.pairs, seen.identity.compared, longest, files)


def _read_state(path: Path, before: os.stat_result, hashed: bool) -> FileState:
    digest = sha256_of(path) if hashed else ""
    now = path.stat()
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise input_error("file_unreadable", path=path, reason="it changed while it was read")
    return FileState(now.st_size, now.st_mtime_ns, path.suffix, digest)


def masses_shard(job: tuple[Job, bool, float]) -> list[tuple[float, float, float]]:
    """The second pass over one pair of shards (see `compare.masses_of`)."""
    shard, cut_right, power = job
    return masses_of(shard.pairs(Matching()), cut_right, power)


@dataclass(frozen=True)
class Spread:
    """How the work is spread: on an executor (None: a process a core), recorded in the folder `resume`, told to `reports`."""

    executor: Executor | None = None
    resume: Path | None = None
    reports: Reports = field(default_factory=lambda: Reports("compared"))

    @property
    def asked(self) -> bool:
        """Whether anything of it was asked for."""
        return self.executor is not None or self.resume is not None


class Comparison:
    """One run over the jobs of two sides, whose heads are `left` and `right`; `matched_by` says how shards were matched.

    `absent`: shards that one side lacks, with the side; no job compares them where a job of both sides is needed.
    Raises InputError: `resume_mismatch`, `file_unwritable` for the folder of `spread.resume`.
    """

    def __init__(
        self, left: Stream, right: Stream, jobs: Sequence[Job], matched_by: str, spread: Spread,
        absent: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.jobs, self.matched_by, self.spread = list(jobs), matched_by, spread
        self.options = jobs[0].options
        self.executor = spread.executor or Processes()
        self.seen = Observation(setting_of(left, right, self.options), self.options.project)
        self.seen.matching.by = jobs[0].by
        records = None if spread.resume is None else Records(spread.resume, self._identity(left, right))
        self.run = ShardRun(self._add, records, spread.reports)
        self.ids: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.alone: dict[tuple[int, str], dict[str, str]] = {}
        self.across, self.unclear = 0, 0
        self.absent = dict(absent or {})

    def _identity(self, left: Stream, right: Stream) -> dict[str, str]:
        """Everything that the state of a shard depends on beside its files."""
        told = [repr(sorted((k, str(d.value)) for k, d in s.declared.items())) for s in (left, right)]
        return {
            "kcverify": __version__,
            "command": "compare",
            "declared": hashlib.sha256("\n".join(told).encode("utf-8", "surrogatepass")).hexdigest(),
            "options": repr(replace(self.options, fail_on="")),
            "paired by": self.jobs[0].by,
        }

    def answer(self) -> dict[str, Any]:
        """Do what is left, and answer as `compare`, with `shards` beside. Raises InputError, RuntimeError as the jobs."""
        complete = self.run.through(self.executor, observe_shard, self.jobs)
        names = {job.name for job in self.jobs} | self.absent.keys()
        last = self._last() if complete and not self.run.lost else None
        if last is not None:
            self.jobs.append(last)
            complete = self.run.through(self.executor, observe_shard, [last])
        missing = self._missing() if complete else {}
        lost = [{"shard": name, "reason": reason} for name, reason in (self.run.lost | missing).items()]
        found = answered(self.seen, self.options, self._masses, complete and not lost)
        if self.unclear:
            words = f"{self.unclear} requests without a counterpart in their shard have ids that several shards use"
            found["assumptions"].append(f"{words}: they are not paired across shards")
        done = len((names & self.run.done.keys()) - missing.keys())
        return found | {
            "shards": {
                "total": len(names), "compared": done, "matched_by": self.matched_by, "across": self.across,
                "unclear": self.unclear, "lost": lost,
            }
        }  # fmt: skip

    def _add(self, summary: Summary) -> None:
        """A finished shard: its state is merged, and who is alone in it is kept."""
        job = next(job for job in self.jobs if job.name == summary.name)
        other = Observation(self.seen.setting, self.options.project)
        try:
            other.load(unpacked(summary.state))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise RuntimeError(f"the state of shard {summary.name} cannot be read: {error}") from None
        if job.only is None:
            self._note(job, other.matching)
        else:
            self.across = other.matching.pairs
        self.seen.merge(other)

    def _note(self, job: Job, found: Matching) -> None:
        for side, alone in enumerate((found.only_left, found.only_right)):
            prefix = next((f"{part.name}/" for part in job.sides[side][:1] if part.name), "")
            own = {name: name.removeprefix(prefix) for name in alone}
            self.alone[side, job.name] = own
            self.ids[side].update([*own.values(), *(name.removeprefix(prefix) for name in found.both)])

    def _last(self) -> Job | None:
        """The job of requests that are alone in their shards and have a counterpart in others; None without any."""
        by = self.jobs[0].by
        left, right = ({i for (s, _), own in self.alone.items() if s == side for i in own.values()} for side in (0, 1))
        common = left & right if by == "id" else left | right if left and right else set()
        once = {i for i in common if by != "id" or (self.ids[0][i] == 1 and self.ids[1][i] == 1)}
        self.unclear = len(common) - len(once)
        if not once:
            return None
        names = tuple(
            frozenset(name for (s, _), own in self.alone.items() if s == side for name, i in own.items() if i in once)
            for side in (0, 1)
        )
        matching = self.seen.matching
        matching.only_left = [n for n in matching.only_left if n not in names[0]]
        matching.only_right = [n for n in matching.only_right if n not in names[1]]
        sides = tuple(
            tuple(p for job in self.jobs for p in job.sides[s] if names[s] & self.alone.get((s, job.name), {}).keys())
            for s in (0, 1)
        )
        digest = hashlib.sha256(
            "\n".join([*sorted(names[0]), "", *sorted(names[1])]).encode("utf-8", "surrogatepass")
        ).hexdigest()[:12]
        return replace(
            self.jobs[0], name=f"across {digest}", number=len(self.jobs), sides=(sides[0], sides[1]),
            only=(names[0], names[1]),
        )  # fmt: skip

    def _missing(self) -> dict[str, str]:
        """The shards that one side lacks, of which requests stayed without a counterpart, and why."""
        left = {*self.seen.matching.only_left, *self.seen.matching.only_right}
        out = {}
        for name, lacking in self.absent.items():
            held = [own for (_, job), own in self.alone.items() if job == name]
            if name not in self.run.done or any(left & {*own, *own.values()} for own in held):
                out[name] = f"the {lacking} has no shard of this {self.matched_by}"
        return out

    def _masses(self, cut_right: bool, power: float) -> list[tuple[float, float, float]] | None:
        """The second pass over all shards; None where one was lost."""
        out: list[tuple[float, float, float]] = []
        answers = self.executor.map(masses_shard, [(job, cut_right, power) for job in self.jobs])
        try:
            for answer in answers:
                if answer.diagnostics:
                    raise InputError(*answer.diagnostics)
                if answer.fault:
                    raise RuntimeError(answer.fault)
                if answer.lost:
                    return None
                out += answer.value
        finally:
            answers.close()
        return out
