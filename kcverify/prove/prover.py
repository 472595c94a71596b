"""The engine: corner, then linear, then a search for a counterexample; what remains is UNKNOWN with its reason."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kcverify.bounds.special import Effort
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import ASSUMPTION_OF, BY_NAME
from kcverify.elaborate.contract import Clause, Contract
from kcverify.exact import decimal_down, decimal_up
from kcverify.prove import corner, linear
from kcverify.prove.encoding import encode
from kcverify.prove.obligations import (
    Obligation,
    applies,
    as_written,
    atoms,
    certifiable,
    in_graph,
    narrowed,
    obligations,
    pieces,
    whole_piece,
    written,
)
from kcverify.prove.reasons import classified
from kcverify.prove.remedy import expected_exceedances, remedies
from kcverify.prove.replay import search
from kcverify.prove.slices import inherited
from kcverify.prove.verdict import Limits, Route, Status, Verdict

KNOWN_BEFORE = frozenset(("prompt_tokens", "tags"))
"""Fields that a request carries before its first token is sampled."""


def prove(contract: Contract, limits: Limits | None = None) -> tuple[Verdict, ...]:
    """A verdict for every guarantee on every slice that it names.

    `PROVED` only from enclosures or an unsatisfiable core; `REFUTED` only with an instance that was re-evaluated.
    """
    limits = limits or Limits()
    contract = inherited(contract, limits)
    return tuple(classified(contract, o, decide(contract, o, limits)) for o in obligations(contract))


def decide(contract: Contract, obligation: Obligation, limits: Limits) -> Verdict:
    """The verdict for one obligation, on the band of temperatures or horizons that the claim names."""
    claim, scope = obligation.claim, obligation.scope
    within = narrowed(contract, claim)
    if within is None:
        return Verdict(claim, scope, Status.UNKNOWN, "none", (), (), "its band lies outside the assumed range")
    contract = within
    if (reason := _after_sampling(contract, obligation)) is not None:
        return Verdict(claim, scope, Status.UNKNOWN, "none", (), (), reason)
    missing = _missing(contract, obligation)
    if missing or not obligation.atoms:
        reason = (
            f"`{claim.name}` needs " + ", ".join(f"`assume {{ {m} }}`" for m in missing)
            if missing
            else _unprovable(claim)
        )
        code = "guarantee_needs" if missing else "not_implied"
        return Verdict(claim, scope, Status.UNKNOWN, "none", (), (), reason, code=code)
    best = corner.best_routes(contract, obligation, Effort(run=True, cache=limits.cache))
    assumed = _assumed(contract)
    found = tuple(r for r in best if r is not None)
    routes = corner.as_run(corner.clause_routes(contract, obligation), found)
    if len(found) == len(best) and all(r.holds for r in found):
        return Verdict(claim, scope, Status.PROVED, "corner", found, routes, assumed=assumed, core=_core(found))
    coupled = by_linear(contract, obligation, limits)
    if coupled.proved:
        return Verdict(claim, scope, Status.PROVED, "linear", found, routes, assumed=assumed, core=coupled.core)
    counterexample = None
    if "full_softmax" in obligation.parameters.conditions:  # an instance is a pair of whole softmax distributions
        counterexample = search(contract, obligation, _all_clauses(contract, scope), limits)
    gap, upper = _gap(found) if len(found) == len(best) else (None, True)
    if counterexample is not None:
        reason = "an instance meets every clause and breaks the claim"
        return Verdict(
            claim, scope, Status.REFUTED, "replay", found, routes, reason, gap, (), (), counterexample, assumed,
            gap_upper=upper,
        )  # fmt: skip
    reason, help_ = _why(contract, obligation, best, routes, limits)
    if coupled.reason.startswith(linear.EXCLUDED):
        reason = coupled.reason
    return Verdict(
        claim, scope, Status.UNKNOWN, "none", found, routes, reason, gap, help_, assumed=assumed, gap_upper=upper
    )


def _core(routes: tuple[Route, ...]) -> tuple[str, ...]:
    names = [n for r in routes for n in r.fact.sources()]
    lemmas = [f.lemma.name for r in routes for f in r.fact.chain() if f.lemma is not None]
    return (*dict.fromkeys(names), *dict.fromkeys(lemmas))


def _missing(contract: Contract, obligation: Obligation) -> list[str]:
    """Assumptions without which no lemma leads to the claim's quantity."""
    have = set(obligation.parameters.box)
    out: list[str] = []
    for atom in obligation.atoms:
        rows = [r for r in ROWS if r.conclusion == atom.node.quantity and r.premises[0] != atom.node.quantity]
        needs: list[list[str]] = [[p for p in r.parameters if p not in have] for r in rows]
        if rows and all(needs):
            out += sorted(needs, key=len)[0]
        if BY_NAME[atom.node.quantity].sequence and "horizon" not in have:
            out.append("horizon")
    return [ASSUMPTION_OF[n] for n in dict.fromkeys(out)]


def _after_sampling(contract: Contract, obligation: Obligation) -> str | None:
    """Why a claim about whole responses says nothing on its slice: the slice is only known once tokens are sampled.

    Choosing responses by what was sampled weights each step by the chance of ending up in the slice, under which no
    bound of the steps survives. A slice of prompts chooses before the first token.
    """
    if not obligation.scope or all(a.node.mode is not Mode.SEQUENCE for a in obligation.atoms):
        return None
    fields = next((s.fields for s in contract.slices if s.name == obligation.scope), ())
    late = [f for f in fields if f not in KNOWN_BEFORE]
    if not late:
        return None
    names = ", ".join(f"`{f}`" for f in late)
    return f"the slice `{obligation.scope}` is chosen by {names}, which may depend on the response, and no bound on responses survives that choice"


