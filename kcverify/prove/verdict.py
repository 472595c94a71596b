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
    """Effort of one run, of contracts and of single questions alike.

    `solver_ms` bounds each call of a solver, `solver_s` a second solver in its own process, `candidates` the families of
    witnesses that are tried, `boxes` the paving.
    `constant_bits` is how many significant bits a peeled constant keeps, `ball_bits` the working precision; `doublings`
    is how often a run that leaves a gap between its two formulas is repeated at twice the bits. `remedy_steps` and
    `gap_steps` are steps of a bisection. `cache` keeps recursions.
    """

    solver_ms: int = 2000
    solver_s: float = 10.0
    candidates: int = 64
    remedy_steps: int = 24
    gap_steps: int = 24
    boxes: int = 4000
    constant_bits: int = 128
    ball_bits: int = 160
    doublings: int = 2
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
    claim would be proved, an upper one where `gap_upper`. `step` says which step of the engine decided, `code` is the slug of the reason
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
    gap_upper: bool = True
