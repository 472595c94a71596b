"""The bound graph: facts about quantities, and what follows from them by the lemma table."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import product

import sympy as sp

from kcverify.bounds.shape import lemma_shape
from kcverify.bounds.special import SPECIALS, TABLE, Effort
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.model import Lemma, Mode, Quantity
from kcverify.catalog.quantities import BY_NAME, PARAMETERS, RHO
from kcverify.enclosure import EnclosureError, value_down, value_up

Corner = tuple[tuple[sp.Symbol, Fraction], ...]
_TINY = Fraction(1, 2**256)


@dataclass(frozen=True)
class Node:
    """A quantity aggregated in one way; `rho` is the share of contexts on which a pointwise bound may fail.

    `grade` tells graded quantities apart: a bound at one grade holds at every smaller one too, or where the quantity is
    not ordered a bound at 1. The kept mass of a trimmed span; minus the margin of a flip; one over the number of bins
    of a calibration error; 1 for all others.
    """

    quantity: str
    mode: Mode
    rho: Fraction = Fraction(0)
    grade: Fraction = Fraction(1)


@dataclass(frozen=True)
class Fact:
    """`value` bounds the node: from above, or from below for a lower-bounded quantity. A premise has no lemma."""

    node: Node
    value: Fraction
    lemma: Lemma | None = None
    premises: tuple[Fact, ...] = ()
    label: str = ""

    @property
    def quantity(self) -> Quantity:
        """The catalogue row of the node's quantity."""
        return BY_NAME[self.node.quantity]

    def chain(self) -> tuple[Fact, ...]:
        """All facts that this one rests on, premises first, itself last, each once."""
        seen: dict[int, Fact] = {}

        def visit(fact: Fact) -> None:
            for p in fact.premises:
                visit(p)
            seen.setdefault(id(fact), fact)

        visit(self)
        return tuple(seen.values())

    def sources(self) -> tuple[str, ...]:
        """Labels of the premises at the roots."""
        return tuple(dict.fromkeys(f.label for f in self.chain() if not f.premises))


@dataclass(frozen=True)
class Parameters:
    """Worst corner of the assumptions: each parameter's box, and the side conditions that hold.

    `effort` is what a recursion may cost; rows named in `without` are not used.
    """

    box: Mapping[str, tuple[Fraction, Fraction]] = field(default_factory=dict)
    conditions: frozenset[str] = frozenset({"full_softmax"})
    effort: Effort = TABLE
    without: frozenset[str] = frozenset()

    def corner(self, lemma: Lemma) -> dict[sp.Symbol, Fraction] | None:
        """Values of the row's parameters where its bound is weakest; None if one is not given."""
        shape = lemma_shape_of(lemma.name)
        weakest = 1 if BY_NAME[lemma.conclusion].upper else -1
        out = {}
        for name in lemma.parameters:
            if name not in self.box:
                return None
            symbol = PARAMETERS[name]
            sign = shape[symbol]
            low, high = self.box[name]
            if sign is None and low != high:
                return None
            out[symbol] = high if sign == weakest else low
        return out


@cache
def lemma_shape_of(name: str) -> dict[sp.Symbol, int | None]:
    """Signs of a row's bound, computed once."""
    return dict(lemma_shape(_ROW[name]).signs)


_ROW = {row.name: row for row in ROWS}


@cache
def lifts(name: str) -> tuple[tuple[Mode, Mode], ...]:
    """From which aggregation to which a row leads: as declared, else pointwise, and mean where concave (Jensen)."""
    row = _ROW[name]
    if row.modes is not None:
        return row.modes
    q = BY_NAME[row.premises[0]]
    wanted = -1 if BY_NAME[row.conclusion].upper else 1
    mean = len(row.premises) == 1 and q.upper and lemma_shape(row).curve in (0, wanted)
    return ((Mode.POINT, Mode.POINT), *(((Mode.MEAN, Mode.MEAN),) if mean else ()))


def stronger(q: Quantity, a: Fraction, b: Fraction) -> bool:
    """Whether the bound `a` on a quantity says more than `b`."""
    return a < b if q.upper else a > b


def usable(lemma: Lemma, source: Mode, target: Mode, rho: Fraction) -> bool:
    """Whether a row carries a premise with exception `rho` from one aggregation to another."""
    return rho == 0 or source is not Mode.POINT or target is Mode.POINT or RHO in lemma.bound.free_symbols


