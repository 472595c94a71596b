"""The search: solve with the budgets scaled, measure the whole assignment, tighten or loosen, a bounded number of times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kcverify.allocation.budget import Budget
from kcverify.allocation.measured import Measured
from kcverify.allocation.sensitivity import Figures
from kcverify.allocation.solve import Assignment, Solution, Table, cheapest, total

MOST_ATTEMPTS = 10
MOST_LOOKS = 6
NEAR = 1.05
"""Two scales of the budget that are this near to each other end the search."""

_STEP = 0.5
"""How much less of the budget is tried after held-out prompts did not pass; the search then goes up again between the two."""

_STEPS = 30


@dataclass(frozen=True)
class Problem:
    """Costs and drifts of every unit and format, on the scale that adds up, and the limits on that scale."""

    units: tuple[str, ...]
    formats: tuple[str, ...]
    cost: Table
    drifts: tuple[Table, ...]
    limits: tuple[float, ...]

    def cheapest(self, scale: float) -> Solution | None:
        """The cheapest assignment under limits times `scale`."""
        limits = [limit * scale for limit in self.limits]
        return cheapest(self.cost, self.drifts, limits, self.units, self.formats)

    def predicted(self, assignment: Assignment) -> float:
        """The largest share of a limit that the assignment spends, by adding up."""
        return max(total(table, assignment) / limit for table, limit in zip(self.drifts, self.limits, strict=True))


@dataclass(frozen=True)
class Attempt:
    """One solution: the scale of the budgets it was solved for, what was predicted and measured, and what followed.

    `predicted` and `measured` are shares of the limit, on the scale on which modules add up. `held_out` is None where
    the calibration prompts had already refused it.
    """

    scale: float
    assignment: Assignment
    cost: float
    predicted: float
    measured: float
    held_out: Measured | None
    said: str


@dataclass
class Search:
    """Measures what is solved: `calibrate(assignment)` figures on known prompts, `look(assignment, cost)` on held-out ones.

    `low` and `high` are the largest scale whose assignment passes and the smallest whose does not, as far as is known.
    """

    problem: Problem
    calibrate: Callable[[Assignment], Figures]
    look: Callable[[Assignment, float], Measured]
    share_of: Callable[[Figures], float]
    tell: Callable[[str], None]
    attempts: list[Attempt] = field(default_factory=list)
    looks: int = 0
    low: float | None = None
    high: float | None = None

    def run(self) -> str:
        """Try until the scale is found, the attempts or the looks are spent; the reason for stopping."""
        scale = max(1.0, self.low or 0.0)
        for _ in range(_STEPS):
            solution = self.problem.cheapest(scale)
            if solution is None:
                if self.low is None:
                    return "no assignment of these formats fits the budget, by adding up"
                self.high = scale
            else:
                known = next((a for a in self.attempts if a.assignment == solution.assignment), None)
                attempt = known or self._attempt(scale, solution)
                self._learn(scale, attempt)
                if known is None:
                    self.attempts.append(attempt)
                    self.tell(f"attempt {len(self.attempts)}: {attempt.said}")
                elif self.high is not None and self.low is not None and self.high / self.low < NEAR:
                    return "no other assignment lies between the last two"
            following = self._next(scale)
            if following is None:
                return "the budget is found to within 5 %"
            if len(self.attempts) >= MOST_ATTEMPTS:
                return f"{MOST_ATTEMPTS} attempts were made, which is the most"
            if self.looks >= MOST_LOOKS:
                return f"the held-out prompts were looked at {MOST_LOOKS} times, which is the most"
            scale = following
            if scale < 1e-9:
                return "even a billionth of the budget does not keep the contract"
        return "no other scale of the budget gives another assignment"

    def _attempt(self, scale: float, solution: Solution) -> Attempt:
        assignment = solution.assignment
        cost, predicted = total(self.problem.cost, assignment), self.problem.predicted(assignment)
        found = self.calibrate(assignment)
        share = self.share_of(found)
        gap = f" (the solver is within {100 * solution.gap:.2g} % of the cheapest)" if solution.gap > 1e-4 else ""
        head = f"budget times {scale:.3g}: {100 * predicted:.3g} % of it predicted, {100 * share:.3g} % measured{gap}"
        if not share <= 1:
            return Attempt(
                scale, assignment, cost, predicted, share, None, f"{head}: adding up was too optimistic, tighter"
            )
        held = self.look(assignment, cost)
        self.looks += 1
        if held.rank == 0:
            said = "passes on held-out prompts"
        else:
            said = f"{held.verdict} on held-out prompts, tighter"
        return Attempt(scale, assignment, cost, predicted, share, held, f"{head}; {said}")

    def _learn(self, scale: float, attempt: Attempt) -> None:
        good = attempt.held_out is not None and attempt.held_out.rank == 0
        if good:
            self.low = max(self.low or scale, scale)
        else:
            self.high = min(self.high or scale, scale)

    def _next(self, scale: float) -> float | None:
        """The next scale, or None where nothing is left between the last good and the last bad one."""
        last = self.attempts[-1] if self.attempts else None
        if self.low is not None and self.high is not None:
            return None if self.high / self.low < NEAR else math.sqrt(self.low * self.high)
        if self.low is not None:
            room = last.measured if last is not None and last.measured > 0 else 0.25
            return None if room > 1 / NEAR else self.low * min(4.0, max(NEAR, 1 / room))
        if last is None or last.held_out is not None or not math.isfinite(last.measured):
            return scale * _STEP
        return scale * min(0.9, 0.98 / last.measured)


def worst_share(budgets: Sequence[Budget]) -> Callable[[Figures], float]:
    """The largest figure over its limit, on the scale on which modules add up."""

    def share(found: Figures) -> float:
        spent = (budget.adds(value) for value, budget in zip(found.values, budgets, strict=True))
        return max(math.inf if math.isnan(share) else share for share in spent)

    return share
