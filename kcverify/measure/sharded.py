"""Measures dumps in several files: each pair of shards gives a monitor's state, the states are merged, one report is made.

Merging is exact and free of order, so the result is the same bit for bit on every executor, with any number of workers,
and after a kill and a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from kcverify import __version__
from kcverify.diagnostics import Diagnostic, InputError, input_error
from kcverify.executors.pool import Executor, Processes, Serial
from kcverify.executors.records import Records, Summary
from kcverify.executors.runs import Reports, ShardRun
from kcverify.measure.observed import Observer
from kcverify.measure.options import MeasureOptions
from kcverify.measure.origin import digest_of_data, new_mark
from kcverify.measure.outcomes import load_outcomes, open_parser
from kcverify.measure.premise import measured_guarantees
from kcverify.measure.records import unpacked
from kcverify.measure.run import Outcome
from kcverify.measure.session import load_monitor, measured_run, result, told_data, translated
from kcverify.measure.shard import Job, Plan, measure_shard, plan_of
from kcverify.measure.times import Stamps
from kcverify.prove.check import Checked
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.report import build_report


@dataclass(frozen=True)
class Whole:
    """A side in several files, for the record."""

    name: str
    fingerprint: Mapping[str, str]


def measure_shards(
    checked: Checked, source: str, reference: str | Sequence[str], candidate: str | Sequence[str], data: str | None,
    options: MeasureOptions, executor: Executor | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure pairs of shards on an executor (None: a process a core) and return one result, as `measure_contract`.

    The result has `shards` beside: how many, how they were matched, and those whose process was lost, each with the
    reason; such a run, and one that Ctrl-C ends, is not complete. With `options.resume` finished shards are recorded in
    that folder and not measured again. Raises InputError: sides, data and options that are not usable, `shard_mismatch`,
    `resume_mismatch`; RuntimeError for a fault of kcverify in a worker.
    """
    plan = plan_of(checked, source, reference, candidate, data, options)
    run = Run(checked, source, plan, options, data)
    mark = run.mark()
    complete = run.through(executor or Processes(options.workers), plan.jobs)
    return run.finish(run.monitor, mark, complete=complete)