@cache
def _bound(name: str, premises: tuple[Fraction, ...], corner: Corner, rho: Fraction, effort: Effort) -> Fraction | None:
    row = _ROW[name]
    conclusion = BY_NAME[row.conclusion]
    env = {**dict(corner), RHO: rho}
    if row.special:
        return SPECIALS[name].value(premises[0], env, effort)
    values = dict(zip((BY_NAME[p].symbol for p in row.premises), premises, strict=True))
    evaluate = value_up if conclusion.upper else value_down
    for attempt in (values, {k: v or _TINY for k, v in values.items()}):
        try:
            value = evaluate(row.bound, {**env, **attempt})
        except (EnclosureError, ZeroDivisionError):
            continue
        return (
            min(value, conclusion.high)
            if conclusion.upper and conclusion.high is not None
            else max(value, conclusion.low)
        )
    return None


def exceptions(facts: Iterable[Fact]) -> dict[str, Fraction]:
    """Share of contexts on which each clause at the roots of the facts may fail, by its label."""
    out: dict[str, Fraction] = {}
    for fact in facts:
        for root in fact.chain():
            if not root.premises and root.node.mode is Mode.POINT and root.node.rho:
                out[root.label] = max(out.get(root.label, Fraction(0)), root.node.rho)
    return out


def joint_exception(facts: Iterable[Fact]) -> Fraction:
    """Largest share of contexts on which some of the facts may fail: exceptions of different clauses add up."""
    return sum(exceptions(facts).values(), Fraction(0))


def corner_of(lemma: Lemma, parameters: Parameters) -> Corner | None:
    """The row's worst parameters in a fixed order; None where it does not apply under these assumptions."""
    if not set(lemma.requires) <= parameters.conditions:
        return None
    corner = parameters.corner(lemma)
    return None if corner is None else tuple(sorted(corner.items(), key=lambda kv: str(kv[0])))


def grade_of(name: str, node: Node) -> Fraction:
    """Grade of a quantity that a row ties to a node: the node's own where both are graded."""
    return node.grade if BY_NAME[name].graded else Fraction(1)


def apply(lemma: Lemma, premises: tuple[Fact, ...], target: Mode, parameters: Parameters) -> Fact | None:
    """The conclusion of a row from facts about its premises, rounded to the safe side; None where it does not apply.

    A premise of 0 at which the formula is undefined is replaced by 2^-256, which is weaker by monotonicity.
    """
    corner = corner_of(lemma, parameters)
    return None if corner is None else _conclude(lemma, premises, target, corner, parameters.effort)


def _conclude(lemma: Lemma, premises: tuple[Fact, ...], target: Mode, corner: Corner, effort: Effort) -> Fact | None:
    rho = premises[0].node.rho if premises[0].node.mode is Mode.POINT else Fraction(0)
    if len(premises) > 1:
        rho = joint_exception(premises)
    value = _bound(lemma.name, tuple(p.value for p in premises), corner, rho, effort if lemma.special else TABLE)
    if value is None:
        return None
    grade = grade_of(lemma.conclusion, premises[0].node)
    node = Node(lemma.conclusion, target, rho if target is Mode.POINT else Fraction(0), grade)
    return Fact(node, value, lemma, premises)


def again(fact: Fact, parameters: Parameters, swapped: Mapping[str, str]) -> Fact | None:
    """The same chain evaluated anew, at the effort of `parameters` and with rows exchanged by name; None if one fails."""
    if fact.lemma is None:
        return fact
    premises = [again(p, parameters, swapped) for p in fact.premises]
    if any(p is None for p in premises):
        return None
    row = _ROW[swapped.get(fact.lemma.name, fact.lemma.name)]
    return apply(row, tuple(p for p in premises if p is not None), fact.node.mode, parameters)


def _steps() -> dict[str, tuple[tuple[Lemma, tuple[tuple[Mode, Mode], ...]], ...]]:
    out: dict[str, list[tuple[Lemma, tuple[tuple[Mode, Mode], ...]]]] = {}
    for row in ROWS:
        for premise in row.premises:
            out.setdefault(premise, []).append((row, lifts(row.name)))
    return {k: tuple(v) for k, v in out.items()}


