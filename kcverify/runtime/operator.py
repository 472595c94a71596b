"""The row statistics as one custom operator, which a compiled graph calls without breaking.

The plan travels as its fields; the operator returns the columns of `RowPlan.columns` as one float64 `[K, N]`, the
invalid rows as bool `[N]`, and the one-sided tokens as int64 `[2, N]`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from kcverify.runtime.backends import Job, choose
from kcverify.runtime.order import order_statistics
from kcverify.runtime.rowplan import RowPlan
from kcverify.runtime.workspace import Workspace, tiles

_spaces = threading.local()


def run(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    plan: RowPlan,
    temperature: float,
    sampled: torch.Tensor | None,
    space: Workspace | None,
    backend: str | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Columns, invalid rows and one-sided counts of checked inputs, through the operator.

    A `space` of the caller's own is used directly, without the operator, while nothing is being compiled.
    """
    reference, candidate = reference.detach(), candidate.detach()
    if space is not None and not torch.compiler.is_compiling():
        return _compute(reference, candidate, plan, temperature, sampled, space, backend)
    tops = [2 * k + int(ordered) for k, ordered in plan.top]
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = row_columns(
        reference,
        candidate,
        sampled,
        ",".join(sorted(plan.statistics)),
        tops,
        plan.tv_limit,
        temperature,
        backend or "",
    )
    return out


def _compute(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    plan: RowPlan,
    temperature: float,
    sampled: torch.Tensor | None,
    space: Workspace,
    backend: str | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    job = Job(reference, candidate, plan, temperature, sampled, space)
    found = choose(job, backend).run(job)
    found.values.update(_order(job))
    nan = torch.full((), torch.nan, dtype=torch.float64, device=reference.device)
    count = reference.shape[0]
    columns = [torch.where(found.invalid, nan, found.values[name]) for name in plan.columns]
    empty = torch.empty(0, count, dtype=torch.float64, device=reference.device)
    return (torch.stack(columns) if columns else empty), found.invalid, found.only


def _order(job: Job) -> dict[str, torch.Tensor]:
    """The statistics about choices, a tile of rows at a time."""
    if not job.plan.order:
        return {}
    z, w, ids = job.reference, job.candidate, job.sampled
    out = {name: torch.empty(z.shape[0], dtype=torch.float64, device=z.device) for name in job.plan.order}
    for start, stop in tiles(z.shape[0], z.shape[1], z.device):
        given = None if ids is None else ids[start:stop]
        scale = 1.0 / job.temperature
        found = order_statistics(z[start:stop], w[start:stop], job.plan.order, given, job.space, scale=scale)
        for name, column in found.items():
            out[name][start:stop] = column
    return out


def _plan(statistics: str, tops: Sequence[int], tv_limit: float | None) -> RowPlan:
    return RowPlan(frozenset(filter(None, statistics.split(","))), tuple((k // 2, bool(k % 2)) for k in tops), tv_limit)


@torch.library.custom_op("kcverify::row_columns", mutates_args=())  # type: ignore[untyped-decorator]
def row_columns(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    sampled: torch.Tensor | None,
    statistics: str,
    tops: list[int],
    tv_limit: float | None,
    temperature: float,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operator: `statistics` are joined by commas, `tops` are `2k + ordered`; buffers are kept for each thread."""
    space = getattr(_spaces, "space", None)
    if space is None:
        space = _spaces.space = Workspace()
    plan = _plan(statistics, tops, tv_limit)
    return _compute(reference, candidate, plan, temperature, sampled, space, backend or None)


@row_columns.register_fake  # type: ignore[untyped-decorator]
def _(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    sampled: torch.Tensor | None,
    statistics: str,
    tops: list[int],
    tv_limit: float | None,
    temperature: float,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    count, columns = reference.shape[0], _plan(statistics, tops, tv_limit).columns
    return (
        reference.new_empty((len(columns), count), dtype=torch.float64),
        reference.new_empty((count,), dtype=torch.bool),
        reference.new_empty((2, count), dtype=torch.int64),
    )
