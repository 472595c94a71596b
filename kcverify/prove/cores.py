"""Minimal sets: of clauses that exclude each other, and of clauses that prove a guarantee; one of them, or all.

All sets are found by walking the border between the sets that have the property and those that have not: a seed that no
known set decides is shrunk to a minimal set with the property, or grown to a maximal one without it, and ruled out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import z3

from kcverify.bounds.special import Effort
from kcverify.diagnostics import Report
from kcverify.elaborate.contract import Clause, Contract, Threshold
from kcverify.prove import corner
from kcverify.prove.consistency import contradictions, ground
from kcverify.prove.obligations import Obligation, in_graph, narrowed, obligations
from kcverify.prove.prover import by_linear
from kcverify.prove.slices import inherited
from kcverify.prove.verdict import Limits, Route, Status, Verdict


@dataclass(frozen=True)
class CoreLimits:
    """Effort of one enumeration: how many sets are wanted, how many questions may be asked, steps of a bisection."""

    sets: int = 32
    questions: int = 1_000
    steps: int = 16


@dataclass(frozen=True)
class Sets:
    """Minimal sets of clause names, the smallest first; `complete` False where a limit ended the search."""

    found: tuple[tuple[str, ...], ...]
    complete: bool = True


@dataclass(frozen=True)
class Explained:
    """A proved guarantee by one minimal set of clauses: a route per atom, and how far each clause could be loosened.

    `room` has, for clauses of one upper limit, its largest value that still proves the guarantee with the others as
    they are, rounded down to three digits.
    """

    verdict: Verdict
    core: tuple[str, ...]
    routes: tuple[Route, ...]
    room: tuple[tuple[str, Fraction], ...]
    alternatives: Sets | None = None


class _LimitError(Exception):
    """The questions are used up."""


@dataclass
class _Oracle:
    """A property of sets of names that larger sets keep; each set is asked about once."""

    holds: Callable[[frozenset[str]], bool]
    limits: CoreLimits
    known: dict[frozenset[str], bool] = field(default_factory=dict)

    def ask(self, names: frozenset[str]) -> bool:
        """Whether the set has the property. Raises _LimitError."""
        if names not in self.known:
            if len(self.known) >= self.limits.questions:
                raise _LimitError
            self.known[names] = self.holds(names)
        return self.known[names]


def shrink(oracle: Callable[[frozenset[str]], bool], names: Sequence[str]) -> tuple[str, ...]:
    """A minimal subset that keeps the property; names that stand later are left out first."""
    kept = list(names)
    for name in reversed(names):
        without = [n for n in kept if n != name]
        if oracle(frozenset(without)):
            kept = without
    return tuple(kept)


def minimal_sets(
    names: Sequence[str], holds: Callable[[frozenset[str]], bool], limits: CoreLimits | None = None
) -> Sets:
    """All minimal sets with a property that every larger set has too, up to the limits."""
    limits = limits or CoreLimits()
    oracle = _Oracle(holds, limits)
    found: list[tuple[str, ...]] = []
    variables = {name: z3.Bool(name) for name in names}
    solver = z3.Solver()
    try:
        while len(found) < limits.sets:
            if solver.check() != z3.sat:
                return Sets(_ordered(found, names))
            model = solver.model()
            seed = [n for n in names if not z3.is_false(model.eval(variables[n]))]
            if oracle.ask(frozenset(seed)):
                least = shrink(oracle.ask, seed)
                found.append(least)
                solver.add(z3.Or([z3.Not(variables[n]) for n in least]))
            else:
                for name in names:
                    if name not in seed and not oracle.ask(frozenset([*seed, name])):
                        seed.append(name)
                solver.add(z3.Or([variables[n] for n in names if n not in seed]))
    except _LimitError:
        pass
    return Sets(_ordered(found, names), False)


def _ordered(found: list[tuple[str, ...]], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    place = {name: i for i, name in enumerate(names)}
    return tuple(sorted(found, key=lambda s: (len(s), [place[n] for n in s])))


def contradictory_sets(contract: Contract, limits: Limits, effort: CoreLimits | None = None) -> Sets:
    """All minimal sets of clauses that no pair of kernels meets, on any slice."""
    scopes = ("", *sorted({s for c in contract.clauses for s in c.slices}))
    found: dict[frozenset[str], tuple[str, ...]] = {}
    complete = True
    for scope in scopes:
        names = [c.name for c in ground(contract, scope, limits).clauses]

        def clash(chosen: frozenset[str], scope: str = scope) -> bool:
            part = replace(contract, clauses=tuple(c for c in contract.clauses if c.name in chosen))
            return bool(contradictions(ground(part, scope, limits), Report(), set()))

        sets = minimal_sets(names, clash, effort)
        complete = complete and sets.complete
        found.update({frozenset(s): s for s in sets.found if frozenset(s) not in found})
    return Sets(_ordered(list(found.values()), [c.name for c in contract.clauses]), complete)


def _routes(contract: Contract, obligation: Obligation, effort: Effort) -> tuple[Route, ...]:
    """The routes of a proof by chains, one per atom; empty where there is none."""
    found = [r for r in corner.best_routes(contract, obligation, effort) if r is not None and r.holds]
    return tuple(found) if len(found) == len(obligation.atoms) else ()


def _proves(contract: Contract, obligation: Obligation, limits: Limits) -> bool:
    """Whether there is a proof: from the shipped table, by a run of the recursions, or by linear arithmetic."""
    efforts = (Effort(), Effort(run=True, cache=limits.cache))
    return any(_routes(contract, obligation, e) for e in efforts) or by_linear(contract, obligation, limits).proved


def _only(contract: Contract, names: frozenset[str]) -> Contract:
    return replace(contract, clauses=tuple(c for c in contract.clauses if c.name in names))


def _question(contract: Contract, verdict: Verdict) -> tuple[Contract, Obligation] | None:
    """The contract on the band of the claim, with inherited slices, and the obligation that the verdict is about."""
    contract = inherited(contract)
    for obligation in obligations(contract):
        if obligation.claim.name == verdict.claim.name and obligation.scope == verdict.scope:
            within = narrowed(contract, obligation.claim)
            return None if within is None else (within, obligation)
    return None


def proving_sets(contract: Contract, verdict: Verdict, limits: Limits, effort: CoreLimits | None = None) -> Sets:
    """All minimal sets of clauses that prove a guarantee; none where it is not proved."""
    asked = _question(contract, verdict) if verdict.status is Status.PROVED else None
    if asked is None:
        return Sets(())
    within, obligation = asked
    names = [c.name for c in within.clauses if in_graph(c) and not c.limit.hole]
    return minimal_sets(names, lambda chosen: _proves(_only(within, chosen), obligation, limits), effort)


def explain(
    contract: Contract, verdict: Verdict, limits: Limits, *, every: bool = False, effort: CoreLimits | None = None
) -> Explained | None:
    """One minimal set of clauses that proves the guarantee, its routes and its room; None where it is not proved.

    With `every` also all other minimal sets.
    """
    asked = _question(contract, verdict) if verdict.status is Status.PROVED else None
    if asked is None:
        return None
    within, obligation = asked
    effort = effort or CoreLimits()
    names = [c.name for c in within.clauses if c.name in verdict.core]

    def holds(chosen: frozenset[str]) -> bool:
        return _proves(_only(within, chosen), obligation, limits)

    if not holds(frozenset(names)):
        names = [c.name for c in within.clauses if in_graph(c) and not c.limit.hole]
    core = shrink(holds, names)
    part = _only(within, frozenset(core))
    found = _routes(part, obligation, Effort(run=True, cache=limits.cache))
    room = tuple(_room(part, obligation, effort)) if found else ()
    others = proving_sets(contract, verdict, limits, effort) if every else None
    return Explained(verdict, core, found, room, others)


def _room(contract: Contract, obligation: Obligation, effort: CoreLimits) -> list[tuple[str, Fraction]]:
    """For each clause of one plain upper limit, the largest limit (to three digits) that still proves the claim."""
    out = []
    for clause in contract.clauses:
        upper, lower = clause.limit.upper, clause.limit.lower
        if upper is None or lower is not None or upper.terms or upper.constant <= 0:
            continue

        def holds(x: Fraction, clause: Clause = clause) -> bool:
            wider = replace(clause, limit=replace(clause.limit, upper=Threshold(x)))
            clauses = tuple(wider if c is clause else c for c in contract.clauses)
            found = corner.best_routes(replace(contract, clauses=clauses), obligation)
            return all(r is not None and r.holds for r in found)

        good, bad = upper.constant, upper.constant * 2
        if not holds(good):
            continue
        while holds(bad) and bad < upper.constant * 2**effort.steps:
            good, bad = bad, bad * 2
        for _ in range(effort.steps):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        out.append((clause.name, good))
    return out
