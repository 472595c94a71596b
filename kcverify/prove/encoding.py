"""The whole contract as linear real arithmetic: clauses, temperature and lemma instances at rational constants, as SMT-LIB text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import product

from kcverify.bounds.graph import Fact, Node, Parameters, apply, corner_of, covers, grade_of, lifts, usable
from kcverify.bounds.invert import weakest_premise
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.model import Lemma, Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Clause
from kcverify.prove.obligations import Atom, Piece, atoms

_SPAN = LEMMAS["span_of_drift"]
Reach = dict[tuple[str, Mode], frozenset[Fraction]]


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


def number(x: Fraction) -> str:
    """An exact rational as an SMT-LIB real."""
    size = f"{abs(x.numerator)}.0" if x.denominator == 1 else f"(/ {abs(x.numerator)}.0 {x.denominator}.0)"
    return size if x >= 0 else f"(- {size})"


def conjunction(formulas: Iterable[str]) -> str:
    """All of the formulas."""
    return f"(and true {' '.join(formulas)})"


@dataclass
class Encoding:
    """Clauses, temperature and lemma links of one slice on one piece of temperatures.

    `reached` says of each quantity, in each aggregation, at which exceptions some clause bounds it by a chain of rows.
    """

    piece: Piece
    parameters: Parameters
    reached: Reach
    links: list[Link] = field(default_factory=list)
    constants: dict[Node, set[Fraction]] = field(default_factory=dict)
    joints: list[tuple[tuple[Fact, ...], Fact]] = field(default_factory=list)
    symbols: dict[Node, str] = field(default_factory=dict)

    def symbol(self, node: Node) -> str:
        """The variable of a node."""
        if node not in self.symbols:
            self.symbols[node] = f"|{node.quantity}.{node.mode.value}.{node.rho}.{node.grade}|"
        return self.symbols[node]

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
                premise = Node(row.premises[0], source, rho, grade_of(row.premises[0], node))
                link = self._instance(row, premise, node, constant)
                if link is not None and (link.source not in best or _asks_less(link, best[link.source])):
                    best[link.source] = link
        for link in best.values():
            self.links.append(link)
            self.want(link.source, constant * self.piece.low if link.premise is None else link.premise)

    def _sources(self, row: Lemma, source: Mode, node: Node) -> Iterable[Fraction]:
        """Exceptions of the premise: the conclusion's own, or on the way out of the pointwise mode those of a clause."""
        if source is not Mode.POINT:
            return (Fraction(0),)
        if node.mode is Mode.POINT:
            return (node.rho,)
        known = sorted(self.reached.get((row.premises[0], source), ()))
        return tuple(r for r in known if usable(row, source, node.mode, r))

    def _instance(self, row: Lemma, source: Node, node: Node, constant: Fraction) -> Link | None:
        known = self.reached.get((source.quantity, source.mode))
        if known is None or min(known) > source.rho or len(row.premises) != 1:
            return None
        corner = corner_of(row, self.parameters)
        if corner is None:
            return None
        if row.name in ("effective_span", "trimmed_effective_span"):
            return Link(row, source, node, None, constant)
        x = weakest_premise(row.name, constant, corner, source.rho)
        return None if x is None else Link(row, source, node, x, constant)

    def keep_useful(self, joints: Iterable[tuple[tuple[Fact, ...], Fact]]) -> None:
        """Of instances of rows of several premises, those that reach a constant which something asks for."""
        for given, derived in joints:
            at = [c for n, c in self.constants.items() if _weaker(n, derived.node)]
            if any(within(derived, c) for constants in at for c in constants):
                self.joints.append((given, derived))

    def link_formula(self, link: Link) -> str:
        """`premise within its constant => conclusion within its constant`."""
        source, target = self.symbol(link.source), self.symbol(link.target)
        if link.premise is None and link.source.quantity == "logit_drift":
            return f"(<= {target} (* {number(link.conclusion)} {source}))"
        bound = f"(* T {number(link.conclusion)})" if link.premise is None else number(link.premise)
        inside = f"({_side(link.source)} {source} {bound})"
        return f"(=> {inside} ({_side(link.target)} {target} {number(link.conclusion)}))"

    def joint_formula(self, given: tuple[Fact, ...], derived: Fact) -> str:
        """All premises within their constants give the conclusion."""
        inside = conjunction(f"(<= {self.symbol(f.node)} {number(f.value)})" for f in given)
        return f"(=> {inside} ({_side(derived.node)} {self.symbol(derived.node)} {number(derived.value)}))"

    def background(self) -> list[str]:
        """Temperature range, natural ranges, and that a smaller exception gives a larger supremum."""
        top = "<" if self.piece.open_high else "<="
        out = [f"(<= {number(self.piece.low)} T)", f"({top} T {number(self.piece.high)})"]
        by_quantity: dict[tuple[str, Mode, Fraction], list[Node]] = {}
        for node, x in self.symbols.items():
            q = BY_NAME[node.quantity]
            out.append(f"(<= {number(q.low)} {x})")
            if q.high is not None:
                out.append(f"(<= {x} {number(q.high)})")
            by_quantity.setdefault((node.quantity, node.mode, node.grade), []).append(node)
        for nodes in by_quantity.values():
            ordered = sorted(nodes, key=lambda n: n.rho)
            for a, b in zip(ordered, ordered[1:], strict=False):
                out.append(f"({_side(a)} {self.symbol(b)} {self.symbol(a)})")
        return out

    def atom_formula(self, atom: Atom) -> str:
        """The inequality of an atom.

        A limit on the other side says nothing where half of the contexts or more may be excepted from it.
        """
        if not natural(atom) and atom.node.mode is Mode.POINT and 2 * atom.node.rho >= 1:
            return "true"
        limit = number(atom.constant)
        if atom.slope:
            limit = f"(+ {limit} (* {number(atom.slope)} T))"
        return f"({'<=' if atom.upper else '>='} {self.symbol(atom.node)} {limit})"

    def clause_formula(self, clause: Clause) -> str:
        """All inequalities of a clause, where its band holds."""
        return bound_to_band(clause, conjunction(self.atom_formula(a) for a in atoms(clause)))

    def declarations(self) -> list[str]:
        """The temperature and every variable that was asked for."""
        return ["(declare-const T Real)", *(f"(declare-const {x} Real)" for x in self.symbols.values())]


