"""Base of every generated monitor: counts, maxima, histograms and evidence of a pair of logit streams."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar

import torch

from kcverify.runtime.buffers import Buffers, alone
from kcverify.runtime.checkpoint import read, write
from kcverify.runtime.clauses import ClauseSpec, Layout, Values, layout, lower_limit, upper_limit
from kcverify.runtime.compiled import Compiled
from kcverify.runtime.distributed import Shard, fingerprint, reduced
from kcverify.runtime.errors import MonitorInputError, option_error, shape_error
from kcverify.runtime.evidence import Evidence
from kcverify.runtime.given import plain_number, row_integers, row_times, slice_masks, token_masks
from kcverify.runtime.ledger import Ledger, RequestIds
from kcverify.runtime.locks import new_lock
from kcverify.runtime.marks import new_mark, overlap, read_marks
from kcverify.runtime.observations import Side, observe
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
from kcverify.runtime.sources import OBSERVED
from kcverify.runtime.tally import Batch, Tables, tally
from kcverify.runtime.witness import Inputs, Worst

Pair = tuple[torch.Tensor, torch.Tensor]


class Monitor(Buffers):
    """Measures the clauses of one contract on rows of reference and candidate logits.

    A generated subclass sets the constants below and `clause_values`. State is additive: `merge` and `sync`, in any
    order and any sharding by request, give the counts and verdicts of one process, bit for bit. Requests stay open
    (they may arrive in several updates) until `close`; `report` counts open requests as they stand and changes nothing.
    Threads may share a monitor: its methods run one at a time. They may be called in inference mode or out of it.
    """

    CONTRACT: ClassVar[str] = ""
    VERSION: ClassVar[str] = ""
    DIGEST: ClassVar[str] = ""
    GUARANTEES: ClassVar[tuple[tuple[str, str], ...]] = ()
    TEMPERATURE: ClassVar[tuple[float, float] | None] = None
    CLAUSES: ClassVar[tuple[ClauseSpec, ...]] = ()
    PLAN: ClassVar[RowPlan] = RowPlan(frozenset())

    def __init__(self, temperature: float | None = None, *, exact: bool = False) -> None:
        """`exact` computes total variation on every row, also where a bound of it decides every clause.

        `temperature` is the run's sampling temperature, in the range that the contract assumes.

        None means 1 where the range contains it (or none is stated), else the range's only value. Raises
        `MonitorInputError` for one that is no positive finite number, lies outside, or must be given.
        """
        super().__init__()
        self.lock = new_lock()
        low, high = self.TEMPERATURE or (0.0, math.inf)
        if temperature is None:
            temperature = low if low == high else 1.0
        check_temperature(temperature := plain_number(temperature))
        if not low <= temperature <= high:
            raise option_error("temperature", f"{temperature} is outside the assumed range [{low}, {high}]")
        self.temperature = float(temperature)
        unread = [c.name for c in self.CLAUSES if c.source not in OBSERVED]
        if unread and type(self).clause_values is Monitor.clause_values:
            raise option_error(
                "clause_values", f"{type(self).__name__} does not say how {', '.join(unread)} is read off rows"
            )
        self.plan = self.PLAN.exact() if exact else self.PLAN
        self.layout: Layout = layout(self.CLAUSES)
        self.upper = {c.name: upper_limit(c.upper, self.temperature) for c in self.CLAUSES}
        self.lower = {c.name: lower_limit(c.lower, self.temperature) for c in self.CLAUSES}
        self.workspace = Workspace()
        self._counting: Callable[[Monitor, Batch], None] = Monitor._count
        self._allocate(torch.device("cpu"))

    def _allocate(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.allocate_buffers(device)
            self.ledger = Ledger(self.layout.width)
        self.evidence = Evidence(self.layout)
        self.origins: set[int] = set()

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        """Values of every clause whose inputs are there, by clause name; a generated monitor writes this out.

        The base has none, which does for clauses that `observe` alone feeds.
        """
        return {}

    @alone
    def update(
        self,
        reference_logits: torch.Tensor,
        candidate_logits: torch.Tensor,
        *,
        request_ids: RequestIds,
        sampled_ids: torch.Tensor | None = None,
        slices: Mapping[str, torch.Tensor] | None = None,
        positions: torch.Tensor | None = None,
        times: torch.Tensor | float | None = None,
    ) -> None:
        """Measure N rows: logits `[N, V]` of one and the same tokens on both sides.

        `request_ids` names the request of each row (int64 `[N]`, or N strings or integers), in the order of the
        request's tokens; give host ids, since ids on another device are copied, which waits for it. `sampled_ids` int64
        `[N]` are the tokens that were sampled (-1: none was, and clauses on tokens leave the row out); `slices` maps a slice name to a bool `[N]`. `positions` int64 `[N]` are
        the rows' numbers within their requests, for witnesses; without them rows are numbered as they come to this
        monitor, which is right unless a request's rows come out of order or to several monitors. `times` are seconds
        from any fixed start, one number or `[N]`: those of the rows' requests, for clauses about a window in time; one
        that is not finite counts as unknown. Everything is checked before anything is counted; raises `MonitorInputError`.
        """
        check_logits(reference_logits, candidate_logits)
        count, device = reference_logits.shape[0], reference_logits.device
        if count == 0:
            raise shape_error("reference_logits", list(reference_logits.shape), "[rows, vocabulary] with rows")
        check_sampled(sampled_ids, reference_logits)
        keys, masks = self.ledger.keys(request_ids, count), slice_masks(self.layout, slices or {}, count, device)
        numbers = row_integers("positions", positions, "row numbers", count, device)
        stamps = row_times(times, count, device)
        rows = self.rows(reference_logits, candidate_logits, sampled_ids)
        self._enter(rows, keys, masks, numbers, (reference_logits, candidate_logits), sampled_ids, stamps)

    @alone
    def rows(
        self, reference_logits: torch.Tensor, candidate_logits: torch.Tensor, sampled_ids: torch.Tensor | None = None
    ) -> Rows:
        """The row statistics that the contract needs, for `count`; nothing is counted."""
        return row_statistics(
            reference_logits,
            candidate_logits,
            self.plan,
            temperature=self.temperature,
            sampled_ids=sampled_ids,
            workspace=self.workspace,
        )

    @alone
    def count(
        self,
        rows: Rows,
        *,
        request_ids: RequestIds,
        logits: Pair | None = None,
        sampled_ids: torch.Tensor | None = None,
        slices: Mapping[str, torch.Tensor] | None = None,
        positions: torch.Tensor | None = None,
        times: torch.Tensor | float | None = None,
    ) -> None:
        """Count row statistics that were computed elsewhere (of `PLAN`, at this temperature); the rest as `update`.

        Without the `logits` that they are of, a witness names no token. With host ids nothing waits for the device.
        """
        count, device = len(rows), rows.invalid.device
        if count == 0:
            raise shape_error("rows", [0], "[rows] with rows")
        keys, masks = self.ledger.keys(request_ids, count), slice_masks(self.layout, slices or {}, count, device)
        tokens = row_integers("sampled_ids", sampled_ids, "token ids", count, device)
        numbers = row_integers("positions", positions, "row numbers", count, device)
        self._enter(rows, keys, masks, numbers, logits, tokens, row_times(times, count, device))

    def _enter(
        self,
        rows: Rows,
        keys: Sequence[int],
        masks: Sequence[torch.Tensor | None],
        numbers: torch.Tensor | None,
        logits: Pair | None,
        sampled: torch.Tensor | None,
        times: torch.Tensor | None,
    ) -> None:
        self._begin()
        if self.sums.device != rows.invalid.device:
            self.to(rows.invalid.device)
        new = [key for key in dict.fromkeys(keys) if key not in self.ledger.slots]
        slots, owners = self.ledger.enter(keys, rows.invalid.device)
        inputs = Inputs(logits, sampled, 1.0 / self.temperature)
        groups = [*masks, *token_masks(self.layout, masks, sampled, rows.invalid)]
        try:
            self._counting(self, Batch(rows, slots, owners, numbers, groups, inputs, times))
        except Exception:  # a graph that cannot be compiled fails before anything is counted
            self.ledger.take(new)
            raise

    def _begin(self) -> None:
        """Mark a state that starts to count: copies and merges of it carry the mark, so that none is added twice."""
        if not self.origins:
            self.origins.add(new_mark())

    def _count(self, batch: Batch) -> None:
        """The device part of an update: one graph."""
        sections = (
            self.counts, self.slice_counts, self.cell_counts, self.histograms, self.observed, self.calibration,
        )  # fmt: skip
        tables = Tables(*sections, self.worst, self.ledger.sums)
        tally(self.layout, tables, batch, self.clause_values(batch.rows))

    def compile(self, **options: Any) -> None:
        """Compile the counting (not the row statistics) with `torch.compile(fullgraph=True, **options)`.

        Updates of one shape never recompile; the first of another number of rows does, once, one of a single row, and
        the growth of the table of open requests (it doubles from 64). Each set of optional inputs, and each type of
        logits, has graphs of its own, which all monitors of this class share.
        """
        self._counting = Compiled(Monitor._count, **options)

    @alone
    def observe(
        self,
        metric: str,
        *,
        request_ids: RequestIds,
        values: Side | None = None,
        reference: Side | None = None,
        candidate: Side | None = None,
        seconds: Side | None = None,
        slices: Mapping[str, Sequence[bool] | torch.Tensor] | None = None,
        times: Sequence[float] | torch.Tensor | None = None,
    ) -> None:
        """Count what was measured beside the logits, a value a request: see `observations.observe`."""
        self._begin()
        given = {"values": values, "reference": reference, "candidate": candidate, "seconds": seconds}
        observe(self, metric, request_ids, {k: v for k, v in given.items() if v is not None}, slices or {}, times)

    @alone
    def close(self, ids: RequestIds) -> None:
        """Fold requests that will get no more rows into the evidence, which waits for the device; unknown ids are ignored.

        Rows of a closed request that arrive later count as another request.
        """
        keys = self.ledger.keys(list(ids) if isinstance(ids, Set) else ids)
        self.evidence.fold(*self.ledger.take(keys), self.upper, self.lower)
        ratios = [w[1] for w in self.evidence.worst if w is not None]
        self.ledger.forget([*self.places[:, 0].tolist(), *ratios])

    @alone
    def report(self, *, one_look: bool = False) -> dict[str, Any]:
        """Counts, verdicts and evidence as plain JSON values; a non-finite number is written as a string.

        `one_look`: tests for a sample of fixed size that is looked at once. Waits for the device; nothing changes.
        """
        return build_report(self, one_look=one_look)

    @alone
    def settled_evidence(self) -> Evidence:
        """The evidence with the open requests folded in as they stand (a copy)."""
        evidence = self.evidence.copy()
        evidence.fold(*self.ledger.used(), self.upper, self.lower)
        return evidence

    def fresh(self) -> Monitor:
        """A monitor like this one that has measured nothing."""
        other = copy.copy(self)
        other._buffers = {}
        other._allocate(self.sums.device)
        return other

    def merge(self, other: Monitor) -> None:
        """Add the state of another monitor of the same contract and temperature; `other` is left as it was.

        A state is added once only: the same rows counted twice would be evidence that is not there. `MonitorInputError`
        where both hold one and the same state: itself, a copy, what was loaded from a file, or a sync that it was part of.

        A request that is open in both becomes one request; its rows were numbered by each monitor on its own, so that
        a witness is exact only where `positions` were given.
        """
        if not isinstance(other, Monitor) or other is self:
            reason = "a monitor counts its rows once" if other is self else f"a {type(other).__name__} is no monitor"
            raise option_error("merge", reason)
        if (type(self).CLAUSES, self.DIGEST) != (type(other).CLAUSES, other.DIGEST):
            raise option_error("merge", "the monitors are of different contracts")
        if self.temperature != other.temperature:
            raise option_error("merge", f"temperatures {self.temperature} and {other.temperature} differ")
        if self.plan != other.plan:
            raise option_error("merge", "one monitor is `exact`, the other is not")
        first, second = sorted((self, other), key=id)
        with first.lock, second.lock:
            if (twice := overlap(self.origins, other.origins)) is not None:
                raise option_error("merge", twice)
            self._add(other)

    @alone
    def _add(self, other: Monitor) -> None:
        device = self.sums.device
        self.sums.add_(other.sums.to(device))
        self.worst.merge(Worst(other.extremes.to(device), other.places.to(device)))
        self.ledger.merge(other.ledger)
        self.evidence.merge(other.evidence)
        self.origins |= other.origins

    @alone
    def sync(self, process_group: Any = None) -> Monitor:
        """The merged state of all processes of a torch.distributed group, the same on each; this monitor is unchanged.

        Three all-reduces (float64 maxima, int64 minima, int64 sums) of a size that does not depend on the requests.
        Every rank must call it, with a monitor of one contract and temperature. Open requests are folded as they stand
        into the result, which holds closed requests only, so a request must belong to one rank: `MonitorInputError` on
        all ranks where one is seen to be open on two (see `distributed`), and where two ranks hold one and the same
        state, as after loading one file on both. Report the result and go on feeding this monitor: the results of two
        syncs, or one and what went into it, hold the same rows, and `merge` refuses them. Without an initialised group
        it is a copy.
        """
        evidence = self.settled_evidence()
        stamp = fingerprint(
            self.CONTRACT, self.DIGEST, repr(self.CLAUSES), repr(self.temperature), repr(self.plan.tv_limit)
        )
        shard = Shard(
            self.sums, self.extremes, self.places, evidence, list(self.ledger.slots), self.ledger.names, stamp,
            self.origins,
        )  # fmt: skip
        merged, other = reduced(shard, process_group), self.fresh()
        for mine, found in zip(other.buffers(), (merged.sums, merged.extremes, merged.places), strict=True):
            mine.copy_(found)
        other.evidence, other.ledger.names = merged.evidence, dict(merged.names)
        other.origins = set(merged.origins)
        return other

    @alone
    def reset(self) -> None:
        """Forget everything that was measured; buffers stay where they are."""
        self.clear_buffers()
        self.ledger.clear()
        self.evidence = Evidence(self.layout)
        self.origins = set()

    @alone
    def save(self, path: str | Path, progress: Mapping[str, Any] | None = None) -> None:
        """Write the state to a file in one step, with plain values of yours (which batch was last): see `checkpoint`."""
        write(path, self.state_dict(), progress or {})

    @alone
    def load(self, path: str | Path) -> dict[str, Any]:
        """Restore what `save` wrote and return its `progress`; `MonitorInputError` for a file that is not usable.

        Nothing changes unless all of the file can be used.
        """
        state, progress = read(path)
        other = self.fresh()
        try:
            other.load_state_dict(state)
            other.report()
        except MonitorInputError:
            raise
        except Exception as error:  # plain values of other shapes and types fail wherever they are first used
            reason = str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
            raise option_error("state", f"{path} does not fit this monitor: {reason}") from None
        for mine, found in zip(self.buffers(), other.buffers(), strict=True):
            mine.copy_(found)
        self.ledger, self.evidence, self.origins = other.ledger, other.evidence, other.origins
        return progress

    def get_extra_state(self) -> dict[str, object]:
        """What `state_dict` holds beyond the buffers: contract, temperature, origins, open requests, evidence."""
        identity = {"contract": self.CONTRACT, "digest": self.DIGEST, "temperature": self.temperature}
        identity |= {"tv_limit": self.plan.tv_limit, "origins": sorted(self.origins)}
        return identity | {"ledger": self.ledger.state(), "evidence": self.evidence.state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.ledger.load(state["ledger"])
        self.evidence.load(state["evidence"])
        self.origins = read_marks(state.get("origins", ()))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Refuse the state of another contract or temperature before anything is overwritten."""
        state = state_dict.get(prefix + "_extra_state")
        if state is not None:
            name, digest, temperature = (state.get(k) for k in ("contract", "digest", "temperature"))
            if (name, digest) != (self.CONTRACT, self.DIGEST):
                raise option_error("state", f"of contract {name!r} ({digest}), not of this one")
            if temperature != self.temperature:
                raise option_error("state", f"measured at temperature {temperature}, not {self.temperature}")
            if state.get("tv_limit", self.plan.tv_limit) != self.plan.tv_limit:
                raise option_error("state", "one monitor is `exact`, the other is not")
        for name, buffer in self.named_buffers():
            found = state_dict.get(prefix + name)
            if isinstance(found, torch.Tensor) and found.dtype != buffer.dtype:
                raise option_error("state", f"its {name} are {found.dtype}, not {buffer.dtype}")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has its own scratch space and lock, and counts without a compiled graph: none of them travels."""
        kept = {name: value for name, value in self.__dict__.items() if name != "lock"}
        return {**kept, "_counting": Monitor._count, "workspace": Workspace()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore it with a lock of its own."""
        super().__setstate__(state)
        self.lock = new_lock()
