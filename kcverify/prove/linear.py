"""Steps 2 and following: the whole contract as linear real arithmetic, every transcendental peeled onto rational constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import product

import z3

from kcverify.bounds.graph import Fact, Node, Parameters, apply, lifts, usable
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.model import Dimension, Lemma, Mode
from kcverify.catalog.quantities import BY_NAME, RHO
from kcverify.elaborate.contract import Clause
from kcverify.enclosure import EnclosureError, approximate_root, value_down, value_up
from kcverify.prove.obligations import Atom, Piece, atoms
from kcverify.prove.verdict import Limits

_CEILING = {Dimension.NAT: Fraction(2**12), Dimension.LOGIT: Fraction(2**14)}


@dataclass(frozen=True)
class Link:
    """One instance of a lemma at constants: the premise within `premise` gives the conclusion within `conclusion`."""

    lemma: Lemma
    source: Node
    target: Node
    premise: Fraction | None
    conclusion: Fraction


@cache
def weakest_premise(
    name: str, target: Fraction, corner: tuple[tuple[object, Fraction], ...], rho: Fraction
) -> Fraction | None:
    """Weakest premise that proves the conclusion `target`; None where none does, the largest considered where all do."""
    row = next(r for r in ROWS if r.name == name)
    premise, conclusion = BY_NAME[row.premises[0]], BY_NAME[row.conclusion]
    env = {**dict(corner), RHO: rho}

    def holds(x: Fraction) -> bool:
        try:
            at = {**env, premise.symbol: x}
            if conclusion.upper:
                return value_up(row.bound, at) <= target
            return value_down(row.bound, at) >= target
        except (EnclosureError, ZeroDivisionError):
            return False

    if row.inverse is not None and premise.upper:
        try:
            x = value_down(row.inverse, {**env, conclusion.symbol: target})
        except (EnclosureError, ZeroDivisionError, ValueError):
            x = Fraction(-1)
        if x > 0 and holds(x):
            return x
    top = premise.high or _CEILING.get(premise.dimension, Fraction(2**40))
    guess = approximate_root(row.bound, premise.symbol, target, env, top)
    if guess is not None:
        for shave in (Fraction(1, 2**100), Fraction(1, 2**60)):
            x = guess * (1 - shave) if premise.upper else min(Fraction(1), guess * (1 + shave))
            if holds(x):
                return x
    return _search(holds, premise.upper, top)


def _search(holds: Callable[[Fraction], bool], upper: bool, top: Fraction) -> Fraction | None:
    """Bisection for the weakest value that `holds`: the largest for an upper-bounded premise, else the smallest."""
    if not upper:
        if not holds(Fraction(1)):
            return None
        good, bad = Fraction(1), Fraction(0)
    else:
        if holds(top):
            return top
        good, bad = Fraction(0), top
        x = Fraction(1) if top > 1 else top / 2
        while not holds(x):
            bad, x = x, x / 16
            if x < Fraction(1, 2**200):
                return None
        good = x
    for _ in range(100):
        middle = (good + bad) / 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def z(x: Fraction) -> z3.ArithRef:
    """Exact rational as a z3 numeral."""
    return z3.RealVal(f"{x.numerator}/{x.denominator}")


@dataclass
class Encoding:
    """Clauses, temperature and lemma links of one slice on one piece of temperatures."""

    piece: Piece
    parameters: Parameters
    rhos: tuple[Fraction, ...]
    links: list[Link] = field(default_factory=list)
    constants: dict[Node, set[Fraction]] = field(default_factory=dict)
    joints: list[tuple[tuple[Fact, ...], Fact]] = field(default_factory=list)
    names: dict[Node, z3.ArithRef] = field(default_factory=dict)
    temperature: z3.ArithRef = field(default_factory=lambda: z3.Real("T"))

    def var(self, node: Node) -> z3.ArithRef:
        """The z3 variable of a node."""
        if node not in self.names:
            self.names[node] = z3.Real(f"{node.quantity}.{node.mode.value}.{node.rho}")
        return self.names[node]

    def want(self, node: Node, constant: Fraction) -> None:
        """Ask for the lemma instances that bound `node` by `constant`, and for what those ask for in turn."""
        known = self.constants.setdefault(node, set())
        if constant in known:
            return
        known.add(constant)
        for row, source, target in _incoming(node.quantity):
            if target is not node.mode:
                continue
            for rho in self._sources(row, source, node):
                self._instantiate(row, Node(row.premises[0], source, rho), node, constant)

    def _sources(self, row: Lemma, source: Mode, node: Node) -> Iterable[Fraction]:
        if source is not Mode.POINT:
            return (Fraction(0),)
        if node.mode is Mode.POINT:
            return (node.rho,)
        return tuple(r for r in self.rhos if usable(row, source, node.mode, r))

    def _instantiate(self, row: Lemma, source: Node, node: Node, constant: Fraction) -> None:
        corner = self.parameters.corner(row)
        if corner is None or len(row.premises) != 1 or not set(row.requires) <= self.parameters.conditions:
            return
        if row.name == "effective_span":
            self.links.append(Link(row, source, node, None, constant))
            self.want(Node("logit_span", source.mode, source.rho), constant * self.piece.low)
            return
        x = weakest_premise(row.name, constant, tuple(sorted(corner.items(), key=lambda kv: str(kv[0]))), source.rho)
        if x is None:
            return
        self.links.append(Link(row, source, node, x, constant))
        self.want(source, x)

    def join(self, limits: Iterable[Atom]) -> None:
        """Rows of several premises, instantiated forward at the constants of the clauses' own limits."""
        known: dict[Node, set[Fraction]] = {}
        for a in limits:
            if a.upper and not a.slope:
                known.setdefault(a.node, set()).add(a.constant)
        for row in ROWS:
            if len(row.premises) < 2 or self.parameters.corner(row) is None:
                continue
            for rho in self.rhos:
                nodes = [Node(name, Mode.POINT, rho) for name in row.premises]
                for values in product(*(sorted(known.get(n, ())) for n in nodes)):
                    facts = tuple(Fact(n, v) for n, v in zip(nodes, values, strict=True))
                    derived = apply(row, facts, Mode.POINT, self.parameters)
                    if derived is not None:
                        self.joints.append((facts, derived))
                        self.want(derived.node, derived.value)

    def link_formula(self, link: Link) -> z3.BoolRef:
        """`premise within its constant => conclusion within its constant`."""
        source, target = self.var(link.source), self.var(link.target)
        bound = self.temperature * z(link.conclusion) if link.premise is None else z(link.premise)
        within = source <= bound if BY_NAME[link.source.quantity].upper else source >= bound
        reached = target <= z(link.conclusion) if BY_NAME[link.target.quantity].upper else target >= z(link.conclusion)
        return z3.Implies(within, reached)

    def joint_formula(self, facts: tuple[Fact, ...], derived: Fact) -> z3.BoolRef:
        """All premises within their constants give the conclusion."""
        within = [self.var(f.node) <= z(f.value) for f in facts]
        return z3.Implies(z3.And(within), self.var(derived.node) <= z(derived.value))

    def background(self) -> list[z3.BoolRef]:
        """Temperature range, natural ranges, and that a smaller exception gives a larger supremum."""
        out = [self.temperature >= z(self.piece.low), self.temperature <= z(self.piece.high)]
        by_quantity: dict[tuple[str, Mode], list[Node]] = {}
        for node, x in self.names.items():
            q = BY_NAME[node.quantity]
            out.append(x >= z(q.low))
            if q.high is not None:
                out.append(x <= z(q.high))
            by_quantity.setdefault((node.quantity, node.mode), []).append(node)
        for (name, _), nodes in by_quantity.items():
            ordered = sorted(nodes, key=lambda n: n.rho)
            for a, b in zip(ordered, ordered[1:], strict=False):
                out.append(self.var(a) >= self.var(b) if BY_NAME[name].upper else self.var(a) <= self.var(b))
        return out

    def atom_formula(self, atom: Atom) -> z3.BoolRef:
        """The inequality of an atom."""
        limit = z(atom.constant) + z(atom.slope) * self.temperature
        return self.var(atom.node) <= limit if atom.upper else self.var(atom.node) >= limit


