"""A whole assignment on the held-out prompts: the figures of the budgets, and the contract's verdicts by its own monitor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kcverify.allocation.budget import Budget
from kcverify.allocation.sensitivity import Figures, Values
from kcverify.allocation.solve import Assignment
from kcverify.elaborate.contract import Contract
from kcverify.measure.data import Request
from kcverify.measure.layers import Unit, mixed
from kcverify.measure.run import Rows, run_pair
from kcverify.measure.session import feed, load_monitor, translated
from kcverify.measure.sides import Basis, KernelSide
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.report import build_report, number

_OPEN = ("unobservable", "not_enforced")


@dataclass(frozen=True)
class Judge:
    """What every assignment is held to: the contract, its monitor's source, the held-out requests, the budgets."""

    contract: Contract
    source: str
    reference: KernelSide
    requests: Sequence[Request]
    budgets: Sequence[Budget]
    temperature: float


@dataclass(frozen=True)
class Measured:
    """An assignment that was measured. `clauses` are the judged ones, as the monitor reports them."""

    name: str
    assignment: Assignment
    cost: float
    figures: Figures
    verdict: str
    clauses: tuple[Mapping[str, Any], ...]
    open: tuple[str, ...]
    within: bool
    complete: bool

    @property
    def rank(self) -> int:
        """0 certified, 1 within the limits without certainty, 2 neither."""
        if self.verdict == "pass":
            return 0
        return 1 if self.verdict == "inconclusive" and self.within else 2


def side_of(
    name: str, reference: KernelSide, bases: Mapping[str, Basis], units: Sequence[Unit], assignment: Assignment
) -> KernelSide:
    """The model with every unit in its format."""
    form = {matrix: assignment[unit.name] for unit in units for matrix in unit.matrices}
    return mixed(name, reference, lambda matrix: bases[form[matrix]])


def shares(figures: Figures, budgets: Sequence[Budget]) -> list[float]:
    """Each figure over its limit."""
    return [value / budget.limit for value, budget in zip(figures.values, budgets, strict=True)]


def judge(how: Judge, side: KernelSide, name: str, assignment: Assignment, cost: float) -> Measured:
    """Measure the side on the held-out requests. Raises InputError as the sides and the monitor do."""
    monitor = load_monitor(how.source, how.temperature)
    values = Values(how.budgets, how.temperature)

    def take(rows: Rows) -> None:
        try:
            feed(monitor, how.contract, rows)
        except MonitorInputError as error:
            raise translated(error) from None
        values.add(rows.reference, rows.candidate, [len(r.token_ids) for r in rows.requests])

    with torch.no_grad():
        outcome = run_pair(how.reference, side, how.requests, on_rows=take)
    if not outcome.complete:
        raise KeyboardInterrupt
    found = values.figures()
    clauses = build_report(monitor, one_look=True)["clauses"]
    kept = tuple(c for c in clauses if c["verdict"] not in _OPEN)
    left = tuple(
        f"{c['name']}{'' if c['slice'] is None else ' on ' + c['slice']}: {c['reason']}"
        for c in clauses
        if c["verdict"] in _OPEN
    )
    words = [c["verdict"] for c in kept]
    verdict = "fail" if "fail" in words else "pass" if words and set(words) == {"pass"} else "inconclusive"
    within = all(share <= 1 for share in shares(found, how.budgets))
    return Measured(name, assignment, cost, found, verdict, kept, left, within, outcome.complete)


def data(one: Measured, budgets: Sequence[Budget]) -> dict[str, Any]:
    """As JSON data."""
    return {
        "name": one.name,
        "cost": one.cost,
        "figures": [number(v) for v in one.figures.values],
        "shares": [number(v) for v in shares(one.figures, budgets)],
        "rows": one.figures.rows,
        "invalid": one.figures.invalid,
        "verdict": one.verdict,
        "within": one.within,
        "formats": counts(one.assignment),
        "clauses": [
            {
                "name": c["name"], "slice": c["slice"], "text": c["text"], "verdict": c["verdict"], "reason": c["reason"],
                "observed": c["evidence"].get("observed"),
            }
            for c in one.clauses
        ],
    }  # fmt: skip


def counts(assignment: Assignment) -> dict[str, int]:
    """Units of each format."""
    found: dict[str, int] = {}
    for form in assignment.values():
        found[form] = found.get(form, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def finite(figures: Figures) -> bool:
    """Whether every figure is a number."""
    return all(math.isfinite(v) for v in figures.values)
