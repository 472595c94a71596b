"""What a contract gives and what it claims: clauses as facts, guarantees as obligations, per slice and temperature piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor

from kcverify.bounds.graph import Fact, Node, Parameters
from kcverify.catalog.model import Mode, Statistic
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Assumptions, Clause, Contract, Interval, Threshold
from kcverify.exact import decimal_down, decimal_up

# quantity of a metric with two good sides -> the quantities of its upper and of its lower limit
_TWO_SIDED = {
    "importance_ratio": ("ratio_above", "ratio_below"),
    "perplexity_ratio": ("perplexity_factor", "perplexity_floor"),
}
_SPANS = {
    "logit_span": "effective_span", "logit_drift": "effective_span", "trimmed_span": "trimmed_effective_span",
}  # fmt: skip


@dataclass(frozen=True)
class Atom:
    """`node <= limit` (or `>=` where `upper` is False), the limit linear in the temperature: `constant + slope T`."""

    node: Node
    constant: Fraction
    slope: Fraction = Fraction(0)
    upper: bool = True
    clause: str = ""

    def at(self, temperature: Fraction) -> Fraction:
        """The limit at one temperature."""
        return self.constant + self.slope * temperature


@dataclass(frozen=True)
class Piece:
    """A range of temperatures on which the same clauses bind; `low == high` for the closed upper end.

    `open_high`: the upper end is not asked for, as in the half-open band of a claim.
    """

    low: Fraction
    high: Fraction
    clauses: tuple[Clause, ...]
    open_high: bool = False


@dataclass(frozen=True)
class Obligation:
    """One claim on one slice: its atoms must follow from the facts of that slice."""

    claim: Clause
    scope: str
    atoms: tuple[Atom, ...]
    parameters: Parameters


def mode_of(clause: Clause) -> Mode:
    """How a clause aggregates its metric."""
    quantity = clause.metric.quantity
    if quantity is not None and BY_NAME[_TWO_SIDED.get(quantity, (quantity,))[0]].sequence:
        return Mode.SEQUENCE
    return Mode.MEAN if clause.statistic in (Statistic.MEAN, Statistic.RATE) else Mode.POINT


def grade_of(clause: Clause) -> Fraction:
    """Grade of the clause's quantity: kept mass of a span, minus the margin of a flip, one over the bins, 1 for others."""
    mass, margin, count = (clause.argument(name) for name in ("mass", "margin", "count"))
    if isinstance(margin, Fraction):
        return -margin
    if isinstance(count, Fraction):
        return 1 / count
    return mass if isinstance(mass, Fraction) else Fraction(1)


def in_graph(clause: Clause) -> bool:
    """Whether the clause states something that the lemmas speak about."""
    if clause.metric.quantity is None or (clause.limit.strict and clause.limit.upper is None):
        return False
    if clause.argument("top") not in (None, Fraction(1)) or clause.argument("bins") == "own":
        return False
    return clause.statistic is not Statistic.RATE or clause.exception == 0


def atoms(clause: Clause) -> tuple[Atom, ...]:
    """The inequalities of a clause (or claim), in the quantities of the bound graph."""
    quantity = clause.metric.quantity
    if quantity is None or not in_graph(clause):
        return ()
    mode, rho = mode_of(clause), clause.exception if mode_of(clause) is Mode.POINT else Fraction(0)
    lower, upper = clause.limit.lower, clause.limit.upper
    one, grade = Fraction(1), grade_of(clause)
    if grade < 1 and quantity == "logit_span":
        quantity = "trimmed_span"

    def atom(name: str, threshold: Threshold, upper: bool, sign: int = 1, shift: Fraction = Fraction(0)) -> Atom:
        slope = dict(threshold.terms).get("temperature", Fraction(0))
        return Atom(Node(name, mode, rho, grade), sign * threshold.constant + shift, sign * slope, upper, clause.name)

    if quantity == "disagreement":
        out = [atom(quantity, lower, True, sign=-1, shift=one)] if lower else []
        return (*out, *([atom(quantity, upper, False, sign=-1, shift=one)] if upper else []))
    if quantity == "perplexity_ratio":
        above, below = _TWO_SIDED[quantity]
        out = [atom(above, upper, True)] if upper else []
        return (*out, *([atom(below, lower, False)] if lower else []))
    if quantity == "importance_ratio":
        out = [atom("ratio_above", upper, True, shift=-one)] if upper else []
        return (*out, *([atom("ratio_below", lower, True, sign=-1, shift=one)] if lower else []))
    found = [atom(quantity, upper, True)] if upper else []
    return (*found, *([atom(quantity, lower, False)] if lower else []))


