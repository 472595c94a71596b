"""Figures of one comparison of logits: mean, largest value and 99.9 % quantile over rows, and how parts make up a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kcverify.runtime.report import number
from kcverify.runtime.rows import RowPlan, row_statistics

QUANTILE = 999, 1000


@dataclass(frozen=True)
class Figure:
    """A number a row: name, row statistic, unit, and what is known of a whole and the parts that it is made of."""

    name: str
    statistic: str
    unit: str
    rule: str


FIGURES: tuple[Figure, ...] = (
    Figure(
        "kl", "kl_reference_candidate", "nats",
        "KL is not additive: parts may sum to less or to more than the whole, by a factor without limit",
    ),
    Figure("tv", "tv", "", "on every row the whole is at most the sum of its parts (triangle inequality)"),
    Figure(
        "logit_span", "logit_span", "logits",
        "logit differences add exactly, so on every row the whole is at most the sum of its parts",
    ),
)  # fmt: skip

_PLAN = RowPlan(frozenset(figure.statistic for figure in FIGURES))


class Tally:
    """Values of every figure, row by row. A row without a value (NaN or +inf logits) counts as infinite: never dropped."""

    def __init__(self) -> None:
        self.rows = self.invalid = self.equal = 0
        self._values: dict[str, list[Tensor]] = {figure.name: [] for figure in FIGURES}

    def add(self, reference: Tensor, candidate: Tensor, temperature: float) -> None:
        """Rows of logits `[N, V]` of both points; KL and total variation are those at the temperature."""
        found = row_statistics(reference, candidate, _PLAN, temperature=temperature)
        self.rows += len(found)
        self.invalid += int(found.invalid.sum())
        self.equal += int((reference == candidate).all(-1).sum())
        for figure in FIGURES:
            self._values[figure.name].append(found.values[figure.statistic].nan_to_num(math.inf, math.inf).cpu())

    @property
    def bit_exact(self) -> bool:
        """Whether all logits of all rows are equal."""
        return 0 < self.rows == self.equal

    def values(self, figure: Figure) -> Tensor:
        """float64 `[rows]`."""
        return torch.cat([torch.empty(0, dtype=torch.float64), *self._values[figure.name]])

    def numbers(self, figure: Figure) -> dict[str, float]:
        """`mean`, `max` and `p99.9`, the smallest value that at least 99.9 % of rows do not exceed; NaN without rows."""
        values = self.values(figure)
        if not len(values):
            return dict.fromkeys(("mean", "max", "p99.9"), math.nan)
        rank = -(-len(values) * QUANTILE[0] // QUANTILE[1])
        return {
            "mean": float(values.mean()),
            "max": float(values.max()),
            "p99.9": float(values.kthvalue(rank).values),
        }

    def summary(self) -> dict[str, Any]:
        """Rows, invalid rows, rows whose logits are all equal, and every figure, as plain data."""
        return {
            "rows": self.rows,
            "invalid": self.invalid,
            "bit_exact_rows": self.equal,
            "bit_exact": self.bit_exact,
            "figures": {f.name: {k: number(v) for k, v in self.numbers(f).items()} for f in FIGURES},
        }


def adding_up(whole: Tally, parts: Sequence[Tally]) -> dict[str, dict[str, Any]]:
    """Sum of the parts' means beside the whole's mean of each figure, and the rule that holds; `ratio` None without one."""
    out = {}
    for figure in FIGURES:
        total = whole.numbers(figure)["mean"]
        added = math.fsum(part.numbers(figure)["mean"] for part in parts)
        ratio = added / total if 0 < total < math.inf and added < math.inf else None
        out[figure.name] = {"sum": number(added), "whole": number(total), "ratio": ratio, "rule": figure.rule}
    return out
