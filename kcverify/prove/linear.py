"""Steps 2 and following: the whole contract as linear real arithmetic, every transcendental peeled onto rational constants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import product

import z3

from kcverify.bounds.graph import Fact, Node, Parameters, apply, corner_of, lifts, propagate, usable
from kcverify.bounds.invert import weakest_premise
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.model import Lemma, Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Clause
from kcverify.prove.obligations import Atom, Piece, atoms, facts
from kcverify.prove.verdict import Limits

_SPAN = LEMMAS["span_of_drift"]


@dataclass(frozen=True)
class Link:
    """One instance of a lemma at constants: the premise within `premise` gives the conclusion within `conclusion`.

    Without a `premise` the row is linear and stands as it is: `sigma <= T conclusion` gives `s <= conclusion`, and
    `sigma <= 2 delta` for a drift.
    """

    lemma: Lemma
    source: Node
    target: Node
    premise: Fraction | None
    conclusion: Fraction


def z(x: Fraction) -> z3.ArithRef:
    """Exact rational as a z3 numeral."""
    return z3.RealVal(f"{x.numerator}/{x.denominator}")


@dataclass
class Encoding:
    """Clauses, temperature and lemma links of one slice on one piece of temperatures."""

    piece: Piece
    parameters: Parameters
    rhos: tuple[Fraction, ...]
    reached: frozenset[tuple[str, Mode]] | None = None
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
        """Ask for the lemma instances that bound `node` by `constant`, and for what those ask for in turn.

        Of several rows from one premise only the one that asks least of it.
        """
        known = self.constants.setdefault(node, set())
        if constant in known:
            return
        known.add(constant)
        best: dict[Node, Link] = {}
        for row, source, target in _incoming(node.quantity):
            if target is not node.mode:
                continue
            for rho in self._sources(row, source, node):
                link = self._instance(row, Node(row.premises[0], source, rho), node, constant)
                if link is not None and (link.source not in best or _asks_less(link, best[link.source])):
                    best[link.source] = link
        for link in best.values():
            self.links.append(link)
            self.want(link.source, constant * self.piece.low if link.premise is None else link.premise)

    def _sources(self, row: Lemma, source: Mode, node: Node) -> Iterable[Fraction]:
        if source is not Mode.POINT:
            return (Fraction(0),)
        if node.mode is Mode.POINT:
            return (node.rho,)
        return tuple(r for r in self.rhos if usable(row, source, node.mode, r))

    def _instance(self, row: Lemma, source: Node, node: Node, constant: Fraction) -> Link | None:
        corner = corner_of(row, self.parameters)
        if corner is None or len(row.premises) != 1:
            return None
        if self.reached is not None and (source.quantity, source.mode) not in self.reached:
            return None
        if row.name == "effective_span":
            return Link(row, source, node, None, constant)
        x = weakest_premise(row.name, constant, corner, source.rho)
        return None if x is None else Link(row, source, node, x, constant)

    def join(self, limits: Iterable[Atom]) -> None:
        """Rows of several premises, instantiated forward at the constants of the clauses' own limits.

        At an exception only the limits of one clause are joined, with those of others that have none.
        """
        plain = [a for a in limits if natural(a) and not a.slope and a.node.mode is Mode.POINT]
        for row in ROWS:
            if len(row.premises) < 2 or self.parameters.corner(row) is None:
                continue
            for rho in self.rhos:
                sides = [[a for a in plain if a.node.quantity == q and a.node.rho in (0, rho)] for q in row.premises]
                for chosen in product(*sides):
                    owners = {a.clause for a in chosen if a.node.rho}
                    if len(owners) == (0 if rho == 0 else 1):
                        self._joint(row, rho, tuple(a.constant for a in chosen))

    def _joint(self, row: Lemma, rho: Fraction, values: tuple[Fraction, ...]) -> None:
        given = tuple(Fact(Node(q, Mode.POINT, rho), v) for q, v in zip(row.premises, values, strict=True))
        derived = apply(row, given, Mode.POINT, self.parameters)
        if derived is not None:
            self.joints.append((given, derived))
            self.want(derived.node, derived.value)

    def link_formula(self, link: Link) -> z3.BoolRef:
        """`premise within its constant => conclusion within its constant`."""
        source, target = self.var(link.source), self.var(link.target)
        if link.premise is None and link.source.quantity == "logit_drift":
            return target <= z(link.conclusion) * source
        bound = self.temperature * z(link.conclusion) if link.premise is None else z(link.premise)
        within = source <= bound if BY_NAME[link.source.quantity].upper else source >= bound
        reached = target <= z(link.conclusion) if BY_NAME[link.target.quantity].upper else target >= z(link.conclusion)
        return z3.Implies(within, reached)

    def joint_formula(self, given: tuple[Fact, ...], derived: Fact) -> z3.BoolRef:
        """All premises within their constants give the conclusion."""
        within = [self.var(f.node) <= z(f.value) for f in given]
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
        """The inequality of an atom.

        A limit on the other side says nothing where half of the contexts or more may be excepted from it.
        """
        if not natural(atom) and atom.node.mode is Mode.POINT and 2 * atom.node.rho >= 1:
            return z3.BoolVal(True)
        limit = z(atom.constant) + z(atom.slope) * self.temperature
        return self.var(atom.node) <= limit if atom.upper else self.var(atom.node) >= limit


def _asks_less(a: Link, b: Link) -> bool:
    """Whether the premise of `a` is weaker than that of `b`, for links between the same nodes."""
    if a.premise is None or b.premise is None:
        return a.premise is None
    return a.premise > b.premise if BY_NAME[a.source.quantity].upper else a.premise < b.premise


@cache
def _incoming(quantity: str) -> tuple[tuple[Lemma, Mode, Mode], ...]:
    return tuple((r, a, b) for r in ROWS if r.conclusion == quantity for a, b in lifts(r.name))


@cache
def forward_of(start: frozenset[tuple[str, Mode]]) -> frozenset[tuple[str, Mode]]:
    """Every quantity, in every aggregation, that some chain of rows reaches from `start`."""
    found = set(start)
    while (
        more := {
            (row.conclusion, target)
            for row in ROWS
            for source, target in lifts(row.name)
            if all((name, source) in found for name in row.premises)
        }
        - found
    ):
        found |= more
    return frozenset(found)


def encode(piece: Piece, parameters: Parameters, clauses: Iterable[Atom], claims: Iterable[Atom]) -> Encoding:
    """Lemma instances for every constant that a clause or a claim compares with, closed under the lemmas.

    With claims, only for the constants of the claims: a proof runs backwards from there, and meets the clauses' limits
    by plain arithmetic. Only instances whose premise some clause bounds, directly or by a chain of lemmas.
    """
    clauses, claims = tuple(clauses), tuple(claims)
    rhos = tuple(sorted({a.node.rho for a in (*clauses, *claims)} | {Fraction(0)}))
    given = frozenset((a.node.quantity, a.node.mode) for a in clauses)
    out = Encoding(piece, parameters, rhos, forward_of(given))
    out.join(clauses)
    for node in {a.node for a in clauses if a.node.quantity == "logit_drift"}:
        out.links.append(Link(_SPAN, node, replace(node, quantity="logit_span"), None, Fraction(2)))
    for a in claims or clauses:
        for t in {piece.low, piece.high}:
            out.want(a.node, a.at(t) if natural(a) else _inside(a.at(t)))
    for a in (*clauses, *claims):
        out.var(a.node)
    return out


def coupled(clause: Clause) -> bool:
    """Whether the clause binds on a band only, or its limit moves with the temperature."""
    terms = [t for limit in (clause.limit.lower, clause.limit.upper) if limit is not None for t in limit.terms]
    return clause.band is not None or bool(terms)


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


def natural(atom: Atom) -> bool:
    """Whether the limit is on the side that bounds the quantity."""
    return atom.upper is BY_NAME[atom.node.quantity].upper


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
    for i, (given, derived) in enumerate(encoding.joints):
        name = derived.lemma.name if derived.lemma is not None else ""
        solver.assert_and_track(encoding.joint_formula(given, derived), f"lemma:{name}#j{i}")
    solver.add(encoding.background())
    return solver


JOINED = z3.Bool("several exceptions at once")


def switchable(encoding: Encoding, limits: Limits) -> z3.Solver:
    """A solver with the background and the lemma links; lemmas of several premises with an exception need `JOINED`."""
    solver = _solver(limits)
    solver.add([encoding.link_formula(link) for link in encoding.links])
    for given, derived in encoding.joints:
        formula = encoding.joint_formula(given, derived)
        solver.add(z3.Implies(JOINED, formula) if derived.node.rho else formula)
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


def apart(clauses: Iterable[Clause], names: Iterable[str]) -> bool:
    """Whether more than one of the named clauses has an exception, so that they may fail on different contexts."""
    core = set(names)
    return sum(c.exception > 0 for c in clauses if c.name in core) > 1


def entails(encoding: Encoding, clauses: Iterable[Clause], claims: Iterable[Atom], limits: Limits) -> Answer:
    """Whether the clauses with the lemmas imply all claims. Only `unsat` is a proof; anything else proves nothing.

    A supremum stands for a pointwise quantity, so a floor on single values is never claimed; and what needs two
    quantities at once is no proof where it takes the exceptions of several clauses.
    """
    clauses, claims = tuple(clauses), tuple(claims)
    if any(not natural(a) and a.node.mode is Mode.POINT for a in claims):
        return Answer(False, reason="no lemma bounds single values from that side")
    solver = load(encoding, limits)
    for clause in clauses:
        found = [encoding.atom_formula(a) for a in atoms(clause)]
        solver.assert_and_track(bound_to_band(encoding, clause, z3.And(found)), f"clause:{clause.name}")
    solver.add(z3.Not(z3.And([encoding.atom_formula(a) for a in claims])))
    result = solver.check()
    if result != z3.unsat:
        return Answer(False, reason="" if result == z3.sat else f"the solver gave up: {solver.reason_unknown()}")
    core = core_names(solver)
    together = len(claims) > 1 and claims[0].node.rho > 0
    joined = any("#j" in str(x) for x in solver.unsat_core())
    if (together or joined) and apart(clauses, core):
        return Answer(False, reason="the exceptions of several clauses add up")
    return Answer(True, core)