# quantity -> (sign, shift, upper): a bound `x` of it is the limit `sign x + shift` of the metric, from above or from below
_AS_WRITTEN: dict[str, tuple[int, int, bool]] = {
    "ratio_above": (1, 1, True),
    "ratio_below": (-1, 1, False),
    "disagreement": (-1, 1, False),
}


def as_written(quantity: str, value: Fraction) -> tuple[Fraction, bool]:
    """A bound of a quantity as a limit of its metric, as a clause writes it, and whether it is one from above."""
    sign, shift, upper = _AS_WRITTEN.get(quantity, (1, 0, BY_NAME[quantity].upper))
    return sign * value + shift, upper


def written(quantity: str, value: Fraction, digits: int) -> str:
    """That limit as a decimal, rounded to the side on which it still holds."""
    limit, upper = as_written(quantity, value)
    return (decimal_up if upper else decimal_down)(limit, digits)


def facts(clause: Clause, piece: Piece) -> list[Fact]:
    """What the lemmas may use of a clause on a piece: only limits on the side that bounds its quantity.

    A trimmed span is the smallest over sets that hold a mass on both sides, so at most the rest lies outside its set.
    A limit beyond the end of the quantity's range, which nothing meets, counts as that end.
    """
    out = []
    for a in atoms(clause):
        q = BY_NAME[a.node.quantity]
        if a.upper is not q.upper:
            continue
        ends = (a.at(piece.low), a.at(piece.high))
        weakest = max(q.low, *ends) if a.upper else min(*ends, *([q.high] if q.high is not None else []))
        out.append(Fact(a.node, weakest, label=clause.name))
        if a.node.quantity == "trimmed_span":
            out.append(Fact(Node("tail_mass", Mode.POINT, grade=a.node.grade), 1 - a.node.grade, label=clause.name))
        if a.slope and a.node.quantity in _SPANS:
            factor = 2 if a.node.quantity == "logit_drift" else 1
            spans = [factor * a.at(t) / t for t in (piece.low, piece.high)]
            node = Node(_SPANS[a.node.quantity], a.node.mode, a.node.rho, a.node.grade)
            out.append(Fact(node, max(Fraction(0), *spans), label=clause.name))
    return out


def certifiable(clause: Clause, others: Iterable[Clause]) -> bool:
    """Whether samples can ever certify the clause: a mean needs a metric of bounded range.

    The range may come from the catalogue, or from a clause of the same metric that allows no exception.
    """
    return _bounded(clause) or any(_bounds_range(o, clause) for o in others)


def all_certifiable(clauses: Iterable[Clause], others: Iterable[Clause]) -> list[Clause]:
    """Those of the clauses that samples can ever certify, in order; the same as `certifiable` of each, but in one pass."""
    ranges: dict[str, list[Clause]] = {}
    for o in others:
        if o.statistic is Statistic.MAX:
            ranges.setdefault(o.metric.name, []).append(o)
    return [c for c in clauses if certifiable(c, ranges.get(c.metric.name, ()))]


def _bounded(clause: Clause) -> bool:
    return mode_of(clause) is not Mode.MEAN or clause.metric.range[1] is not None


def _bounds_range(o: Clause, clause: Clause) -> bool:
    """Whether a clause gives the metric of another one a range, on every slice of that one."""
    return (
        o is not clause and o.metric is clause.metric and grade_of(o) >= grade_of(clause) and o.statistic is Statistic.MAX and o.exception == 0
        and o.limit.upper is not None and (not o.slices or set() < set(clause.slices) <= set(o.slices)) and o.band is None
    )  # fmt: skip


def coupled(clause: Clause) -> bool:
    """Whether the clause binds on a band only, or its limit moves with the temperature."""
    terms = [t for limit in (clause.limit.lower, clause.limit.upper) if limit is not None for t in limit.terms]
    return clause.band is not None or bool(terms)


def scopes(contract: Contract, claim: Clause) -> tuple[str, ...]:
    """The slices on which a claim must hold, `""` for all traffic."""
    return claim.slices or ("",)


def applies(clause: Clause, scope: str) -> bool:
    """Whether a clause speaks about every context of a slice.

    A clause on all traffic holds on a slice only without an exception and pointwise: an exceeding share, or a mean,
    may gather in the slice.
    """
    if scope in clause.slices:
        return True
    if clause.slices:
        return False
    return scope == "" or (mode_of(clause) is Mode.POINT and clause.exception == 0)


