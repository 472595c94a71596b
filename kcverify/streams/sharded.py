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
from kcverify.readers.shards import ENDINGS, Matched, Shard, corresponding, find, is_several
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
    declared, hashed = (tuple(declare_a), tuple(declare_b)), spread.resume is not None
    shards = (_found("reference", a), _found("candidate", b))
    found = _found_both(*shards) if is_several(a) and is_several(b) else None
    names = _names(found)
    sides = (_parts(shards[0], names), _parts(shards[1], names))
    whole = tuple(joined(spec, parts, told) for spec, parts, told in zip((a, b), sides, declared, strict=True))
    absent = {s.name: role for s, role in _lonely(found)}
    paired = tuple(tuple(p for p in parts if p.name not in absent) for parts in sides)
    by = way(*(joined(a, p, told) for p, told in zip(paired, declared, strict=True)) if absent else whole)
    each: list[tuple[str, tuple[Part, ...], tuple[Part, ...]]]
    if found is not None and by != "order":
        own = [{part.path: part for part in parts} for parts in sides]
        each = [(x.name, (own[0][x.path],), (own[1][y.path],)) for x, y in found.pairs]
        each += [(x.name, (own[0][x.path],), ()) for x in found.alone[0]]
        each += [(y.name, (), (own[1][y.path],)) for y in found.alone[1]]
    elif spread.resume is None and not absent:
        return compare(*open_sides(a, b, declare_a, declare_b, spread.executor), options)
    else:
        each = [("all", paired[0], paired[1])]
    jobs = [Job(name, i, (x, y), declared, options, by, hashed) for i, (name, x, y) in enumerate(each)]
    matched_by = "nothing" if found is None or (by == "order" and not absent) else found.by
    return Comparison(whole[0], whole[1], jobs, matched_by, spread, absent).answer()


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
    names = _names(_found_both(left, right) if is_several(a) and is_several(b) else None)
    return (
        joined(a, _parts(left, names), declare_a, executor),
        joined(b, _parts(right, names), declare_b, executor),
    )


def _found(role: str, spec: str) -> tuple[Shard, ...]:
    if not is_several(spec):
        return (Shard(Path(spec).stem, Path(spec)),)
    shards = tuple(s for s in find(role, [spec], ENDINGS) if not s.path.name.endswith(SUFFIX))
    if not shards:
        raise input_error("file_unreadable", path=spec, reason=f"it holds no file that ends in {' or '.join(ENDINGS)}")
    return shards


def _found_both(left: Sequence[Shard], right: Sequence[Shard]) -> Matched | None:
    """The shards that belong together; None where they do not correspond by name or number."""
    try:
        found = corresponding(left, right)
    except InputError:
        return None
    return None if found.by == "order" else found


def _lonely(found: Matched | None) -> list[tuple[Shard, str]]:
    """Shards that one side lacks, with that side."""
    left, right = ((), ()) if found is None else found.alone
    return [*((s, "candidate") for s in left), *((s, "reference") for s in right)]


def _names(found: Matched | None) -> dict[Path, str]:
    """The name that requests of each file get, the same on both sides; empty where the shards do not correspond."""
    pairs = () if found is None else found.pairs
    return {shard.path: a.name for a, b in pairs for shard in (a, b)} | {s.path: s.name for s, _ in _lonely(found)}


def _parts(shards: Sequence[Shard], names: Mapping[Path, str]) -> tuple[Part, ...]:
    """The files of a side. What a reader counted is told apart by shard, unless the one file of the side is all of it."""
    apart = names or len(shards) > 1
    return tuple(Part(s.path, names.get(s.path, ""), names.get(s.path, s.name) if apart else "") for s in shards)


def joined(spec: str, parts: Sequence[Part], declare: Sequence[str], executor: Executor | None = None) -> Stream:
    """One stream of all files of a side, in their order. `executor` parses files of JSON (None: they are parsed as they
    are read, a request at a time).

    Raises InputError: as `open_stream`, `shard_mismatch` where two shards differ in format or in what is declared.
    """
    streams = [open_stream(part.path, declare) for part in parts]
    first = streams[0]
    for other in streams[1:]:
        _alike(first, other)
    ahead = executor if first.value("container") == table.JSON else None

    def requests() -> Iterator[Request]:
        each = map(Stream.requests, streams) if ahead is None else _ahead(streams, tuple(declare), ahead)
        for part, found in zip(parts, each, strict=True):
            for request in found:
                yield replace(request, request_id=part.named(request.request_id))

    if len(streams) == 1:
        return replace(first, open=requests)
    how = "requests are paired within shards of one name" if parts[0].name else "requests are paired by their ids alone"
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