@cache
def _incoming(quantity: str) -> tuple[tuple[Lemma, Mode, Mode], ...]:
    return tuple((r, a, b) for r in ROWS if r.conclusion == quantity for a, b in lifts(r.name))


def encode(piece: Piece, parameters: Parameters, clauses: Iterable[Atom], claims: Iterable[Atom]) -> Encoding:
    """Lemma instances for every constant that a clause or a claim compares with, closed under the lemmas."""
    clauses, claims = tuple(clauses), tuple(claims)
    rhos = tuple(sorted({a.node.rho for a in (*clauses, *claims)} | {Fraction(0)}))
    out = Encoding(piece, parameters, rhos)
    out.join(clauses)
    for a in (*clauses, *claims):
        for t in {piece.low, piece.high}:
            out.want(a.node, a.at(t) if a.upper is BY_NAME[a.node.quantity].upper else _inside(a.at(t)))
        out.var(a.node)
    return out


def _inside(x: Fraction) -> Fraction:
    """A constant just below a floor: what keeps a quantity at most there contradicts the floor."""
    return x * (1 - Fraction(1, 2**30))


def _solver(limits: Limits) -> z3.Solver:
    solver = z3.SolverFor("QF_LRA")
    solver.set("timeout", limits.solver_ms)
    solver.set("core.minimize", True)
    return solver


