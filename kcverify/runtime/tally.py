"""The counting of one batch of rows into a monitor's buffers: tensor operations only, in place.

Nothing here waits for a device, indexes by a mask or counts in Python, so the whole may be captured or compiled as one
graph. What differs from call to call in Python (which slices and inputs were given) is a guard of that graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kcverify.runtime.calibration import add_rows
from kcverify.runtime.clauses import ClauseSpec, Layout, Values
from kcverify.runtime.evidence import fixed_point
from kcverify.runtime.histogram import bin_index
from kcverify.runtime.rows import Rows
from kcverify.runtime.sources import OBSERVED, WINDOWS
from kcverify.runtime.witness import Inputs, Worst

Masks = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class Tables:
    """Views of a monitor's buffers (`Layout.sections`) and its open requests' sums `[slots, columns]`."""

    counts: torch.Tensor
    slice_counts: torch.Tensor
    cell_counts: torch.Tensor
    histograms: torch.Tensor
    observed: torch.Tensor
    calibration: torch.Tensor
    worst: Worst
    requests: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """Rows to count: slots and keys of their requests, int64 `[N]`; row numbers within them, int64 `[N]` (None: in the
    order of arrival); one mask bool `[N]` per group of rows (None: not given); what names the worst token; and seconds
    float64 `[N]` of the rows' requests (NaN: not known; None: of none)."""

    rows: Rows
    slots: torch.Tensor
    keys: torch.Tensor
    numbers: torch.Tensor | None
    masks: Masks
    inputs: Inputs
    times: torch.Tensor | None = None


def tally(plan: Layout, tables: Tables, batch: Batch, values: Mapping[str, Values]) -> None:
    """Add a batch and the values of its clauses (by name; one without its inputs is absent) to the tables."""
    rows, masks = batch.rows, batch.masks
    numbers = batch.numbers
    if numbers is None:
        numbers = tables.requests[:, 0].index_select(0, batch.slots) + places_in_groups(batch.slots)
    _count_rows(tables, rows, masks)
    nothing = torch.zeros_like(batch.slots)
    columns = [nothing if mask is None else mask.to(torch.int64) for mask in masks]
    offers: list[tuple[Values, torch.Tensor] | None] = []
    for index, cell in enumerate(plan.cells):
        clause = plan.clauses[cell.clause]
        mask = masks[plan.group(clause, cell.slice)]
        if clause.source in OBSERVED:
            columns += [nothing, nothing, nothing]
            offers.append(None)
            continue
        found = values.get(clause.name)
        if found is None:
            tables.cell_counts[index, 1] += len(rows)
        if found is None or mask is None:
            columns += [nothing, nothing, nothing]
            offers.append(None)
            continue
        hit = found.exceeds & mask
        tables.cell_counts[index, 0] += hit.sum()
        if clause.window is not None:
            _count_times(tables.observed[index], batch.times, clause.window, mask)
        columns += _contribution(clause, found, hit, mask)
        if clause.source == "calibration":
            add_rows(tables.calibration[plan.bins(index)], found.columns, mask, own=clause.own_bins)
        offers.append((found, mask) if clause.source == "rows" else None)
    tables.worst.offer(offers, batch.keys, numbers, rows.invalid, batch.inputs)
    tables.requests.index_add_(0, batch.slots, torch.stack(columns, 1))
    _fill_histograms(plan, tables, values, masks)


def places_in_groups(groups: torch.Tensor) -> torch.Tensor:
    """Of each entry of int64 `[N]`, how many equal ones come before it, int64 `[N]`."""
    order = torch.argsort(groups, stable=True)
    ranked = groups.index_select(0, order)
    place = torch.arange(groups.shape[0], device=groups.device)
    first = torch.ones_like(ranked, dtype=torch.bool)
    first[1:] = ranked[1:] != ranked[:-1]
    start = torch.where(first, place, 0).cummax(0).values
    return torch.empty_like(place).scatter_(0, order, place - start)


def _count_rows(tables: Tables, rows: Rows, masks: Masks) -> None:
    tables.counts[0] += len(rows)
    tables.counts[1] += rows.invalid.sum()
    tables.counts[2] += (rows.reference_only > 0).sum()
    tables.counts[3] += (rows.candidate_only > 0).sum()
    for index, mask in enumerate(masks):
        if mask is None:
            tables.slice_counts[index, 2] += len(rows)
        else:
            tables.slice_counts[index, 0] += mask.sum()
            tables.slice_counts[index, 1] += (mask & rows.invalid).sum()


def _count_times(counts: torch.Tensor, times: torch.Tensor | None, length: float, mask: torch.Tensor) -> None:
    """Add the rows' windows to a cell's `observed`: rows, and of those with a time number, sum and sum of squares."""
    counts[0] += mask.sum()
    if times is None:
        return
    known = mask & torch.isfinite(times)
    number = torch.where(known, torch.remainder(torch.floor(times / length), WINDOWS), 0.0).to(torch.int64)
    counts[4:] += torch.stack((known.sum(), number.sum(), (number * number).sum()))


def _contribution(clause: ClauseSpec, found: Values, hit: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """The three ledger columns of a cell: what is summed over the request (two limbs), and how many are not finite."""
    if clause.evidence == "mean" or clause.source != "rows":
        low, high, broken = fixed_point(found.measure)
        return [torch.where(mask, low, 0), torch.where(mask, high, 0), (mask & broken).to(torch.int64)]
    nothing = torch.zeros_like(hit, dtype=torch.int64)
    return [hit.to(torch.int64), nothing, nothing]


def _fill_histograms(plan: Layout, tables: Tables, values: Mapping[str, Values], masks: Masks) -> None:
    """Count each metric's values (those of its first clause) in the histograms of the slices that were given."""
    wanted = {metric for metric, _ in plan.histograms}
    first = {c.metric: values[c.name].value for c in reversed(plan.clauses) if c.name in values and c.metric in wanted}
    bins = {metric: bin_index(value) for metric, value in first.items()}
    about = {c.metric: c for c in reversed(plan.clauses) if c.metric in first}
    for index, (metric, name) in enumerate(plan.histograms):
        mask = masks[plan.group(about[metric], name)] if metric in about else None
        if mask is not None and metric in bins:
            tables.histograms[index].scatter_add_(0, bins[metric], mask.to(torch.int64))
