"""Sequential evidence of every cell: requests folded into the records of `sequential`."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from kcverify.runtime.clauses import ClauseSpec, Layout
from kcverify.runtime.sequential import Wealth

FIXED = 1 << 36
LARGEST = float(1 << 15)


def fixed_point(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values `[N]` in units of 2^-36 (int64, clipped to +-2^15), and which are not finite (they count 0)."""
    broken = ~torch.isfinite(values)
    clipped = torch.where(broken, 0.0, values).clamp(-LARGEST, LARGEST)
    return torch.round(clipped * FIXED).to(torch.int64), broken


class Evidence:
    """One `Wealth` record a cell; folding is a sum of integers over requests, so order and sharding do not matter.

    `worst` holds, for clauses on whole requests, the worst ratio that a folded request had, and that request's key.
    """

    def __init__(self, plan: Layout) -> None:
        self.layout = plan
        self.records = [Wealth() for _ in plan.cells]
        self.worst: list[tuple[float, int] | None] = [None for _ in plan.cells]
        self.requests = 0

    def fold(
        self, keys: Sequence[int], sums: torch.Tensor, upper: Mapping[str, float], lower: Mapping[str, float]
    ) -> None:
        """Add requests, given by their keys and ledger sums `[k, columns]`."""
        self.requests += len(keys)
        table = sums.cpu()
        slices = len(self.layout.slices)
        for index, cell in enumerate(self.layout.cells):
            clause = self.layout.clauses[cell.clause]
            rows = table[:, self.layout.slot[cell.slice]]
            columns = table[:, slices + 2 * index : slices + 2 * index + 2]
            sizes = torch.cat((rows[:, None], columns), 1).tolist()
            if clause.source == "rows":
                limit = mean_limit(clause, upper[clause.name], lower[clause.name])
                self._fold_rows(index, clause, Counter(tuple(v) for v in sizes if v[0] > 0), limit)
            else:
                self._fold_requests(index, clause, keys, sizes, (lower[clause.name], upper[clause.name]))

    def _fold_rows(self, index: int, clause: ClauseSpec, counted: Mapping[tuple[int, ...], int], limit: float) -> None:
        for (rows, total, broken), count in counted.items():
            self.records[index].add(_row_value(clause, rows, total, broken), limit, count, bounded=clause.bounded)

    def _fold_requests(
        self,
        index: int,
        clause: ClauseSpec,
        keys: Sequence[int],
        sizes: Sequence[Sequence[int]],
        limits: tuple[float, float],
    ) -> None:
        for key, (rows, total, broken) in zip(keys, sizes, strict=True):
            if rows == 0:
                continue
            value = _request_ratio(clause.source, rows, total, broken)
            exceeds = not limits[0] <= value <= limits[1]
            self.records[index].add(1.0 if exceeds else 0.0, clause.exception, 1)
            self._offer(index, value, key)

    def _offer(self, index: int, value: float, key: int) -> None:
        """Keep the ratio that is farthest from 1; ties go to the larger value, then to the smaller key."""
        kept = self.worst[index]
        if kept is None or (_distance(value), value, -key) > (_distance(kept[0]), kept[0], -kept[1]):
            self.worst[index] = (value, key)

    def merge(self, other: Evidence) -> None:
        """Add the records of another."""
        self.requests += other.requests
        for mine, theirs in zip(self.records, other.records, strict=True):
            mine.merge(theirs)
        for index, theirs_worst in enumerate(other.worst):
            if theirs_worst is not None:
                self._offer(index, *theirs_worst)

    def copy(self) -> Evidence:
        """An independent copy."""
        other = Evidence(self.layout)
        other.records, other.worst, other.requests = copy.deepcopy(self.records), list(self.worst), self.requests
        return other

    def state(self) -> dict[str, object]:
        """Plain containers for a checkpoint."""
        return {"records": [dict(vars(r)) for r in self.records], "worst": list(self.worst), "requests": self.requests}

    def load(self, state: Mapping[str, object]) -> None:
        """Restore what `state` returned."""
        records, worst, requests = state["records"], state["worst"], state["requests"]
        assert isinstance(records, list) and isinstance(worst, list) and isinstance(requests, int)
        self.records = [Wealth(**copy.deepcopy(r)) for r in records]
        self.worst, self.requests = list(worst), requests


def mean_limit(clause: ClauseSpec, upper: float, lower: float) -> float:
    """The number that the clause's sequential test compares a mean or a share with."""
    if clause.limit is not None:
        return clause.limit
    return upper if math.isfinite(upper) else 1.0 - lower


def _row_value(clause: ClauseSpec, rows: int, total: int, broken: int) -> float:
    """The request's share of exceeding rows, or the mean of its rows' values."""
    if clause.evidence != "mean":
        return total / rows
    if broken:
        return 1.0 if clause.bounded else math.inf
    value = max(0.0, total / FIXED / rows)
    return min(value, 1.0) if clause.bounded else value


def _request_ratio(source: str, rows: int, total: int, broken: int) -> float:
    """Reference over candidate of the whole response, or its geometric mean; infinite where a token is one-sided."""
    if broken:
        return math.inf
    exponent = -(total / FIXED) / (rows if source == "geometric" else 1)
    return math.exp(exponent) if exponent < 709.0 else math.inf


def _distance(value: float) -> float:
    return abs(math.log(value)) if 0.0 < value < math.inf else math.inf
