"""Plans a run over dumps in several files, and measures one pair of shards."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kcverify.diagnostics import Diagnostic, InputError, diagnose, input_error
from kcverify.elaborate.contract import Contract
from kcverify.executors.records import FileState, Summary
from kcverify.measure.data import Request, load_data
from kcverify.measure.observed import Observer
from kcverify.measure.options import MeasureOptions
from kcverify.measure.outcomes import Outcomes, load_outcomes, open_parser
from kcverify.measure.records import packed
from kcverify.measure.run import Rows, file_requests, length_fault, one_sided_ids, run_pair, told_requests
from kcverify.measure.session import check_options, feed, load_monitor, translated
from kcverify.measure.sides import FILE_ENDINGS, FileSide, open_file
from kcverify.measure.times import Stamps, told_times
from kcverify.prove.check import Checked
from kcverify.readers.shards import Shard, find, is_several, matched
from kcverify.runtime.errors import MonitorInputError

_MOST_FINDINGS = 10


@dataclass(frozen=True)
class Job:
    """One pair of shards and everything that measuring it takes. `requests` are those of the data, None without data.

    `own`: metrics that are read off the candidate's logits; `told`: times of requests that the observations have.
    """

    name: str
    files: tuple[Path, Path]
    source: str
    contract: Contract
    temperature: float | None
    window: int
    batch: int | None
    own: tuple[str, ...]
    requests: tuple[Request, ...] | None = None
    told: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A run before it starts: a job for each pair of shards, requests in all, and how the shards were matched.

    `requests` has those of the data; `longest` is not known before.
    """

    jobs: tuple[Job, ...]
    total: int
    by: str
    names: tuple[str, str]
    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()


def specs(side: str | Sequence[str]) -> tuple[str, ...]:
    """A side as the files, folders and patterns that it was given as."""
    return (side,) if isinstance(side, str) else tuple(side)


def in_several(reference: str | Sequence[str], candidate: str | Sequence[str], options: MeasureOptions) -> bool:
    """Whether a pair is one of dumps in several files, or is to be treated so."""
    sides = [specs(side) for side in (reference, candidate)]
    asked = options.executor is not None or options.workers is not None or options.resume is not None
    return asked or any(len(side) > 1 or is_several(side[0]) for side in sides)


