"""Step 2: z3 on the linear form of a contract (`prove.encoding`): entailment with its core, and which clauses it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import z3

from kcverify.bounds.graph import Parameters, propagate
from kcverify.catalog.model import Mode
from kcverify.elaborate.contract import Clause
from kcverify.prove.encoding import Encoding, conjunction, encode, natural
from kcverify.prove.obligations import Atom, Piece, atoms, coupled, facts
from kcverify.prove.verdict import Limits

__all__ = [
    "JOINED",
    "Answer",
    "apart",
    "coupled",
    "encode",
    "entails",
    "essential",
    "natural",
    "solver_of",
    "switchable",
    "tracked",
    "z",
]
JOINED = "|several exceptions at once|"


def z(x: Fraction) -> z3.ArithRef:
    """Exact rational as a z3 numeral."""
    return z3.RealVal(f"{x.numerator}/{x.denominator}")


def essential(clauses: Iterable[Clause], piece: Piece, parameters: Parameters) -> tuple[Clause, ...]:
    """The clauses that a proof can need: coupled ones, floors, and those that some strongest fact rests on.

    The others are implied by these over the whole piece, one by one, so leaving them out loses nothing.
    """
    clauses = tuple(clauses)
    plain = [c for c in clauses if c.band is None]
    best = propagate([f for c in plain for f in facts(c, piece)], parameters)
    roots = {name for fact in best.values() for name in fact.sources()}
    pairs = [c for c in plain if c.exception > 0 and len(atoms(c)) > 1]
    roots |= {c.name for c in pairs if not any(_inside_of(o, c) for o in pairs if o is not c)}

    def kept(c: Clause) -> bool:
        return c.name in roots or coupled(c) or any(not natural(a) for a in atoms(c))

    return tuple(c for c in clauses if kept(c))


def _inside_of(other: Clause, clause: Clause) -> bool:
    """Whether the other two-sided clause is at least as narrow on both sides and allows no more exceptions."""
    mine, its = atoms(clause), atoms(other)
    same = other.metric is clause.metric and other.exception <= clause.exception and not coupled(other)
    narrow = all(
        b.constant <= a.constant if a.upper else b.constant >= a.constant for a, b in zip(mine, its, strict=False)
    )
    equal = [a.constant for a in mine] == [b.constant for b in its] and other.exception == clause.exception
    return same and len(mine) == len(its) and narrow and (not equal or other.span.start < clause.span.start)


def solver_of(text: Iterable[str], limits: Limits) -> z3.Solver:
    """A solver for linear real arithmetic with minimal cores, loaded with declarations and assertions in one go."""
    solver = z3.SolverFor("QF_LRA")
    solver.set("timeout", limits.solver_ms)
    solver.set("core.minimize", True)
    solver.from_string("\n".join(text))
    return solver


DENIED = "(assert (not "


def tracked(encoding: Encoding, clauses: Iterable[Clause], claims: Iterable[Atom]) -> tuple[list[str], list[str]]:
    """The question whether clauses and lemmas imply the claims, and the literals that switch its premises on.

    Links are switched by `lemma:i`, rows of several premises by `joint:i`, clauses by `clause:i`.
    """
    named = {f"lemma:{i}": encoding.link_formula(link) for i, link in enumerate(encoding.links)}
    named |= {f"joint:{i}": encoding.joint_formula(*joint) for i, joint in enumerate(encoding.joints)}
    named |= {f"clause:{i}": encoding.clause_formula(c) for i, c in enumerate(clauses)}
    out = [f"(declare-const |{name}| Bool)" for name in named]
    out += [f"(assert (=> |{name}| {formula}))" for name, formula in named.items()]
    denied = f"{DENIED}{conjunction(encoding.atom_formula(a) for a in claims)}))"
    background = [f"(assert {f})" for f in encoding.background()]
    return [*encoding.declarations(), *out, denied, *background], list(named)


def switchable(encoding: Encoding, formulas: Iterable[str]) -> list[str]:
    """Background, lemma links and further formulas; lemmas of several premises with an exception need `JOINED`."""
    out = [encoding.link_formula(link) for link in encoding.links]
    for given, derived in encoding.joints:
        formula = encoding.joint_formula(given, derived)
        out.append(f"(=> {JOINED} {formula})" if given[0].node.rho else formula)
    out += [*formulas, *encoding.background()]
    return [*encoding.declarations(), f"(declare-const {JOINED} Bool)", *(f"(assert {f})" for f in out)]


@dataclass(frozen=True)
class Answer:
    """`proved` with its core of clauses and lemmas; else the reason, which is the solver's own where it gave up."""

    proved: bool
    core: tuple[str, ...] = ()
    reason: str = ""


def apart(clauses: Iterable[Clause], names: Iterable[str]) -> bool:
    """Whether more than one of the named clauses has an exception, so that they may fail on different contexts."""
    core = set(names)
    return sum(c.exception > 0 for c in clauses if c.name in core) > 1


def _core(encoding: Encoding, clauses: tuple[Clause, ...], found: Iterable[str]) -> tuple[str, ...]:
    """Clauses and lemmas of an unsatisfiable core by name, each once, clauses first."""
    used: dict[str, set[str]] = {"clause": set(), "lemma": set()}
    for kind, _, place in (x.partition(":") for x in found):
        i = int(place)
        if kind == "clause":
            used["clause"].add(clauses[i].name)
        else:
            lemma = encoding.links[i].lemma if kind == "lemma" else encoding.joints[i][1].lemma
            used["lemma"].add("" if lemma is None else lemma.name)
    return (*sorted(used["clause"]), *sorted(used["lemma"]))


EXCLUDED = "clauses exclude each other at the temperatures of the claim, so that they imply anything"


def _exclude_each_other(text: list[str], names: list[str], limits: Limits) -> bool:
    """Whether the premises of a question cannot hold together, whatever is claimed."""
    solver = solver_of([line for line in text if not line.startswith(DENIED)], limits)
    return bool(solver.check(*map(z3.Bool, names)) == z3.unsat)


def entails(encoding: Encoding, clauses: Iterable[Clause], claims: Iterable[Atom], limits: Limits) -> Answer:
    """Whether the clauses with the lemmas imply all claims. Only `unsat` is a proof; anything else proves nothing.

    A supremum stands for a pointwise quantity, so a floor on single values is never claimed; and what needs two
    quantities at once is no proof where it takes the exceptions of several clauses.
    """
    clauses, claims = tuple(clauses), tuple(claims)
    if any(not natural(a) and a.node.mode is Mode.POINT for a in claims):
        return Answer(False, reason="no lemma bounds single values from that side")
    text, names = tracked(encoding, clauses, claims)
    solver = solver_of(text, limits)
    result = solver.check(*map(z3.Bool, names))
    if result != z3.unsat:
        return Answer(False, reason="" if result == z3.sat else f"the solver gave up: {solver.reason_unknown()}")
    found = [str(x) for x in solver.unsat_core()]
    core = _core(encoding, clauses, found)
    if _exclude_each_other(text, names, limits):
        return Answer(False, reason=f"{EXCLUDED}: {', '.join(c.name for c in clauses if c.name in core)}")
    together = len(claims) > 1 and claims[0].node.rho > 0
    joined = any(x.startswith("joint") for x in found)
    if (together or joined) and apart(clauses, core):
        return Answer(False, reason="the exceptions of several clauses add up")
    return Answer(True, core)