def _unprovable(claim: Clause) -> str:
    if claim.argument("bins") == "own":
        return "with each side's own bins no bound exists: a change of 2e-6 across the edge of a bin moved the error by 0.30"
    return f"no lemma of the catalogue bounds `{claim.metric.name}`"


def _assumed(contract: Contract) -> tuple[str, ...]:
    """What the proof takes for granted although the contract does not say it."""
    return () if contract.assumptions.sampler is not None else ("sampler = full_softmax",)


def by_linear(contract: Contract, obligation: Obligation, limits: Limits) -> linear.Answer:
    """A linear proof over the whole temperature range with its core, or why there is none.

    Worth asking only where temperature couples clauses: else the corner step has already found the best chain.
    """
    usable = [c for c in contract.clauses if in_graph(c) and applies(c, obligation.scope)]
    if not any(linear.coupled(c) for c in usable):
        return linear.Answer(False)
    whole = whole_piece(contract, obligation.scope)
    boxes = corner.piece_parameters(contract, obligation, whole)
    counted = linear.essential([c for c in usable if certifiable(c, usable)], whole, boxes)
    encoding = encode(whole, boxes, [a for c in counted for a in atoms(c)], obligation.atoms)
    return linear.entails(encoding, counted, obligation.atoms, limits)


def _all_clauses(contract: Contract, scope: str) -> tuple[Clause, ...]:
    """Every clause that a counterexample on the slice must meet: all of them, which is the safe choice."""
    return contract.clauses


def _gap(routes: tuple[Route, ...]) -> tuple[Fraction | None, bool]:
    """The threshold at which the worst atom would be proved, and whether it is an upper one."""
    worst = min(routes, key=lambda r: r.slack, default=None)
    return (None, True) if worst is None else as_written(worst.atom.node.quantity, worst.fact.value)


def _why(
    contract: Contract, obligation: Obligation, best: list[Route | None], routes: tuple[Route, ...], limits: Limits
) -> tuple[str, tuple[str, ...]]:
    claim = obligation.claim
    if "full_softmax" not in obligation.parameters.conditions:
        kind = contract.assumptions.sampler.kind if contract.assumptions.sampler else ""
        return f"under `sampler = {kind}` the support of the two policies can differ, and no span bound applies", ()
    counted = [r for r in routes if r.counted]
    if any(r is None for r in best):
        return _no_route(contract, obligation, routes, counted)
    route = next((r for r in counted if not r.holds), None)
    if route is None:
        return "no single chain reaches the claim and the clauses together do not either", ()
    exceedances = expected_exceedances(contract, route)
    piece = pieces(contract, obligation.scope)[0]
    help_ = remedies(contract, obligation, route, piece, limits)
    name = route.atom.node.quantity
    limit, upper = as_written(name, route.threshold)
    beyond = f"above {decimal_up(limit, 6)}" if upper else f"below {decimal_down(limit, 6)}"
    bound = f"the best bound is {written(name, route.fact.value, 6)}, {beyond}"
    return (f"{exceedances}: {bound}" if exceedances else bound) + _uncounted(routes, claim), help_


def _no_route(
    contract: Contract, obligation: Obligation, routes: tuple[Route, ...], counted: list[Route]
) -> tuple[str, tuple[str, ...]]:
    claim = obligation.claim
    names = {r.atom.node.quantity for r in counted}
    lost = [a for a in obligation.atoms if a.node.quantity not in names]
    wider = _wider_exception(contract, obligation)
    if wider:
        return wider
    where = f" on `{obligation.scope}`" if obligation.scope else ""
    what = ", ".join(f"`{BY_NAME[a.node.quantity].title}`" for a in lost) or f"`{claim.metric.name}`"
    caveat = f"; {claim.metric.caveat}" if claim.metric.caveat else ""
    return f"no clause{where} bounds {what}{caveat}" + _uncounted(routes, claim), ()


def _wider_exception(contract: Contract, obligation: Obligation) -> tuple[str, tuple[str, ...]] | None:
    """A pointwise claim whose clauses allow more exceptions than it does."""
    atoms_ = obligation.atoms
    if not atoms_ or BY_NAME[atoms_[0].node.quantity].sequence:
        return None
    allowed = atoms_[0].node.rho
    rates = {Fraction(0), *(a.node.rho for c in contract.clauses for a in atoms(c))}
    sums = (sum(rates, Fraction(0)), 2 * max(rates))
    for rho in sorted({r for r in (*rates, *sums) if allowed < r < 1}):
        wide = replace(obligation, atoms=tuple(replace(a, node=replace(a.node, rho=rho)) for a in atoms_))
        found = [r for r in corner.best_routes(contract, wide) if r is not None]
        if len(found) < len(atoms_) or not all(r.holds for r in found):
            continue
        sources = tuple(dict.fromkeys(s for r in found for s in r.fact.sources()))
        share = f"{decimal_up(rho * 100, 3)}%"
        names = " and ".join(f"`{s}`" for s in sources)
        kept = f"`{obligation.claim.name}` with `except {share}`"
        if len(sources) > 1:
            return f"it rests on {names}, whose exceptions add up to {share}", (kept,)
        text = f"it rests on {names}, which allows an exception of {share}, and a pointwise claim inherits it"
        return text, (kept, f"{names} without an exception")
    return None


def _uncounted(routes: tuple[Route, ...], claim: Clause) -> str:
    shown = [r for r in routes if not r.counted and r.holds]
    if not shown:
        return ""
    r = shown[0]
    return f" (`{r.fact.sources()[0]}` would give {written(r.atom.node.quantity, r.fact.value, 6)}, but {r.note})"
