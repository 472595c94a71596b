"""Sequential evidence of every cell: requests folded into the records of `sequential`."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kcverify.runtime.clauses import ClauseSpec, Layout
from kcverify.runtime.errors import option_error
from kcverify.runtime.readings import LARGEST_WEIGHT
from kcverify.runtime.sequential import Wealth
from kcverify.runtime.sources import OBSERVED

FIXED = 1 << 36
LARGEST = float(1 << 15)
LIMB = 32
_LOW = (1 << LIMB) - 1


def fixed_point(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values `[N]` in units of 2^-36, clipped to +-2^15, as limbs `(low, high)`, and which are not finite (they count 0).

    The number is `high * 2^32 + low` with `0 <= low < 2^32`: each limb, int64, adds up over 2^31 rows without overflow,
    where the number itself would overflow after 4,096 rows of the largest value.
    """
    broken = ~torch.isfinite(values)
    clipped = torch.where(broken, 0.0, values).clamp(-LARGEST, LARGEST)
    fixed = torch.round(clipped * FIXED).to(torch.int64)
    return fixed & _LOW, fixed >> LIMB, broken


class Evidence:
    """One `Wealth` record a cell; folding is a sum of integers over requests, so order and sharding do not matter.

    `worst` holds, for clauses on whole requests, the worst ratio that a folded request had, and that request's key.
    After the records of the cells come second ones, of the cells in `Layout.second`. The integers are unbounded; `packed` splits each into two limbs of 32 bits for a tensor.
    """

    def __init__(self, plan: Layout) -> None:
        self.layout = plan
        self.records = [Wealth() for _ in (*plan.cells, *plan.second)]
        self.worst: list[tuple[float, int] | None] = [None for _ in plan.cells]
        self.requests = 0

    def fold(
        self, keys: Sequence[int], sums: torch.Tensor, upper: Mapping[str, float], lower: Mapping[str, float]
    ) -> None:
        """Add requests, given by their keys and ledger sums `[k, columns]`."""
        self.requests += len(keys)
        table = sums.cpu()
        for index, cell in enumerate(self.layout.cells):
            clause = self.layout.clauses[cell.clause]
            if clause.source in OBSERVED:
                continue
            columns = table[:, self.layout.columns(index)]
            sizes = torch.cat((table[:, self.layout.group(clause, cell.slice)][:, None], columns), 1).tolist()
            if clause.source == "rows":
                limit = mean_limit(clause, upper[clause.name], lower[clause.name])
                self._fold_rows(index, clause, Counter(tuple(v) for v in sizes if v[0] > 0), limit)
            else:
                self._fold_requests(index, clause, keys, sizes, (lower[clause.name], upper[clause.name]))

    def _fold_rows(self, index: int, clause: ClauseSpec, counted: Mapping[tuple[int, ...], int], limit: float) -> None:
        for (rows, low, high, broken), count in counted.items():
            value = _row_value(clause, rows, (high << LIMB) + low, broken)
            self.records[index].add(value, limit, count, bounded=clause.bounded)

    def _fold_requests(
        self,
        index: int,
        clause: ClauseSpec,
        keys: Sequence[int],
        sizes: Sequence[Sequence[int]],
        limits: tuple[float, float],
    ) -> None:
        for key, (rows, low, high, broken) in zip(keys, sizes, strict=True):
            if rows == 0:
                continue
            if clause.source in ("ess", "perplexity", "calibration"):
                self._add_request(index, clause.source, rows, (high << LIMB) + low, broken)
                continue
            value = _request_ratio(clause.source, rows, (high << LIMB) + low, broken)
            if clause.evidence == "mean":
                self.records[index].add(value, mean_limit(clause, limits[1], limits[0]), bounded=False)
            else:
                exceeds = not limits[0] <= value <= limits[1]
                self.records[index].add(1.0 if exceeds else 0.0, clause.exception, 1)
            self.offer(index, value, key)

    def second(self, index: int) -> Wealth:
        """The second record of a cell that keeps one."""
        return self.records[len(self.layout.cells) + self.layout.second.index(index)]

    def _add_request(self, index: int, source: str, rows: int, total: int, broken: int) -> None:
        """Add a request to the sums of a reading: its weight and the square, or its log ratio and its rows."""
        value, other = 0.0, float(rows)
        if source == "perplexity":
            value = total / FIXED
        elif source == "ess":
            value = _request_ratio("sequence", rows, total, broken)
            other = value * value
        if broken or value > LARGEST_WEIGHT:
            value = other = math.inf
        self.records[index].add(value, 0.0, bounded=False)
        if index in self.layout.second:
            self.second(index).add(other, 0.0, bounded=False)

    def offer(self, index: int, value: float, key: int) -> None:
        """Keep the ratio that is farthest from 1 (see `badness`); ties go to the smaller key."""
        kept = self.worst[index]
        if kept is None or (badness(value), -key) > (badness(kept[0]), -kept[1]):
            self.worst[index] = (value, key)

    def merge(self, other: Evidence) -> None:
        """Add the records of another."""
        self.requests += other.requests
        for mine, theirs in zip(self.records, other.records, strict=True):
            mine.merge(theirs)
        for index, theirs_worst in enumerate(other.worst):
            if theirs_worst is not None:
                self.offer(index, *theirs_worst)

    def copy(self) -> Evidence:
        """An independent copy."""
        other = Evidence(self.layout)
        other.records, other.worst, other.requests = copy.deepcopy(self.records), list(self.worst), self.requests
        return other

    def packed(self) -> torch.Tensor:
        """Every integer of the records and the number of requests as limbs, int64 `[2, integers]`; sums are additive."""
        numbers = [n for record in self.records for n in _integers(record)] + [self.requests]
        limbs = [[n & _LOW for n in numbers], [n >> LIMB for n in numbers]]
        return torch.tensor(limbs, dtype=torch.int64, device="cpu")

    def unpack(self, limbs: torch.Tensor) -> None:
        """Set the records from limbs int64 `[2, integers]`, sums of what `packed` gave over any number of shards."""
        low, high = limbs.tolist()
        numbers = iter([(h << LIMB) + n for n, h in zip(low, high, strict=True)])
        self.records = [_record(numbers) for _ in self.records]
        self.requests = next(numbers)

    def state(self) -> dict[str, object]:
        """One tensor and plain containers, for a checkpoint."""
        return {"records": self.packed(), "worst": list(self.worst)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        records, worst = state["records"], state["worst"]
        if records.shape != self.packed().shape or len(worst) != len(self.layout.cells):
            raise option_error("state", "its evidence has the shape of another contract or version")
        self.unpack(records)
        self.worst = [None if w is None else (float(w[0]), int(w[1])) for w in worst]


def mean_limit(clause: ClauseSpec, upper: float, lower: float) -> float:
    """The number that the clause's sequential test compares a mean or a share with."""
    if clause.limit is not None:
        return clause.limit
    return upper if math.isfinite(upper) else 1.0 - lower


def _integers(record: Wealth) -> Iterator[int]:
    """The fields of a record in the order of their definition."""
    for value in vars(record).values():
        yield from value if isinstance(value, list) else (value,)


def _record(numbers: Iterator[int]) -> Wealth:
    """A record whose fields take the next numbers."""
    record = Wealth()
    for name, value in vars(record).items():
        setattr(record, name, [next(numbers) for _ in value] if isinstance(value, list) else next(numbers))
    return record


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


def badness(value: float) -> tuple[float, bool, float]:
    """Order of ratios from good to bad: distance from 1 in logs, then above 1 before below, then away from 1."""
    above = value >= 1.0
    distance = abs(math.log(value)) if 0.0 < value < math.inf else math.inf
    return distance, above, value if above else -value
