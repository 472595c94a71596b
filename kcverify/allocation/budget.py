"""A contract's clauses as budgets that an assignment of formats must keep: one number of the rows for each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from kcverify.catalog.model import Statistic
from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Clause, Contract
from kcverify.emit.readings import READINGS, reading_of

POWERS: dict[str, int] = {
    "kl_reference_candidate": 1, "kl_candidate_reference": 1, "chi2": 1, "tv": 2, "logit_span": 2, "logit_drift": 2, "log_ratio": 2,
}  # fmt: skip
"""Row statistics that can be budgets, and the power of them that adds up over modules whose errors are independent.

Divergences are of second order in an error and add up; distances are of first order, so their squares do.
"""


@dataclass(frozen=True)
class Budget:
    """A clause as a limit on one number: the mean over requests, or the value exceeded on a share `exception` of tokens."""

    clause: str
    text: str
    metric: str
    statistic: str
    mean: bool
    exception: float
    limit: float
    unit: str

    @property
    def power(self) -> int:
        """Which power of the figure adds up over modules."""
        return POWERS[self.statistic]

    @property
    def figure_name(self) -> str:
        """What the figure is, in words."""
        if self.mean:
            return f"mean {self.metric}"
        return f"largest {self.metric}" if not self.exception else f"{self.metric}, p{100 * (1 - self.exception):g}"

    def figure(self, values: Tensor, weights: Tensor) -> float:
        """The figure of rows: float64 values and their weights `[N]`, which sum to one. A row without a value is infinite.

        Of a pointwise clause, the smallest value that rows of a weight of at most `exception` exceed.
        """
        known = values.double().nan_to_num(math.inf, math.inf)
        if self.mean:
            return float((known * weights).sum())
        order = known.argsort(descending=True, stable=True)
        beyond = weights[order].cumsum(0) - weights[order]  # weight of the rows before, which are at least as large
        place = int((beyond <= self.exception * (1 + 1e-12)).nonzero().max())
        return float(known[order][place])

    def adds(self, figure: float) -> float:
        """The figure's share of the limit, on the scale on which modules add up: 1 at the limit, whatever its size."""
        share = figure / self.limit
        return share if self.power == 1 else share * share  # `**` would refuse what a product makes infinite


def row_weights(lengths: Sequence[int]) -> Tensor:
    """Weights `[rows]` of requests of these lengths: every request counts once, its rows alike."""
    count = len(lengths)
    return torch.tensor([1.0 / (count * n) for n in lengths for _ in range(n)], dtype=torch.float64)


def _budget(clause: Clause, temperature: Fraction) -> Budget | str:
    """The clause as a budget, or the reason why it is none."""
    upper = clause.limit.upper
    if clause.limit.hole:
        return "its limit is a `?`: fill it with `kcverify derive`"
    if clause.slices:
        return "it is about slices"
    statistic = statistic_of(clause)
    if statistic is None:
        return f"{clause.metric.name} is no figure that adds up over modules"
    if upper is None:
        return "it is a limit from below"
    if clause.band is not None and not _binds(clause, temperature):
        return f"it does not bind at temperature {float(temperature):g}"
    limit = upper.constant + sum((c * temperature for name, c in upper.terms if name == "temperature"), Fraction(0))
    if any(name != "temperature" for name, _ in upper.terms) or limit <= 0:
        return "its limit is no positive number here"
    mean = clause.statistic is Statistic.MEAN
    return Budget(
        clause.name, clause.text, clause.metric.name, statistic, mean, 0.0 if mean else float(clause.exception), float(limit),
        clause.metric.dimension.value,
    )  # fmt: skip


def statistic_of(clause: Clause) -> str | None:
    """The one row statistic that a clause reads, where it can be a budget."""
    found = reading_of(clause).statistics if clause.metric.name in READINGS else ()
    return found[0] if len(found) == 1 and found[0] in POWERS else None


def _binds(clause: Clause, temperature: Fraction) -> bool:
    band = clause.band
    if band is None or band.parameter != "temperature":
        return band is None
    low, high = band.interval.low, band.interval.high
    return (low is None or temperature >= low) and (high is None or temperature < high)


def budgets(contract: Contract, temperature: Fraction, only: str | None = None) -> list[Budget]:
    """The clauses that an allocation keeps; all of them, or the one named `only`.

    Raises InputError: `allocation_no_budget` where there is none, with the reason of each clause.
    """
    found, reasons = [], []
    for clause in contract.clauses:
        if only is not None and clause.name != only:
            continue
        one = _budget(clause, temperature)
        if isinstance(one, Budget):
            found.append(one)
        else:
            reasons.append(f"`{clause.name}`: {one}")
    if found:
        return found
    if only is not None and not reasons:
        names = ", ".join(f"`{c.name}`" for c in contract.clauses) or "none"
        raise input_error("option_invalid", option="--clause", reason=f"no clause `{only}`; there are: {names}")
    raise input_error("allocation_no_budget", name=contract.name, reasons="; ".join(reasons) or "it has no clause")
