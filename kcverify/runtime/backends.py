"""The backends of the row statistics: one table, one semantics, chosen by device with an override."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from kcverify.runtime.agreement import top_agreement
from kcverify.runtime.careful import careful_rows
from kcverify.runtime.errors import option_error
from kcverify.runtime.gpu import launch
from kcverify.runtime.lean import tile_sums
from kcverify.runtime.native import library
from kcverify.runtime.oracle import oracle_rows, oracle_top
from kcverify.runtime.rowplan import RowPlan, agreement_column
from kcverify.runtime.sums import RowSums, certificate
from kcverify.runtime.workspace import Workspace, tiles

OVERRIDE = "KCVERIFY_BACKEND"
"""Environment variable that names the backend; empty or unset chooses by device."""


@dataclass(frozen=True)
class Job:
    """One call: logits `[N, V]`, what is wanted, the sampled ids int64 `[N]` or None, and buffers to work in."""

    reference: torch.Tensor
    candidate: torch.Tensor
    plan: RowPlan
    temperature: float
    sampled: torch.Tensor | None
    space: Workspace


@dataclass(frozen=True)
class Columns:
    """Answer of a backend: `values` float64 `[N]` by column name, `invalid` bool `[N]`, `only` int64 `[2, N]`.

    `only` counts the tokens that the reference alone has, then those that the candidate alone has.
    """

    values: dict[str, torch.Tensor]
    invalid: torch.Tensor
    only: torch.Tensor


Parts = tuple[RowSums, Mapping[str, torch.Tensor], torch.Tensor]
"""Sums of a job, its top-k agreements by column, and which rows `[N]` drift too far for them."""


@dataclass(frozen=True)
class Backend:
    """One row of the table: `unavailable` says why it cannot run a job (empty: it can), `run` runs it.

    `sums` gives its sums alone, which parts of a vocabulary merge; `by_name` says for which jobs it runs only when it
    is asked for.
    """

    name: str
    unavailable: Callable[[Job], str]
    run: Callable[[Job], Columns]
    sums: Callable[[Job], Parts] | None = None
    by_name: Callable[[Job], bool] = lambda job: False


def _always(job: Job) -> str:
    return ""


def _oracle(job: Job) -> Columns:
    rows = oracle_rows(
        job.reference.cpu(), job.candidate.cpu(), temperature=job.temperature,
        sampled_ids=None if job.sampled is None else job.sampled.cpu(),
    )  # fmt: skip
    device = job.reference.device
    column = {k: torch.tensor(v, dtype=torch.float64, device=device) for k, v in rows.items()}
    values = {name: column[name] for name in job.plan.sums}
    limit = job.plan.certified
    if limit is not None:
        bound = certificate(column["kl_reference_candidate"])
        values["tv"] = torch.where(bound <= limit, bound, values["tv"])
    for k, ordered in job.plan.top:
        found = oracle_top(job.reference.cpu(), job.candidate.cpu(), k, ordered)
        values[agreement_column(k, ordered)] = torch.tensor(found, dtype=torch.float64, device=device)
    only = torch.stack((column["reference_only"], column["candidate_only"])).to(torch.int64)
    return Columns(values, column["invalid"] > 0, only)


def _lean_sums(job: Job) -> Parts:
    z, w, plan = job.reference, job.candidate, job.plan
    count, width = z.shape
    space = job.space.prepared(z, w)
    sums = RowSums(count, z.device)
    best = (1, False) in plan.top
    tops = {agreement_column(k, o): torch.zeros_like(sums.sums["S"]) for k, o in plan.top if k > 1}
    for start, stop in tiles(count, width, z.device):
        a, b = z[start:stop], w[start:stop]
        tile_sums(a, b, space, sums.rows(start, stop), plan.sums, 1.0 / job.temperature, top=best)
        for k, ordered in plan.top:
            if k > 1:
                tops[agreement_column(k, ordered)][start:stop] = top_agreement(a, b, k, ordered)
    if best:
        tops[agreement_column(1, False)] = sums.sums["top"]
    return sums, tops, sums.careful()


def _cpp_sums(job: Job) -> Parts:
    sums, tops = library.fill(job.reference, job.candidate, job.plan, 1.0 / job.temperature, job.space)
    return sums, tops, sums.careful(library.REACH)


def _triton_sums(job: Job) -> Parts:
    filled = launch.fill(job.reference, job.candidate, job.plan, 1.0 / job.temperature, job.space)
    return filled.sums, filled.tops, filled.far


def _from_sums(job: Job, parts: Parts) -> Columns:
    """The answer that follows from a row's sums; rows that drift too far are computed again in float64."""
    sums, tops, far = parts
    plan, scale = job.plan, 1.0 / job.temperature
    values = sums.finish(plan.sums, scale, job.reference, job.candidate, job.sampled, plan.certified)
    if plan.softmax:
        careful_rows(job.reference, job.candidate, far, values, scale, job.sampled, plan.certified)
    return Columns(values | dict(tops), sums.invalid, sums.only)


def _lean(job: Job) -> Columns:
    return _from_sums(job, _lean_sums(job))


def _cpp(job: Job) -> Columns:
    return _from_sums(job, _cpp_sums(job))


def _no_cpp(job: Job) -> str:
    return library.unavailable(job.reference, job.candidate, job.plan, 1.0 / job.temperature)


def _triton(job: Job) -> Columns:
    z, w, plan, scale = job.reference, job.candidate, job.plan, 1.0 / job.temperature
    filled = launch.fill(z, w, plan, scale, job.space)
    values = launch.statistics(filled, plan, scale, job.sampled)
    return Columns(values | filled.tops, filled.sums.invalid, filled.sums.only)


def _no_triton(job: Job) -> str:
    return launch.unavailable(job.reference, job.candidate)


def _on_host(job: Job) -> bool:
    return bool(job.reference.device.type == "cpu")


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        b.name: b
        for b in (
            Backend("cpp", _no_cpp, _cpp, _cpp_sums),
            Backend("triton", _no_triton, _triton, _triton_sums, by_name=_on_host),
            Backend("lean", _always, _lean, _lean_sums),
            Backend("oracle", _always, _oracle),
        )
    }
)


def choose(job: Job, name: str | None = None) -> Backend:
    """The backend of this name (or of the environment's), else the first of the table that can run the job.

    Raises `MonitorInputError` for an unknown name and for one that cannot run here.
    """
    wanted = name or os.environ.get(OVERRIDE, "")
    if not wanted:
        return next(b for b in BACKENDS.values() if not b.by_name(job) and not b.unavailable(job))
    if wanted not in BACKENDS:
        raise option_error("backend", f"{wanted} is none of {', '.join(BACKENDS)}")
    reason = BACKENDS[wanted].unavailable(job)
    if reason:
        raise option_error("backend", f"{wanted} cannot run here: {reason}")
    return BACKENDS[wanted]


def local_sums(job: Job) -> tuple[RowSums, torch.Tensor]:
    """Sums of the job's rows from the fastest backend that keeps sums, and which rows drift too far for them."""
    backend = next(b for b in BACKENDS.values() if b.sums and not b.by_name(job) and not b.unavailable(job))
    assert backend.sums is not None
    sums, _, far = backend.sums(job)
    return sums, far


__all__ = ["BACKENDS", "OVERRIDE", "Backend", "Columns", "Job", "choose", "local_sums"]
