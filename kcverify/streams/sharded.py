"""Two sides of one file or of several: shard by shard where shards correspond, else as one stream each.

With an executor, JSON is parsed in other processes, a file at a time, and requests are taken in the order of the files
all the same: the answer does not depend on it. Each process then holds one file's requests in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kcverify.diagnostics import InputError, input_error
from kcverify.executors.pool import Answer, Executor
from kcverify.readers import table
from kcverify.readers.opening import open_stream
from kcverify.readers.shards import ENDINGS, Shard, find, is_several, matched
from kcverify.readers.sidecar import SUFFIX
from kcverify.readers.stream import Declared, Request, Stream
from kcverify.streams.align import way
from kcverify.streams.compare import checked, compare
from kcverify.streams.observing import DEFAULT, Options
from kcverify.streams.shard_runs import Comparison, Job, Part, Spread

_OWN = ("format", "container")

ALONE = Spread()
"""Nothing was asked for: shards are seen by a process a core, and not recorded."""


def compare_sides(
    a: str, b: str, declare_a: Sequence[str] = (), declare_b: Sequence[str] = (), options: Options = DEFAULT,
    spread: Spread = ALONE,
) -> dict[str, Any]:  # fmt: skip
    """`compare` of two files or of two dumps in several files, whose shards are seen by an executor and merged.

    A side is a file, a folder or a pattern of files. Where the shards of the two sides do not correspond, all files are
    one shard. Raises InputError as `open_sides` and `compare`, `resume_mismatch`, `file_unwritable`.
    """
    checked(options)
    several = is_several(a) or is_several(b)
    if not several and not spread.asked:
        return compare(*open_sides(a, b, declare_a, declare_b), options)
    sides = (_found("reference", a), _found("candidate", b))
    names = _names(*sides) if is_several(a) and is_several(b) else {}
    left, right = (
        joined(spec, side, declare, names)
        for spec, side, declare in zip((a, b), sides, (declare_a, declare_b), strict=True)
    )
    by = way(left, right)
    declared, hashed = (tuple(declare_a), tuple(declare_b)), spread.resume is not None
    if names and by != "order":
        found = matched(*sides)
        each: list[tuple[str, tuple[Part, ...], tuple[Part, ...]]] = [
            (x.name, (Part(x.path, x.name),), (Part(y.path, x.name),)) for x, y in found.pairs
        ]
    elif spread.resume is None:
        return compare(*open_sides(a, b, declare_a, declare_b, spread.executor), options)
    else:
        parts = tuple(tuple(Part(shard.path, names.get(shard.path, "")) for shard in side) for side in sides)
        each = [("all", parts[0], parts[1])]
    jobs = [Job(name, i, (x, y), declared, options, by, hashed) for i, (name, x, y) in enumerate(each)]
    return Comparison(left, right, jobs, found.by if names and by != "order" else "nothing", spread).answer()


def open_sides(
    a: str, b: str, declare_a: Sequence[str] = (), declare_b: Sequence[str] = (), executor: Executor | None = None,
) -> tuple[Stream, Stream]:  # fmt: skip
    """Both sides as streams; a folder or a pattern of files is one stream of all its files.

    Where both sides are several files whose names or numbers agree, requests are paired within shards of the same name
    (ids that count from 0 in every file stay apart); else by their ids alone, which a note says.
    Raises InputError: as `open_stream`, and `shard_mismatch` for shards of a side that are not of one kind.
    """
    if not is_several(a) and not is_several(b):
        return open_stream(a, declare_a), open_stream(b, declare_b)
    left, right = _found("reference", a), _found("candidate", b)
    names: dict[Path, str] = {}
    if is_several(a) and is_several(b):
        names = _names(left, right)
    return joined(a, left, declare_a, names, executor), joined(b, right, declare_b, names, executor)


def _found(role: str, spec: str) -> tuple[Shard, ...]:
    if not is_several(spec):
        return (Shard(Path(spec).stem, Path(spec)),)
    shards = tuple(s for s in find(role, [spec], ENDINGS) if not s.path.name.endswith(SUFFIX))
    if not shards:
        raise input_error("file_unreadable", path=spec, reason=f"it holds no file that ends in {' or '.join(ENDINGS)}")
    return shards


def _names(left: Sequence[Shard], right: Sequence[Shard]) -> dict[Path, str]:
    """The name that requests of each file get, the same on both sides; empty where the shards do not correspond."""
    try:
        found = matched(left, right)
    except InputError:
        return {}
    if found.by == "order":
        return {}
    return {shard.path: a.name for a, b in found.pairs for shard in (a, b)}


def joined(
    spec: str,
    shards: Sequence[Shard],
    declare: Sequence[str],
    names: Mapping[Path, str],
    executor: Executor | None = None,
) -> Stream:
    """One stream of all shards, in their order. `names`: what stands before the ids of a file's requests. `executor`
    parses files of JSON (None: they are parsed as they are read, a request at a time).

    Raises InputError: as `open_stream`, `shard_mismatch` where two shards differ in format or in what is declared.
    """
    streams = [open_stream(shard.path, declare) for shard in shards]
    first = streams[0]
    for other in streams[1:]:
        _alike(first, other)
    ahead = executor if first.value("container") == table.JSON else None

    def requests() -> Iterator[Request]:
        parts = map(Stream.requests, streams) if ahead is None else _ahead(streams, tuple(declare), ahead)
        for stream, part in zip(streams, parts, strict=True):
            name = names.get(stream.path)
            for request in part:
                yield request if name is None else replace(request, request_id=f"{name}/{request.request_id}")

    if len(streams) == 1:
        return replace(first, open=requests)
    how = "requests are paired within shards of one name" if names else "requests are paired by their ids alone"
    notes = [f"{len(streams)} files; {how}", *dict.fromkeys(note for s in streams for note in s.notes)]
    carries = frozenset().union(*(s.carries for s in streams))
    return Stream(Path(spec), first.format, first.declared, carries, requests, tuple(notes))


def parsed(job: tuple[Path, tuple[str, ...]]) -> list[Request]:
    """All requests of a file; the job is its path and what is declared of it. Raises InputError as the readers do."""
    return list(open_stream(*job).requests())


def _ahead(streams: Sequence[Stream], declare: tuple[str, ...], executor: Executor) -> Iterator[Iterable[Request]]:
    """The requests of each file, in order. A file whose process is lost is read here, a request at a time.

    Raises InputError at the turn of a file that is not usable; RuntimeError for a fault of kcverify.
    """
    answers = executor.map(parsed, [(stream.path, declare) for stream in streams])
    ready: dict[int, Answer] = {}
    try:
        for index, stream in enumerate(streams):
            while index not in ready:
                answer = next(answers)
                ready[answer.index] = answer
            answer = ready.pop(index)
            if answer.diagnostics:
                raise InputError(*answer.diagnostics)
            if answer.fault:
                raise RuntimeError(f"{stream.path}: {answer.fault}")
            yield stream.requests() if answer.lost else answer.value
    finally:
        answers.close()


def _alike(first: Stream, other: Stream) -> None:
    """Raises InputError: `shard_mismatch`."""
    if first.format != other.format:
        detail = f"{first.path} is {first.format}, {other.path} is {other.format}"
        raise input_error("shard_mismatch", detail=detail, hint="compare dumps of one format")
    for key in sorted({*first.declared, *other.declared} - {*_OWN}):
        here, there = (_shown(s.declared.get(key)) for s in (first, other))
        if here != there:
            detail = f"{key} is {here} in {first.path} and {there} in {other.path}"
            raise input_error(
                "shard_mismatch", detail=detail, hint=f"declare {key} for all of them, or compare them apart"
            )


def _shown(declared: Declared | None) -> str:
    return "not declared" if declared is None else str(declared.value)