def bound_to_band(clause: Clause, formula: str) -> str:
    """The formula, or with a band of temperatures: only where the band holds (half-open, as the text says)."""
    if clause.band is None:
        return formula
    if clause.band.parameter != "temperature":
        return "true"
    i = clause.band.interval
    inside = [f"(<= {number(i.low)} T)"] if i.low is not None else []
    if i.high is not None:
        inside.append(f"(< T {number(i.high)})" if i.open_high else f"(<= T {number(i.high)})")
    return f"(=> {conjunction(inside)} {formula})"


def natural(atom: Atom) -> bool:
    """Whether the limit is on the side that bounds the quantity."""
    return atom.upper is BY_NAME[atom.node.quantity].upper


def within(fact: Fact, constant: Fraction) -> bool:
    """Whether a fact keeps its quantity on the good side of a constant."""
    return fact.value <= constant if fact.quantity.upper else fact.value >= constant


def _side(node: Node) -> str:
    return "<=" if BY_NAME[node.quantity].upper else ">="


def _weaker(node: Node, than: Node) -> bool:
    """Whether a bound on `than` is one on `node`: the same quantity with no larger exception, at no smaller grade."""
    same = (node.quantity, node.mode) == (than.quantity, than.mode)
    return same and node.rho >= than.rho and covers(than, node.grade)


def _asks_less(a: Link, b: Link) -> bool:
    """Whether the premise of `a` is weaker than that of `b`, for links between the same nodes."""
    if a.premise is None or b.premise is None:
        return a.premise is None
    return a.premise > b.premise if BY_NAME[a.source.quantity].upper else a.premise < b.premise


