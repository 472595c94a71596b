"""A monitor as a torchmetrics metric, for trainers that keep, log, reset and synchronise metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from kcverify.runtime.ledger import RequestIds
from kcverify.runtime.monitor import Monitor


class ContractMetric(Metric):  # type: ignore[misc]
    """`update` as the monitor's, `compute` is its report: the verdicts of all processes, as plain JSON values.

    Synchronisation is `Monitor.sync`: three all-reduces instead of a gather for each state; its rule on requests holds.
    `state_dict` holds the monitor's state under the prefix `monitor.`. The settings of torchmetrics that gather or move
    list states (`dist_sync_fn`, `compute_on_cpu`) have nothing to act on.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def __init__(self, monitor: Monitor, **settings: Any) -> None:
        """Wrap a monitor, which goes on as part of the metric; `settings` are those of `torchmetrics.Metric`."""
        super().__init__(**settings)
        self.monitor = monitor

    def update(
        self,
        reference_logits: torch.Tensor,
        candidate_logits: torch.Tensor,
        *,
        request_ids: RequestIds,
        **inputs: Any,
    ) -> None:
        """Measure rows: see `Monitor.update`."""
        self.monitor.update(reference_logits, candidate_logits, request_ids=request_ids, **inputs)

    def compute(self) -> dict[str, Any]:
        """The report of everything since `reset`, over all processes when torchmetrics synchronises."""
        return self.monitor.report()

    def forward(
        self,
        reference_logits: torch.Tensor,
        candidate_logits: torch.Tensor,
        *,
        request_ids: RequestIds,
        sampled_ids: torch.Tensor | None = None,
        **inputs: Any,
    ) -> dict[str, Any]:
        """Count a batch and return its own report (over all processes with `dist_sync_on_step`).

        The row statistics are computed once. The batch is a sample of its own: its rows are numbered from 0.
        """
        if self._is_synced:
            raise TorchMetricsUserError("the metric is synchronised: call `unsync` before `forward`")
        batch, logits = self.monitor.fresh(), (reference_logits, candidate_logits)
        rows = self.monitor.rows(*logits, sampled_ids)
        for monitor in (batch, self.monitor):
            monitor.count(rows, request_ids=request_ids, logits=logits, sampled_ids=sampled_ids, **inputs)
        self._update_count += 1
        self._computed = None
        self._forward_cache = (batch.sync(self.process_group) if self.dist_sync_on_step else batch).report()
        return self._forward_cache

    def observe(self, metric: str, **given: Any) -> None:
        """Count what was measured beside the logits: see `Monitor.observe`."""
        self._computed = None
        self._update_count += 1
        self.monitor.observe(metric, **given)

    def close(self, ids: RequestIds) -> None:
        """Say that requests get no more rows: see `Monitor.close`."""
        self._computed = None
        self.monitor.close(ids)

    def reset(self) -> None:
        """Forget everything that was measured."""
        super().reset()
        self.monitor.reset()

    def merge_state(self, incoming_state: ContractMetric) -> None:
        """Add the state of another metric of the same contract: see `Monitor.merge`."""
        self.monitor.merge(incoming_state.monitor)
        self._computed = None
        self._update_count += incoming_state.update_count

    def _copy_state_dict(self) -> dict[str, Any]:
        """What `sync` keeps and `unsync` puts back: this process's own monitor."""
        return {**super()._copy_state_dict(), "monitor": self.monitor}

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] | None = None, process_group: Any = None) -> None:
        self.monitor = self.monitor.sync(process_group or self.process_group)
