"""What the prover answers: a status per claim, with the chain, the numbers and what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

from kcverify.bounds.graph import Fact
from kcverify.elaborate.contract import Clause
from kcverify.prove.obligations import Atom


class Status(StrEnum):
    """Verdict on a guarantee."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Limits:
    """Effort of one run: solver time (ms), witness candidates, bisection steps of a remedy; `cache` keeps recursions."""

    solver_ms: int = 2000
    candidates: int = 64
    remedy_steps: int = 24
    cache: Path | None = None


@dataclass(frozen=True)
class Route:
    """The best chain from one clause to one atom. `counted` False where no sample can certify the clause.

    `formula` is the tightest chain without a recursion, where the best one has a recursion in it.
    """

    atom: Atom
    fact: Fact
    threshold: Fraction
    counted: bool = True
    note: str = ""
    formula: Fact | None = None

    @property
    def slack(self) -> Fraction:
        """What is left between bound and threshold; negative where the route does not reach it."""
        return self.threshold - self.fact.value if self.atom.upper else self.fact.value - self.threshold

    @property
    def holds(self) -> bool:
        """Whether the route proves its atom."""
        return self.slack >= 0


@dataclass(frozen=True)
class Counterexample:
    """An instance that meets every clause and breaks the claim: what it is, and each metric re-evaluated."""

    story: str
    temperature: Fraction
    horizon: int
    reference_logits: tuple[Fraction, ...]
    candidate_logits: tuple[Fraction, ...]
    exceeding_share: Fraction
    reference: tuple[str, ...]
    candidate: tuple[str, ...]
    readings: tuple[tuple[str, str, str], ...]
    claim_value: Fraction


@dataclass(frozen=True)
class Verdict:
    """The answer for one claim on one slice ("" for all traffic).

    `best` has one route per atom, the tightest that counts; `routes` all of them. `gap` is the threshold at which the
    claim would be proved. `step` says which step of the engine decided, `code` is the slug of the reason
    where the claim is not proved.
    """

    claim: Clause
    scope: str
    status: Status
    step: str
    best: tuple[Route, ...]
    routes: tuple[Route, ...]
    reason: str = ""
    gap: Fraction | None = None
    remedies: tuple[str, ...] = ()
    core: tuple[str, ...] = ()
    counterexample: Counterexample | None = None
    assumed: tuple[str, ...] = ()
    code: str = ""