@cache
def steps() -> dict[str, tuple[tuple[Lemma, tuple[tuple[Mode, Mode], ...]], ...]]:
    """Rows by premise, each with its lifts."""
    return _steps()


def _combinations(best: Mapping[Node, Fact], row: Lemma, fact: Fact) -> Iterable[tuple[Fact, ...]]:
    """`fact` beside every known fact about the row's other premises; exceptions of at most two clauses are added up.

    Graded premises must be of one grade: a span and a mass belong together only if they are about one set.
    """
    if len(row.premises) == 1:
        return ((fact,),)
    mode = fact.node.mode
    known = [
        (fact,)
        if name == fact.node.quantity
        else tuple(
            f
            for n, f in best.items()
            if n.quantity == name and n.mode is mode and (n.grade == fact.node.grade or not fact.quantity.graded)
        )
        for name in row.premises
    ]
    return (facts for facts in product(*known) if len(exceptions(facts)) <= 2)


@cache
def leads_to(target: str) -> frozenset[str]:
    """The quantities from which some chain of rows reaches `target`, itself among them."""
    found = {target}
    while more := {p for row in ROWS if row.conclusion in found for p in row.premises} - found:
        found |= more
    return frozenset(found)


def strongest(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """The strongest of the facts about each node, the first of equal ones."""
    best: dict[Node, Fact] = {}
    for fact in facts:
        known = best.get(fact.node)
        if known is None or stronger(fact.quantity, fact.value, known.value):
            best[fact.node] = fact
    return tuple(best.values())


def propagate(
    premises: Iterable[Fact],
    parameters: Parameters,
    toward: Iterable[str] | None = None,
) -> dict[Node, Fact]:
    """The strongest fact about every node (or about those that lead to `toward`) that follows from the premises.

    A worklist to the fixpoint: every row is monotone and the table's graph has no cycle, so it ends.
    """
    useful = None if toward is None else frozenset().union(*(leads_to(name) for name in toward))
    best: dict[Node, Fact] = {}
    work: deque[Fact] = deque()
    corners: dict[str, Corner | None] = {}

    def offer(fact: Fact) -> None:
        known = best.get(fact.node)
        if known is None or stronger(fact.quantity, fact.value, known.value):
            best[fact.node] = fact
            work.append(fact)

    for p in strongest(premises):
        if p.node.quantity != "effective_span" or set(_ROW["effective_span"].requires) <= parameters.conditions:
            offer(p)
    while work:
        fact = work.popleft()
        if best[fact.node] is not fact:
            continue
        for row, _, target in _next(fact, useful):
            if row.name in parameters.without:
                continue
            if row.name not in corners:
                corners[row.name] = corner_of(row, parameters)
            corner = corners[row.name]
            if corner is None:
                continue
            for facts in _combinations(best, row, fact):
                derived = _conclude(row, facts, target, corner, parameters.effort)
                if derived is not None and derived.node.rho < 1:
                    offer(derived)
    return best


def _next(fact: Fact, useful: frozenset[str] | None) -> Iterator[tuple[Lemma, Mode, Mode]]:
    """Rows that carry a fact further, each with the aggregations from which and to which."""
    for row, modes in steps().get(fact.node.quantity, ()):
        if useful is not None and row.conclusion not in useful:
            continue
        if fact.lemma is not None and fact.lemma.name in row.not_after:
            continue
        for source, target in modes:
            if source is fact.node.mode and usable(row, source, target, fact.node.rho):
                yield row, source, target


def covers(node: Node, grade: Fraction) -> bool:
    """Whether a bound on a node is one on the same quantity at another grade."""
    return node.grade in (1, grade) or (BY_NAME[node.quantity].ordered and node.grade > grade)


def best_for(
    best: Mapping[Node, Fact], quantity: str, mode: Mode, rho: Fraction, grade: Fraction = Fraction(1)
) -> Fact | None:
    """The strongest fact that bounds a quantity with an exception of at most `rho`, at the grade or one that covers it."""
    found = [
        f
        for n, f in best.items()
        if (n.quantity, n.mode) == (quantity, mode) and covers(n, grade) and (mode is not Mode.POINT or n.rho <= rho)
    ]
    if not found:
        return None
    out = found[0]
    for f in found[1:]:
        if stronger(f.quantity, f.value, out.value):
            out = f
    return out