def load(encoding: Encoding, limits: Limits) -> z3.Solver:
    """A solver with the background and the lemma links, each link tracked under its lemma's name."""
    solver = _solver(limits)
    for i, link in enumerate(encoding.links):
        solver.assert_and_track(encoding.link_formula(link), f"lemma:{link.lemma.name}#{i}")
    for i, (facts, derived) in enumerate(encoding.joints):
        name = derived.lemma.name if derived.lemma is not None else ""
        solver.assert_and_track(encoding.joint_formula(facts, derived), f"lemma:{name}#j{i}")
    solver.add(encoding.background())
    return solver


def core_names(solver: z3.Solver) -> tuple[str, ...]:
    """Clauses and lemmas of an unsatisfiable core, each once, clauses first."""
    found = [str(x) for x in solver.unsat_core()]
    clauses = sorted({n.removeprefix("clause:") for n in found if n.startswith("clause:")})
    lemmas = sorted({n.removeprefix("lemma:").split("#")[0] for n in found if n.startswith("lemma:")})
    return (*clauses, *lemmas)


def bound_to_band(encoding: Encoding, clause: Clause, formula: z3.BoolRef) -> z3.BoolRef:
    """The formula, or with a band of temperatures: only where the band holds (half-open, as the text says)."""
    if clause.band is None:
        return formula
    if clause.band.parameter != "temperature":
        return z3.BoolVal(True)
    t, i = encoding.temperature, clause.band.interval
    inside = [t >= z(i.low)] if i.low is not None else []
    if i.high is not None:
        inside.append(t < z(i.high) if i.open_high else t <= z(i.high))
    return z3.Implies(z3.And(inside), formula)


@dataclass(frozen=True)
class Answer:
    """`proved` with its core of clauses and lemmas; else the reason, which is the solver's own where it gave up."""

    proved: bool
    core: tuple[str, ...] = ()
    reason: str = ""


def entails(encoding: Encoding, clauses: Iterable[Clause], claims: Iterable[Atom], limits: Limits) -> Answer:
    """Whether the clauses with the lemmas imply all claims. Only `unsat` is a proof; anything else proves nothing."""
    solver = load(encoding, limits)
    for clause in clauses:
        found = [encoding.atom_formula(a) for a in atoms(clause)]
        solver.assert_and_track(bound_to_band(encoding, clause, z3.And(found)), f"clause:{clause.name}")
    solver.add(z3.Not(z3.And([encoding.atom_formula(a) for a in claims])))
    result = solver.check()
    if result == z3.unsat:
        return Answer(True, core_names(solver))
    return Answer(False, reason="" if result == z3.sat else f"the solver gave up: {solver.reason_unknown()}")