@cache
def _incoming(quantity: str) -> tuple[tuple[Lemma, Mode, Mode], ...]:
    return tuple((r, a, b) for r in ROWS if r.conclusion == quantity for a, b in lifts(r.name))


@cache
def _single() -> tuple[tuple[Lemma, Mode, Mode], ...]:
    return tuple((r, a, b) for r in ROWS if len(r.premises) == 1 for a, b in lifts(r.name))


@cache
def reach_of(start: frozenset[Node]) -> Reach:
    """Every quantity, in every aggregation, that some chain of rows of one premise reaches, with its exceptions."""
    found: dict[tuple[str, Mode], set[Fraction]] = {}
    work = list(start)
    while work:
        node = work.pop()
        known = found.setdefault((node.quantity, node.mode), set())
        if node.rho in known:
            continue
        known.add(node.rho)
        for row, source, target in _single():
            if row.premises[0] == node.quantity and source is node.mode and usable(row, source, target, node.rho):
                rho = node.rho if target is Mode.POINT else Fraction(0)
                work.append(Node(row.conclusion, target, rho, grade_of(row.conclusion, node)))
    return {k: frozenset(v) for k, v in found.items()}


def _joints(
    parameters: Parameters, limits: Iterable[Atom], rhos: Iterable[Fraction]
) -> list[tuple[tuple[Fact, ...], Fact]]:
    """Rows of several premises, instantiated forward at the constants of the clauses' own limits.

    At an exception only the limits of one clause are joined, with those of others that have none.
    """
    plain = [a for a in limits if natural(a) and not a.slope and a.node.mode is not Mode.SEQUENCE]
    out = []
    for row in ROWS:
        if len(row.premises) < 2 or parameters.corner(row) is None:
            continue
        for source, target in lifts(row.name):
            for rho in rhos if source is Mode.POINT else (Fraction(0),):
                if not usable(row, source, target, rho):
                    continue
                fits = [a for a in plain if a.node.mode is source and a.node.rho in (0, rho)]
                for chosen in product(*([a for a in fits if a.node.quantity == q] for q in row.premises)):
                    owners = {a.clause for a in chosen if a.node.rho}
                    if len(owners) == (0 if rho == 0 else 1) and len({a.node.grade for a in chosen}) == 1:
                        values = zip(row.premises, chosen, strict=True)
                        given = tuple(Fact(Node(q, source, rho, a.node.grade), a.constant) for q, a in values)
                        derived = apply(row, given, target, parameters)
                        out += [(given, derived)] if derived is not None else []
    return out


def encode(piece: Piece, parameters: Parameters, clauses: Iterable[Atom], claims: Iterable[Atom]) -> Encoding:
    """Lemma instances for every constant that a clause or a claim compares with, closed under the lemmas.

    With claims, only for the constants of the claims: a proof runs backwards from there, and meets the clauses' limits
    by plain arithmetic. Only instances whose premise some clause bounds, directly or by a chain of lemmas, at an
    exception that some clause has; rows of several premises only where their conclusion is asked for.
    """
    clauses, claims = tuple(clauses), tuple(claims)
    rhos = tuple(sorted({a.node.rho for a in (*clauses, *claims)} | {Fraction(0)}))
    joints = _joints(parameters, clauses, rhos)
    start = frozenset({a.node for a in clauses} | {derived.node for _, derived in joints})
    out = Encoding(piece, parameters, reach_of(start))
    for node in {a.node for a in clauses if a.node.quantity == "logit_drift"}:
        out.links.append(Link(_SPAN, node, replace(node, quantity="logit_span"), None, Fraction(2)))
    for a in claims or clauses:
        for t in {piece.low, piece.high}:
            out.want(a.node, a.at(t) if natural(a) else _inside(a.at(t)))
    out.keep_useful(joints)
    for a in (*clauses, *claims):
        out.symbol(a.node)
    return out


def _inside(x: Fraction) -> Fraction:
    """A constant just below a floor: what keeps a quantity at most there contradicts the floor."""
    return x * (1 - Fraction(1, 2**30))
