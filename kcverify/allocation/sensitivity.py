"""How far each module's format moves the logits: one module swapped at a time, every figure of the budgets at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kcverify.allocation.budget import Budget, row_weights
from kcverify.measure.data import Request
from kcverify.measure.layers import Unit, swapped
from kcverify.measure.run import default_batch, pair_rows
from kcverify.measure.sides import Basis, KernelSide
from kcverify.runtime.rows import RowPlan, row_statistics

Tell = Callable[[str], None]
MOST_KEPT = 1 << 29
"""Bytes of reference logits that are kept, so that they are computed once."""


def remembered(side: KernelSide, most: int = MOST_KEPT) -> KernelSide:
    """The side with the logits of ids that it has seen kept in memory, up to `most` bytes."""
    kept: dict[bytes, Tensor] = {}
    room = [most]

    def logits(ids: Tensor) -> Tensor:
        key = ids.numpy().tobytes() + bytes(repr(tuple(ids.shape)), "ascii")
        if key not in kept:
            found = side.logits(ids)
            size = found.numel() * found.element_size()
            if size > room[0]:
                return found
            room[0] -= size
            kept[key] = found
        return kept[key]

    return replace(side, logits=logits)


@dataclass(frozen=True)
class Figures:
    """The figure of every budget, in their order, and the rows that had no value (they count as infinite)."""

    values: tuple[float, ...]
    rows: int
    invalid: int


class Values:
    """Collects the row statistics of the budgets over batches; `figures()` at the end."""

    def __init__(self, budgets: Sequence[Budget], temperature: float) -> None:
        self.budgets, self.temperature = budgets, temperature
        self.plan = RowPlan(frozenset(b.statistic for b in budgets))
        self.columns: dict[str, list[Tensor]] = {b.statistic: [] for b in budgets}
        self.lengths: list[int] = []
        self.invalid = 0

    def add(self, reference: Tensor, candidate: Tensor, lengths: Sequence[int]) -> None:
        """Logits `[rows, vocabulary]` of requests of these lengths."""
        found = row_statistics(reference, candidate, self.plan, temperature=self.temperature)
        self.invalid += int(found.invalid.sum())
        for name, column in self.columns.items():
            column.append(found.values[name].cpu())
        self.lengths += lengths

    def figures(self) -> Figures:
        """Figures of all rows; NaN without any."""
        if not self.lengths:
            return Figures((math.nan,) * len(self.budgets), 0, 0)
        weights = row_weights(self.lengths)
        values = tuple(b.figure(torch.cat(self.columns[b.statistic]), weights) for b in self.budgets)
        return Figures(values, len(weights), self.invalid)


def figures(
    reference: KernelSide,
    candidate: KernelSide,
    requests: Sequence[Request],
    budgets: Sequence[Budget],
    temperature: float,
) -> Figures:
    """The budgets' figures of a pair on the requests. Raises InputError as the sides do."""
    seen = Values(budgets, temperature)
    size = default_batch(requests, reference.vocabulary)
    for rows in pair_rows(reference, candidate, requests, batch=size):
        seen.add(rows.reference, rows.candidate, [len(r.token_ids) for r in rows.requests])
    return seen.figures()


@dataclass(frozen=True)
class Sensitivity:
    """One unit in one format, all others the reference's: the figure of every budget."""

    unit: Unit
    format: str
    figures: Figures


def sensitivities(
    reference: KernelSide, bases: Mapping[str, Basis], units: Sequence[Unit], requests: Sequence[Request],
    budgets: Sequence[Budget], temperature: float, progress: Callable[[int, int], None] | None = None,
) -> list[Sensitivity]:  # fmt: skip
    """Every unit in every format, one at a time. The reference's own format moves nothing and is not run."""
    base = reference.basis
    assert base is not None
    out = []
    nothing = Figures((0.0,) * len(budgets), sum(len(r.token_ids) for r in requests), 0)
    for unit in units:
        for form, basis in bases.items():
            if basis.kernel.name == base.kernel.name:
                found = nothing
            else:
                found = figures(reference, swapped(reference, base, basis, unit), requests, budgets, temperature)
            out.append(Sensitivity(unit, form, found))
            if progress is not None:
                progress(len(out), len(units) * len(bases))
    return out