def pieces(contract: Contract, scope: str, without: str = "") -> tuple[Piece, ...]:
    """The temperature range cut at the bands' edges; one degenerate piece where no temperature is assumed."""
    usable = [c for c in contract.clauses if c.name != without and in_graph(c) and applies(c, scope)]
    t = contract.assumptions.temperature
    if t is None or t.low is None or t.high is None:
        return (Piece(Fraction(1), Fraction(1), tuple(c for c in usable if c.band is None)),)
    low, high = t.low, t.high
    cuts = {low, high}
    for c in usable:
        if c.band is not None and c.band.parameter == "temperature":
            cuts |= {x for x in (c.band.interval.low, c.band.interval.high) if x is not None and low < x < high}
    ordered = sorted(cuts)
    banded = any(c.band is not None for c in usable)
    spans = list(zip(ordered, ordered[1:], strict=False)) or [(low, high)]
    if banded and spans[-1] != (high, high) and not t.open_high:
        spans.append((high, high))
    return tuple(Piece(a, b, tuple(c for c in usable if _covers(c, a, b))) for a, b in spans)


def whole_piece(contract: Contract, scope: str) -> Piece:
    """The whole temperature range with every clause of the slice, banded or not."""
    t = contract.assumptions.temperature
    usable = tuple(c for c in contract.clauses if applies(c, scope))
    low, high = temperatures(contract)
    return Piece(low, high, usable, t is not None and None not in (t.low, t.high) and t.open_high)


def temperatures(contract: Contract) -> tuple[Fraction, Fraction]:
    """The ends of the assumed temperatures, 1 and 1 where no range is assumed."""
    t = contract.assumptions.temperature
    return (Fraction(1), Fraction(1)) if t is None or t.low is None or t.high is None else (t.low, t.high)


def _covers(clause: Clause, low: Fraction, high: Fraction) -> bool:
    if clause.band is None:
        return True
    if clause.band.parameter != "temperature":
        return False
    i = clause.band.interval
    if i.low is not None and low < i.low:
        return False
    if i.high is None:
        return True
    if low == high:
        return high < i.high or (high == i.high and not i.open_high)
    return high <= i.high


def parameters(assumptions: Assumptions, piece: Piece | None = None, clip: Fraction | None = None) -> Parameters:
    """The lemmas' parameter boxes from the assumptions (and the piece's temperatures, the claim's clip)."""
    box: dict[str, tuple[Fraction, Fraction]] = {}
    t = assumptions.temperature
    if t is not None and t.low is not None and t.high is not None:
        box["temperature"] = (t.low, t.high) if piece is None else (piece.low, piece.high)
    if assumptions.horizon is not None:
        box["horizon"] = (Fraction(1), Fraction(assumptions.horizon))
    r = assumptions.reward
    if r is not None and r.low is not None and r.high is not None:
        box["reward_range"] = (r.high - r.low, r.high - r.low)
    for name in ("advantage", "score_norm", "token_score_norm"):
        value = getattr(assumptions, name)
        if value is not None:
            box[name] = (value, value)
    if clip is not None:
        box["clip"] = (clip, clip)
    sampler = assumptions.sampler
    conditions = {"full_softmax"} if sampler is None or sampler.kind == "full_softmax" else set()
    return Parameters(box, frozenset(conditions))


def narrowed(contract: Contract, claim: Clause) -> Contract | None:
    """The contract with temperature or horizon narrowed to the claim's band; None where the two have nothing in common.

    A half-open band of temperatures leaves its upper end out: clauses that begin to bind there say nothing about it.
    """
    band, given = claim.band, contract.assumptions
    if band is None:
        return contract
    i = band.interval
    if band.parameter == "horizon":
        ends = [] if i.high is None else [ceil(i.high) - 1 if i.open_high else floor(i.high)]
        longest = min([given.horizon or 1, *ends])
        if longest < max(Fraction(1), i.low or Fraction(1)):
            return None
        return replace(contract, assumptions=replace(given, horizon=longest))
    t = given.temperature
    if t is None or t.low is None or t.high is None:
        return None
    low = t.low if i.low is None else max(t.low, i.low)
    high = t.high if i.high is None else min(t.high, i.high)
    if low > high or (low == high == i.high and i.open_high):
        return None
    inside = Interval(low, high, t.open_high if high < (i.high or high + 1) else i.open_high)
    return replace(contract, assumptions=replace(given, temperature=inside))


def obligations(contract: Contract) -> tuple[Obligation, ...]:
    """Every claim of the contract on every slice that it names."""
    out = []
    for claim in contract.guarantees:
        clip = claim.argument("clip")
        for scope in scopes(contract, claim):
            box = parameters(contract.assumptions, clip=clip if isinstance(clip, Fraction) else None)
            out.append(Obligation(claim, scope, atoms(claim), box))
    return tuple(out)
