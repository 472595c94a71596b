"""Base of every generated monitor: counts, maxima, histograms and evidence of a pair of logit streams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from kcverify.runtime.clauses import ClauseSpec, Layout, Values, layout, lower_limit, upper_limit
from kcverify.runtime.errors import option_error, shape_error
from kcverify.runtime.evidence import Evidence, fixed_point
from kcverify.runtime.histogram import count_into
from kcverify.runtime.ledger import Ledger, RequestIds
from kcverify.runtime.report import build_report
from kcverify.runtime.rows import (
    RowPlan,
    Rows,
    Workspace,
    check_logits,
    check_sampled,
    check_temperature,
    row_statistics,
)
from kcverify.runtime.witness import LAST, Worst


class Monitor(torch.nn.Module):  # type: ignore[misc]
    """Measures the clauses of one contract on rows of reference and candidate logits.

    A generated subclass sets the constants below and `clause_values`. State is additive: `merge` in any order and any
    sharding by request gives the counts and verdicts of one process, bit for bit. Requests stay open (they may arrive
    in several updates) until `close`; `report` counts open requests as they stand and changes nothing.
    """

    CONTRACT: ClassVar[str] = ""
    VERSION: ClassVar[str] = ""
    DIGEST: ClassVar[str] = ""
    GUARANTEES: ClassVar[tuple[tuple[str, str], ...]] = ()
    TEMPERATURE: ClassVar[tuple[float, float] | None] = None
    CLAUSES: ClassVar[tuple[ClauseSpec, ...]] = ()
    PLAN: ClassVar[RowPlan] = RowPlan(frozenset())
    counts: torch.Tensor
    slice_counts: torch.Tensor
    cell_counts: torch.Tensor
    histograms: torch.Tensor
    worst_score: torch.Tensor
    worst_value: torch.Tensor
    worst_place: torch.Tensor

    def __init__(self, temperature: float | None = None) -> None:
        """`temperature` is the run's sampling temperature, in the range that the contract assumes.

        None means 1 where the range contains it (or none is stated), else the range's only value. Raises
        `MonitorInputError` for one that is no positive finite number, lies outside, or must be given.
        """
        super().__init__()
        low, high = self.TEMPERATURE or (0.0, math.inf)
        if temperature is None:
            temperature = low if low == high else 1.0
        check_temperature(temperature)
        if not low <= temperature <= high:
            raise option_error("temperature", f"{temperature} is outside the assumed range [{low}, {high}]")
        self.temperature = float(temperature)
        self.layout: Layout = layout(self.CLAUSES)
        self.upper = {c.name: upper_limit(c.upper, self.temperature) for c in self.CLAUSES}
        self.lower = {c.name: lower_limit(c.lower, self.temperature) for c in self.CLAUSES}
        self.workspace = Workspace()
        self._allocate()

    def _allocate(self) -> None:
        """Buffers: `counts` = rows, invalid, reference-only rows, candidate-only rows; per slice: rows, invalid,
        unknown membership; per cell: exceeding rows, rows whose inputs were missing."""
        cells, slices = len(self.layout.cells), len(self.layout.slices)
        for name, value in {
            "counts": torch.zeros(4, dtype=torch.int64),
            "slice_counts": torch.zeros(slices, 3, dtype=torch.int64),
            "cell_counts": torch.zeros(cells, 2, dtype=torch.int64),
            "histograms": torch.zeros(self.layout.histogram_shape, dtype=torch.int64),
            "worst_score": torch.full((cells,), -torch.inf, dtype=torch.float64),
            "worst_value": torch.zeros(cells, dtype=torch.float64),
            "worst_place": torch.full((cells, 3), LAST, dtype=torch.int64),
        }.items():
            self.register_buffer(name, value)
        self.ledger = Ledger(slices + 2 * cells)
        self.evidence = Evidence(self.layout)

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        """Values of every clause whose inputs are there, by clause name; a generated monitor writes this out."""
        raise NotImplementedError

    def update(
        self,
        reference_logits: torch.Tensor,
        candidate_logits: torch.Tensor,
        *,
        request_ids: RequestIds,
        sampled_ids: torch.Tensor | None = None,
        slices: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Measure N rows: logits `[N, V]` of one and the same tokens on both sides.

        `request_ids` names the request of each row (int64 `[N]`, or N strings or integers), in the order of the
        request's tokens; `sampled_ids` int64 `[N]` are the tokens that were sampled; `slices` maps a slice name to a
        bool `[N]`. Everything is checked before anything is counted; raises `MonitorInputError`.
        """
        check_logits(reference_logits, candidate_logits)
        count, device = reference_logits.shape[0], reference_logits.device
        if count == 0:
            raise shape_error("reference_logits", list(reference_logits.shape), "[rows, vocabulary] with rows")
        check_sampled(sampled_ids, reference_logits)
        masks = self._masks(slices or {}, count, device)
        self.ledger.keys(request_ids, count)
        with torch.no_grad():
            rows = row_statistics(
                reference_logits,
                candidate_logits,
                self.PLAN,
                temperature=self.temperature,
                sampled_ids=sampled_ids,
                workspace=self.workspace,
            )
            self._count_rows(rows, masks)
            values = self.clause_values(rows)
            entry = self.ledger.enter(request_ids, count, device)
            self._count_cells(rows, values, masks, entry, (reference_logits, candidate_logits, sampled_ids))
            self._fill_histograms(values, masks)

    def _count_cells(
        self,
        rows: Rows,
        values: Mapping[str, Values],
        masks: Sequence[torch.Tensor | None],
        entry: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    ) -> None:
        """Exceedances, sums by request and worst rows of every cell; `entry` = slots, keys, row numbers."""
        slots, keys, numbers = entry
        nothing = torch.zeros_like(slots)
        columns = [nothing if mask is None else mask.to(torch.int64) for mask in masks]
        for index, cell in enumerate(self.layout.cells):
            clause, mask = self.CLAUSES[cell.clause], masks[self.layout.slot[cell.slice]]
            found = values.get(clause.name)
            if found is None:
                self.cell_counts[index, 1] += len(rows)
            if found is None or mask is None:
                columns += [nothing, nothing]
                continue
            hit = found.exceeds & mask
            self.cell_counts[index, 0] += hit.sum()
            columns += self._contribution(clause, found, hit, mask)
            if clause.source == "rows":
                self.worst.offer(index, found, mask, keys, numbers, inputs, 1.0 / self.temperature, rows.invalid)
        self.ledger.add(slots, torch.stack(columns, 1))

    @property
    def worst(self) -> Worst:
        """View of the worst values."""
        return Worst(self.worst_score, self.worst_value, self.worst_place)

    def _masks(self, given: Mapping[str, torch.Tensor], count: int, device: torch.device) -> list[torch.Tensor | None]:
        """Row mask of each slice of the layout; None where it was not given."""
        masks: list[torch.Tensor | None] = [torch.ones(count, dtype=torch.bool, device=device)]
        for name in self.layout.slices[1:]:
            mask = given.get(str(name))
            if mask is not None and (tuple(mask.shape) != (count,) or mask.dtype != torch.bool):
                raise shape_error(f"slice {name}", f"{list(mask.shape)} of {mask.dtype}", f"[{count}] of torch.bool")
            masks.append(None if mask is None else mask.to(device))
        return masks

    def _count_rows(self, rows: Rows, masks: Sequence[torch.Tensor | None]) -> None:
        if self.counts.device != rows.invalid.device:
            self.to(rows.invalid.device)
        self.counts[0] += len(rows)
        self.counts[1] += rows.invalid.sum()
        self.counts[2] += (rows.reference_only > 0).sum()
        self.counts[3] += (rows.candidate_only > 0).sum()
        for index, mask in enumerate(masks):
            if mask is None:
                self.slice_counts[index, 2] += len(rows)
            else:
                self.slice_counts[index, 0] += mask.sum()
                self.slice_counts[index, 1] += (mask & rows.invalid).sum()

    @staticmethod
    def _contribution(clause: ClauseSpec, found: Values, hit: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        """The two ledger columns of a cell: what is summed over the request, and how many values are not finite."""
        if clause.evidence == "mean" or clause.source != "rows":
            fixed, broken = fixed_point(found.measure)
            return [torch.where(mask, fixed, 0), (mask & broken).to(torch.int64)]
        return [hit.to(torch.int64), torch.zeros_like(hit, dtype=torch.int64)]

    def _fill_histograms(self, values: Mapping[str, Values], masks: Sequence[torch.Tensor | None]) -> None:
        by_metric = {c.metric: values[c.name] for c in reversed(self.CLAUSES) if c.name in values}
        for index, (metric, name) in enumerate(self.layout.histograms):
            mask, found = masks[self.layout.slot[name]], by_metric.get(metric)
            if mask is not None and found is not None:
                count_into(self.histograms[index], found.value, mask)

    def close(self, ids: RequestIds) -> None:
        """Fold requests that will get no more rows into the evidence; unknown ids are ignored.

        Rows of a closed request that arrive later count as another request.
        """
        keys = self.ledger.keys(ids, len(ids))
        self.evidence.fold(*self.ledger.take(keys), self.upper, self.lower)

    def report(self) -> dict[str, Any]:
        """Counts, verdicts and evidence as plain JSON values; a non-finite number is written as a string.

        The only synchronisation with the device; nothing changes.
        """
        return build_report(self)

    def settled_evidence(self) -> Evidence:
        """The evidence with the open requests folded in as they stand (a copy)."""
        evidence = self.evidence.copy()
        evidence.fold(*self.ledger.used(), self.upper, self.lower)
        return evidence

    def merge(self, other: Monitor) -> None:
        """Add the state of another monitor of the same contract and temperature; `other` is left as it was."""
        if (type(self).CLAUSES, self.DIGEST) != (type(other).CLAUSES, other.DIGEST):
            raise option_error("merge", "the monitors are of different contracts")
        if self.temperature != other.temperature:
            raise option_error("merge", f"temperatures {self.temperature} and {other.temperature} differ")
        device = self.counts.device
        for name in ("counts", "slice_counts", "cell_counts", "histograms"):
            getattr(self, name).add_(getattr(other, name).to(device))
        theirs = Worst(*(t.to(device) for t in (other.worst_score, other.worst_value, other.worst_place)))
        self.worst.merge(theirs)
        self.ledger.merge(other.ledger)
        self.evidence.merge(other.evidence)

    def reset(self) -> None:
        """Forget everything that was measured."""
        device = self.counts.device
        self._allocate()
        self.to(device)

    def get_extra_state(self) -> dict[str, object]:
        """What `state_dict` holds beyond the buffers: open requests, evidence, temperature."""
        return {"ledger": self.ledger.state(), "evidence": self.evidence.state(), "temperature": self.temperature}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore it; `MonitorInputError` when it was measured at another temperature."""
        if state["temperature"] != self.temperature:
            raise option_error("state", f"measured at temperature {state['temperature']}, not {self.temperature}")
        self.ledger.load(state["ledger"])
        self.evidence.load(state["evidence"])