def plan_of(
    checked: Checked, source: str, reference: str | Sequence[str], candidate: str | Sequence[str], data: str | None,
    options: MeasureOptions,
) -> Plan:  # fmt: skip
    """Find, match and check the shards before anything is computed: only the heads of the files are read.

    Raises InputError: `option_invalid`, `side_failed`, `shard_mismatch` (every one, ten at most), `data_length` and
    those of the files and the data.
    """
    check_options(options, data)
    for asked, option in ((options.causes, "--causes"), (options.by_layer, "--by-layer")):
        if asked:
            reason = "it computes with kernels again, and these sides are recorded files"
            raise input_error("option_invalid", option=option, reason=reason)
    if options.watch is not None and options.watch.needs_rows:
        reason = "a dump in shards has no kernels to replay a request on"
        raise input_error("option_invalid", option="--witnesses", reason=reason)
    sides = tuple(_shards(role, specs(s)) for role, s in (("reference", reference), ("candidate", candidate)))
    found = matched(*sides)
    heads = [(open_file(a.path, hashed=False), open_file(b.path, hashed=False)) for a, b in found.pairs]
    _check(found.pairs, heads)
    lengths = [first.length for first, _ in heads]
    cut: list[tuple[Request, ...] | None] = [None] * len(lengths)
    total = sum(-(-length // options.window) for length in lengths)
    requests: list[Request] = []
    if data is not None:
        requests = load_data(
            data, window=options.window, tokenizer=None, vocabulary=heads[0][0].vocabulary, limit=options.limit
        )
        cut, total = list(_cut(requests, found.pairs, lengths, options.limit)), len(requests)
    temperature = None if options.temperature is None else float(options.temperature)
    if options.watch is not None:
        told = requests or file_requests(heads[0][0], options.window)[:1]
        heat = load_monitor(source, temperature).temperature
        options.watch.begin(checked.contract, heads[0], told, heat, options.batch)
    parse = open_parser(options.parse)
    outcomes = [] if options.observations is None else load_outcomes(options.observations, parse)
    carried = _carried(checked, source, options, outcomes)
    one = Job(
        "", (Path(), Path()), source, checked.contract, temperature, options.window, options.batch, carried,
        told=told_times(checked.contract, outcomes),
    )  # fmt: skip
    jobs = [
        replace(one, name=a.name, files=(a.path, b.path), requests=part)
        for (a, b), part in zip(found.pairs, cut, strict=True)
    ]
    names = (", ".join(specs(reference)), ", ".join(specs(candidate)))
    return Plan(tuple(jobs), total, found.by, names, tuple(requests), _notes(heads))


def _shards(role: str, given: tuple[str, ...]) -> tuple[Shard, ...]:
    for spec in given:
        if not is_several(spec) and Path(spec).suffix not in FILE_ENDINGS:
            if ":" not in spec and not Path(spec).suffix:
                raise input_error("file_unreadable", path=spec, reason="no such file or folder")
            reason = "dumps in shards, --executor, --workers and --resume are for recorded files on both sides"
            hint = f"give folders, patterns or files ending in {' or '.join(FILE_ENDINGS)}"
            raise input_error("side_failed", side=spec, reason=reason, hint=hint)
    return find(role, given, FILE_ENDINGS)


def _notes(heads: Sequence[tuple[FileSide, FileSide]]) -> tuple[str, ...]:
    """What the first pair of shards lacks, and with how many it is the same."""
    found = [note for first, second in heads for note in one_sided_ids(first, second)]
    more = f" (as in {len(found) - 1} more shards)" if len(found) > 1 else ""
    return (found[0] + more,) if found else ()


def _check(pairs: Sequence[tuple[Shard, Shard]], heads: Sequence[tuple[FileSide, FileSide]]) -> None:
    widths = Counter(side.vocabulary for head in heads for side in head)
    width = widths.most_common(1)[0][0]
    wrong: list[Diagnostic] = []
    for (a, b), (first, second) in zip(pairs, heads, strict=True):
        if first.length != second.length:
            detail = f"{a.path} has {first.length} rows, {b.path} has {second.length}"
            wrong.append(diagnose("shard_mismatch", detail=detail))
        for shard, side in ((a, first), (b, second)):
            if side.vocabulary != width:
                detail = (
                    f"{shard.path} has {side.vocabulary} vocabulary entries, {widths[width]} other files have {width}"
                )
                wrong.append(diagnose("shard_mismatch", detail=detail))
    if wrong:
        raise InputError(*wrong[:_MOST_FINDINGS])


def _cut(
    requests: Sequence[Request], pairs: Sequence[tuple[Shard, Shard]], lengths: Sequence[int], limit: int | None
) -> Iterator[tuple[Request, ...]]:
    """The requests of each shard: row i of all shards together belongs to position i of the data."""
    positions = sum(len(r.token_ids) for r in requests)
    if positions != sum(lengths):
        raise length_fault("the dump in shards", sum(lengths), positions, limit)
    waiting = iter(requests)
    for (shard, _), length in zip(pairs, lengths, strict=True):
        mine: list[Request] = []
        while length > 0:
            mine.append(next(waiting))
            length -= len(mine[-1].token_ids)
        if length < 0:
            detail = f"request {mine[-1].request_id} of the data runs over the end of {shard.path}"
            raise input_error("shard_mismatch", detail=detail, hint="write whole requests into one shard")
        yield tuple(mine)


def _carried(checked: Checked, source: str, options: MeasureOptions, outcomes: Sequence[Outcomes]) -> tuple[str, ...]:
    """What a worker reads off the candidate's logits: what the contract asks for and no file of outcomes carries."""
    monitor = load_monitor(source, None if options.temperature is None else float(options.temperature))
    own = Observer(monitor, checked.contract, outcomes, options.clock).own
    return tuple(name for name in own if name == "failure_rate")


def measure_shard(job: Job) -> Summary:
    """Measure one pair of shards, on one thread. Raises InputError as `measure_contract`; `file_unreadable` for a file
    that changes meanwhile.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        before = [path.stat() for path in job.files]
        monitor = load_monitor(job.source, job.temperature)
        first, second = (open_file(path) for path in job.files)
        requests = job.requests or _windows(job, first, second)
        observer = Observer(monitor, job.contract)
        observer.own = list(job.own)
        stamps = Stamps(job.contract, job.told)

        def take(rows: Rows) -> None:
            feed(monitor, job.contract, rows, stamps.of(rows))
            observer.take(rows)

        with torch.no_grad():
            outcome = run_pair(first, second, requests, on_rows=take, batch=job.batch)
        if not outcome.complete:
            raise KeyboardInterrupt
        files = tuple(map(_read_state, job.files, (first, second), before))
        longest = max(len(r.token_ids) for r in requests)
        state = packed(monitor.state_dict())
        return Summary(job.name, state, outcome.requests, outcome.rows, longest, (files[0], files[1]))
    except MonitorInputError as error:
        raise translated(error) from None
    except OSError as error:
        reason = error.strerror or error
        raise input_error("file_unreadable", path=error.filename or job.files[0], reason=reason) from error
    finally:
        torch.set_num_threads(threads)


def _read_state(path: Path, side: FileSide, before: os.stat_result) -> FileState:
    now = path.stat()
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise input_error("file_unreadable", path=path, reason="it changed while it was read")
    known = side.fingerprint
    return FileState(now.st_size, now.st_mtime_ns, known["format"], known["logits"])


def _windows(job: Job, first: FileSide, second: FileSide) -> tuple[Request, ...]:
    """Requests of a shard without data, named after it; token ids of whichever side has them."""
    return tuple(
        replace(r, request_id=f"{job.name}/{r.request_id}", fields={"shard": job.name, **r.fields})
        for r in told_requests(first, second, job.window) or ()
    )