def measure_in_group(
    checked: Checked, source: str, reference: str | Sequence[str], candidate: str | Sequence[str], data: str | None,
    options: MeasureOptions, group: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """The same inside a `torch.distributed` group (None: the default one): each rank measures its share of the shards,
    every rank returns the whole result.

    All ranks must call it, with the same arguments and the same files in reach. What goes wrong on one rank is raised
    on all of them: InputError, RuntimeError.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    run: Run | None = None
    mine = _Rank()
    try:
        plan = plan_of(checked, source, reference, candidate, data, options)
        run = Run(checked, source, plan, options, data)
        mark = "" if rank else run.mark()
        complete = run.through(Serial(), plan.jobs[rank::world])
        mine = _Rank(tuple(job.name for job in plan.jobs), complete, done=run.done, lost=run.lost, mark=mark)
    except InputError as error:
        mine = _Rank(wrong=error.diagnostics)
    except Exception as error:
        mine = _Rank(fault=f"{type(error).__name__}: {error}")
    ranks = _gathered(mine, world, group)
    assert run is not None
    merged = run.monitor.sync(group)
    run.shards.done = {name: summary for one in ranks for name, summary in one.done.items()}
    run.shards.lost = {name: reason for one in ranks for name, reason in one.lost.items()}
    return run.finish(merged, ranks[0].mark, complete=all(one.complete for one in ranks))


@dataclass(frozen=True)
class _Rank:
    """What one rank of a group tells the others: the shards that it sees, what it did, what went wrong; the first one
    also the mark of the run."""

    names: tuple[str, ...] = ()
    complete: bool = False
    wrong: tuple[Diagnostic, ...] = ()
    fault: str = ""
    done: Mapping[str, Summary] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""


def _gathered(mine: _Rank, world: int, group: Any) -> list[_Rank]:
    """What all ranks tell. Raises on all of them what went wrong on one, so that none waits for another forever."""
    ranks: list[Any] = [None] * world
    dist.all_gather_object(ranks, mine, group=group)
    for one in ranks:
        if one.wrong:
            raise InputError(*one.wrong)
        if one.fault:
            raise RuntimeError(one.fault)
    if any(one.names != ranks[0].names for one in ranks):
        raise input_error("shard_mismatch", detail="the ranks of the group see different files")
    return ranks


class Run:
    """One run over the shards of a plan: what is done, what was lost, and the merged state.

    Raises InputError: `resume_mismatch`, `file_unwritable` for the folder of `options.resume`.
    """

    def __init__(self, checked: Checked, source: str, plan: Plan, options: MeasureOptions, data: str | None) -> None:
        self.checked, self.source, self.plan, self.options, self.data = checked, source, plan, options, data
        self.records = None if options.resume is None else Records(options.resume, self._identity())
        reports = Reports("measured", options.tell, options.progress, options.clock)
        self.shards = ShardRun(self._add, self.records, reports)
        self.monitor = load_monitor(source, plan.jobs[0].temperature)

    def _identity(self) -> dict[str, str]:
        """Everything that the state of a shard depends on beside its files."""
        job, contract = self.plan.jobs[0], self.checked.contract
        requests = self.plan.requests
        text = repr([(r.request_id, r.token_ids, sorted(r.tags), sorted(r.fields.items())) for r in requests])
        return {
            "kcverify": __version__,
            "contract": f"{contract.name} {self.checked.digest}",
            "monitor": hashlib.sha256(self.source.encode()).hexdigest(),
            "temperature": str(job.temperature),
            "window": str(job.window),
            "observed": ", ".join(job.own) or "nothing",
            "times": hashlib.sha256(repr(sorted(job.told.items())).encode()).hexdigest() if job.told else "none",
            "data": "none" if self.data is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        }

    def mark(self) -> str:
        """The mark of the run: that of the folder of finished shards where it is resumed. Raises InputError."""
        new = new_mark()
        return new if self.records is None else self.records.mark(new)

    def through(self, executor: Executor, jobs: Sequence[Job]) -> bool:
        """Do what is left of the jobs; False where Ctrl-C ended it. Raises InputError, RuntimeError as the jobs say."""
        return self.shards.through(executor, measure_shard, jobs)

    @property
    def done(self) -> dict[str, Summary]:
        """Finished shards by name, without their states."""
        return self.shards.done

    @property
    def lost(self) -> dict[str, str]:
        """Lost shards by name, with the reason."""
        return self.shards.lost

    def _add(self, summary: Summary) -> None:
        """A finished shard: its state is merged."""
        other = self.monitor.fresh()
        try:
            other.load_state_dict(unpacked(summary.state))
            self.monitor.merge(other)
        except MonitorInputError as error:
            raise translated(error) from None

    def finish(self, monitor: Any, mark: str, *, complete: bool) -> dict[str, Any]:
        """The result of the merged state `monitor`, which observes what the file of outcomes has, under the run's mark."""
        checked, options, plan = self.checked, self.options, self.plan
        done = [self.done[job.name] for job in plan.jobs if job.name in self.done]
        lost = [{"shard": job.name, "reason": self.lost[job.name]} for job in plan.jobs if job.name in self.lost]
        parse = open_parser(options.parse)
        outcomes = [] if options.observations is None else load_outcomes(options.observations, parse)
        notes = Observer(monitor, checked.contract, outcomes, options.clock).finish(plan.requests)
        counts = sum(s.requests for s in done), sum(s.rows for s in done)
        outcome = Outcome(complete and not lost, *counts)
        measured = build_report(monitor, one_look=options.fixed_sample)
        missing = [f"shard {entry['shard']} is missing: {entry['reason']}" for entry in lost]
        times = Stamps(checked.contract).notes(measured["clauses"])
        measured["notes"] += [*notes, *times, *plan.notes, *missing]
        _positions(measured["clauses"])
        sides = (self._side(done, 0), self._side(done, 1))
        longest = max((s.longest for s in done), default=0)
        seen = measured_run(monitor, outcome, self.data, longest, options)
        files = [file.sha256 for s in done for file in s.files]
        told = told_data(self.data, plan.total, digest_of_data(plan.requests, outcomes, files), options)
        found = result(checked, measured, outcome, sides, told, mark) | {
            "shards": {"total": len(plan.jobs), "measured": len(done), "matched_by": plan.by, "lost": lost},
            "measured_guarantees": measured_guarantees(checked, seen),
        }
        return found if options.watch is None else found | options.watch.finish(found)

    def _side(self, done: Sequence[Summary], index: int) -> Whole:
        digest = hashlib.sha256(
            "".join(f"{s.name} {s.files[index].sha256}\n" for s in done).encode("utf-8", "surrogatepass")
        ).hexdigest()
        formats = ", ".join(sorted({s.files[index].format for s in done}))
        name = self.plan.names[index]
        return Whole(name, {"side": name, "format": formats, "shards": str(len(done)), "logits": digest})


def _positions(clauses: Sequence[dict[str, Any]]) -> None:
    """The position of each worst value, which in a recorded request is its row."""
    for clause in clauses:
        worst = clause.get("max")
        if worst and isinstance(worst.get("row"), int):
            worst["position"] = worst["row"]
