"""Step 1: the worst corner. One forward enclosure along the best chain decides a claim of monotone bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from kcverify.bounds.graph import Fact, Node, Parameters, again, best_for, joint_exception, propagate, stronger
from kcverify.bounds.special import SPECIALS, TABLE, Effort
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Clause, Contract
from kcverify.prove.obligations import Atom, Obligation, Piece, atoms, certifiable, facts, parameters, pieces
from kcverify.prove.verdict import Route

UNCERTIFIABLE = "no sample certifies the mean of an unbounded metric, so this chain is shown and not counted"


def weakest_limit(atom: Atom, piece: Piece) -> Fraction:
    """The claim's limit at the temperature of the piece where it is hardest to meet."""
    ends = (atom.at(piece.low), atom.at(piece.high))
    return min(ends) if atom.upper else max(ends)


def _usable(fact: Fact, atom: Atom) -> bool:
    return BY_NAME[atom.node.quantity].upper is atom.upper


def best_fact(best: dict[Node, Fact], atom: Atom) -> Fact | None:
    """The strongest fact about the atom's quantity that respects its exception."""
    fact = best_for(best, atom.node.quantity, atom.node.mode, atom.node.rho, atom.node.grade)
    return fact if fact is not None and _usable(fact, atom) else None


def piece_parameters(contract: Contract, obligation: Obligation, piece: Piece) -> Parameters:
    """The obligation's boxes with the temperature narrowed to the piece."""
    given = obligation.parameters
    clip = given.box.get("clip")
    boxes = parameters(contract.assumptions, piece, clip[0] if clip else None)
    return replace(boxes, effort=given.effort, without=given.without)


def counted(contract: Contract, piece: Piece) -> tuple[Clause, ...]:
    """The clauses of a piece that a proof may rest on."""
    return tuple(c for c in piece.clauses if certifiable(c, piece.clauses))


def joint_facts(contract: Contract, obligation: Obligation, piece: Piece) -> dict[Node, Fact]:
    """What follows on a piece from all clauses that count."""
    clauses, boxes = counted(contract, piece), piece_parameters(contract, obligation, piece)
    targets = {a.node.quantity for a in obligation.atoms}
    best = propagate([f for c in clauses for f in facts(c, piece)], boxes, targets)
    for clause in clauses:
        if clause.exception and len(atoms(clause)) > 1:
            for node, fact in propagate(facts(clause, piece), boxes, targets).items():
                if node not in best or stronger(fact.quantity, fact.value, best[node].value):
                    best[node] = fact
    return best


def best_routes(contract: Contract, obligation: Obligation, effort: Effort = TABLE) -> list[Route | None]:
    """For each atom the tightest counted chain, at the piece of temperatures where it is weakest; None without one.

    Chains are chosen by the shipped table; a recursion in the chosen one is then run at the given effort, on every
    piece, and the affinity product put beside it.
    """
    parts = pieces(contract, obligation.scope)
    known = [_facts_together(contract, obligation, piece) for piece in parts]
    out: list[Route | None] = []
    for i, atom in enumerate(obligation.atoms):
        worst: Route | None = None
        missing = False
        for piece, found in zip(parts, known, strict=True):
            fact = found[i]
            if fact is None:
                missing = True
                break
            boxes = replace(piece_parameters(contract, obligation, piece), effort=effort)
            route = _run(Route(atom, fact, weakest_limit(atom, piece)), boxes)
            if worst is None or route.slack < worst.slack:
                worst = route
        out.append(None if missing else worst)
    return out


def _run(route: Route, boxes: Parameters) -> Route:
    """The route with its recursion run, beside the same chain with the affinity product; as it is without a recursion."""
    if not any(f.lemma is not None and f.lemma.special for f in route.fact.chain()):
        return route
    fact = again(route.fact, boxes, {}) if boxes.effort.run else route.fact
    formula = again(route.fact, boxes, dict.fromkeys(SPECIALS, "seq_affinity"))
    return replace(route, fact=fact or route.fact, formula=formula)


def _facts_together(contract: Contract, obligation: Obligation, piece: Piece) -> list[Fact | None]:
    """The strongest fact for each atom, such that all of them fail on no more contexts than the claim allows.

    Where the clauses' exceptions add up to more, the facts of the one clause that proves most.
    """
    atoms_ = obligation.atoms
    best = joint_facts(contract, obligation, piece)
    found = [best_fact(best, a) for a in atoms_]
    if len(atoms_) < 2 or joint_exception(f for f in found if f is not None) <= atoms_[0].node.rho:
        return found
    out: list[Fact | None] = [None] * len(atoms_)
    least: Fraction | None = None
    for clause in counted(contract, piece):
        best = propagate(facts(clause, piece), piece_parameters(contract, obligation, piece))
        single = [best_fact(best, a) for a in atoms_]
        routes = [Route(a, f, weakest_limit(a, piece)) for a, f in zip(atoms_, single, strict=True) if f is not None]
        slack = min((r.slack for r in routes), default=None)
        if len(routes) == len(atoms_) and slack is not None and (least is None or slack > least):
            out, least = single, slack
    return out


def as_run(routes: Iterable[Route], best: Iterable[Route]) -> tuple[Route, ...]:
    """The routes, those that the best ones repeat replaced by these, whose recursions were run; tightest first."""

    def key(r: Route) -> tuple[object, ...]:
        return r.atom, r.fact.sources(), tuple(f.lemma and f.lemma.name for f in r.fact.chain())

    run = {key(r): r for r in best}
    found = [replace(run.get(key(r), r), counted=r.counted, note=r.note) for r in routes]
    return tuple(sorted(found, key=lambda r: (not r.counted, -r.slack)))


def clause_routes(contract: Contract, obligation: Obligation) -> list[Route]:
    """One chain per clause that reaches an atom at all, counted or not, tightest first.

    Clauses that bind only on a band of temperatures have no chain of their own over the whole range.
    """
    out = []
    parts = pieces(contract, obligation.scope)
    whole = replace(parts[0], high=parts[-1].high)
    boxes, targets = piece_parameters(contract, obligation, whole), {a.node.quantity for a in obligation.atoms}
    for clause in dict.fromkeys(c for p in parts for c in p.clauses):
        if clause.band is not None:
            continue
        best = propagate(facts(clause, whole), boxes, targets)
        ok = certifiable(clause, whole.clauses)
        for atom in obligation.atoms:
            fact = best_fact(best, atom)
            if fact is not None:
                out.append(Route(atom, fact, weakest_limit(atom, whole), ok, "" if ok else UNCERTIFIABLE))
    return sorted(out, key=lambda r: (not r.counted, -r.slack))
