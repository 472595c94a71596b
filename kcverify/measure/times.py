"""When the request of each row was: what clauses about a window in time need to be decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kcverify.elaborate.contract import Contract
from kcverify.measure.outcomes import Outcomes
from kcverify.measure.run import Rows

FIELD = "time_s"
"""Seconds from any fixed start, in a line of the data or of the observations."""


def told_times(contract: Contract, outcomes: Sequence[Outcomes]) -> dict[str, float]:
    """Times that the observations have, by request; empty where no clause is about a window."""
    if not windowed(contract):
        return {}
    return {o.request_id: o.time for o in outcomes if o.time is not None}


def windowed(contract: Contract) -> bool:
    """Whether any clause is about a window in time."""
    return any(clause.window is not None for clause in contract.clauses)


@dataclass
class Stamps:
    """Times of rows: `time_s` of the data, else `times` of a recorded file, else `time_s` of the observations (`told`, by
    request), else `clock`, the seconds since the run began, where the candidate computes."""

    contract: Contract
    told: Mapping[str, float] = field(default_factory=dict)
    clock: Callable[[], float] | None = None
    clocked: bool = False

    def of(self, rows: Rows) -> Tensor | None:
        """Seconds of the request of each row, float64 `[N]`, NaN where nothing tells; None where no clause asks."""
        if not windowed(self.contract):
            return None
        known = torch.tensor([self._request(r) for r in rows.requests], dtype=torch.float64)[rows.request_index]
        if rows.times is not None:
            known = torch.where(known.isnan(), rows.times, known)
        told = torch.tensor([self.told.get(r.request_id, math.nan) for r in rows.requests], dtype=torch.float64)
        known = torch.where(known.isnan(), told[rows.request_index], known)
        if self.clock is not None and bool(known.isnan().any()):
            self.clocked = True
            known = torch.where(known.isnan(), self.clock(), known)
        return known

    @staticmethod
    def _request(request: Any) -> float:
        value = request.fields.get(FIELD)
        return float(value) if isinstance(value, int | float) else math.nan

    def notes(self, clauses: Sequence[Mapping[str, Any]]) -> list[str]:
        """Where the times come from, and what clauses that they leave undecided (entries of a report) would need."""
        if not windowed(self.contract):
            return []
        notes = ["times of requests are those of the candidate's calls in this run"] if self.clocked else []
        about = {c.name: c.window for c in self.contract.clauses if c.window is not None}
        open_ = [c for c in clauses if c["name"] in about and c["verdict"] in ("unobservable", "inconclusive")]
        untimed = sorted({c["name"] for c in open_ if "the time of each request was not given" in c["reason"]})
        if untimed:
            where = f"`{FIELD}` in the data or the observations, or `times` in a .safetensors file of logits"
            notes.append(f"{', '.join(untimed)}: a window in time needs the time of every request: {where}")
        several = sorted({c["name"] for c in open_ if "several windows" in c["reason"]})
        if several:
            notes.append(f"{', '.join(several)}: measure the requests of one window at a time")
        return notes
