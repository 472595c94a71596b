"""Holes and budgets: the largest limit of a clause that every guarantee allows, by inverting the chain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from kcverify.bounds.graph import Fact, Node, Parameters, propagate
from kcverify.bounds.invert import along_chain, bracket
from kcverify.bounds.special import TABLE, Effort
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Clause, Contract, Limit, Threshold
from kcverify.exact import decimal_down, decimal_exact, decimal_near, decimal_up, monitor_float_down, monitor_float_up
from kcverify.prove.corner import UNCERTIFIABLE, best_fact, piece_parameters, weakest_limit
from kcverify.prove.obligations import (
    Atom,
    Obligation,
    Piece,
    applies,
    atoms,
    certifiable,
    narrowed,
    obligations,
    pieces,
)
from kcverify.prove.remedy import percent
from kcverify.prove.slices import inherited
from kcverify.prove.verdict import Limits

DIGITS = 6


@dataclass(frozen=True)
class Demand:
    """What one guarantee asks of a hole: the weakest value that proves it, or None with the number that blocks it."""

    claim: Clause
    value: Fraction | None
    chain: tuple[Fact, ...] = ()
    blocked: str = ""


@dataclass(frozen=True)
class Budget:
    """A filled hole: `value` exact, `decimal` rounded to the safe side, `monitor` the double that a monitor compares with.

    They are limits as the clause writes them, with `<=` where `upper`, else `>=`. `breach` is by how much one more unit in the last printed digit would break the binding guarantee.
    """

    clause: Clause
    upper: bool
    value: Fraction
    decimal: str
    monitor: float
    binding: Demand
    demands: tuple[Demand, ...]
    share: Fraction
    breach: Fraction


@dataclass(frozen=True)
class Hole:
    """What a hole bounds: a limit `x` of the node is the threshold `sign (x - shift)` of the clause, `<=` where `upper`.

    The two differ for a ratio only: `importance_ratio >= r` says that the ratio is below 1 by at most `1 - r`.
    """

    node: Node
    upper: bool
    sign: int = 1
    shift: Fraction = Fraction(0)

    def threshold(self, value: Fraction) -> Fraction:
        """The clause's threshold for a limit of the node."""
        return self.sign * (value - self.shift)


def hole_of(clause: Clause) -> Hole | None:
    """Node that a hole bounds on its side; None where the metric enters no chain."""

    def probe(x: int) -> tuple[Atom, ...]:
        at = Threshold(Fraction(x))
        return atoms(replace(clause, limit=Limit(lower=at) if clause.limit.floor else Limit(upper=at)))

    if len(probe(0)) != 1:
        return None
    (zero,), (one,) = probe(0), probe(1)
    return Hole(zero.node, not clause.limit.floor, int(one.constant - zero.constant), zero.constant)


def hole_facts(node: Node, x: Fraction) -> list[Fact]:
    """What a hole says once it is filled with `x`: of a trimmed span also how much mass lies outside its set."""
    tail = Node("tail_mass", Mode.POINT, grade=node.grade)
    kept = [Fact(tail, 1 - node.grade, label="?")] if node.quantity == "trimmed_span" else []
    return [Fact(node, x, label="?"), *kept]


def demand(
    obligation: Obligation,
    node: Node,
    parameters: Parameters,
    targets: tuple[tuple[Atom, Fraction], ...],
    cache: Path | None = None,
) -> Demand:
    """The weakest value of `node` that by itself proves every atom of the obligation."""
    upper = BY_NAME[node.quantity].upper
    quick, exact_parameters = (
        replace(parameters, effort=TABLE),
        replace(parameters, effort=Effort(run=True, cache=cache)),
    )

    def reached(x: Fraction, given: Parameters = quick) -> list[Fact] | None:
        best = propagate(hole_facts(node, x), given)
        found = []
        for atom, limit in targets:
            fact = best_fact(best, atom)
            if fact is None or not (fact.value <= limit if atom.upper else fact.value >= limit):
                return None
            found.append(fact)
        return found

    ends = (Fraction(1, 2**64), Fraction(2**16)) if upper else (Fraction(1), Fraction(0))
    ends = (ends[0], min(ends[1], BY_NAME[node.quantity].high or ends[1])) if upper else ends
    if reached(ends[0]) is None:
        return Demand(obligation.claim, None, blocked=_blocked(node, parameters, targets))
    value = bracket(reached, *ends)
    facts = reached(value, exact_parameters) or []
    for fact, (_, limit) in zip(facts, targets, strict=True):
        exact = along_chain(fact, limit, exact_parameters)
        if exact is not None and reached(exact, exact_parameters) is not None:
            value = max(value, exact) if upper else min(value, exact)
    if facts and all(
        along_chain(f, limit, exact_parameters) is None for f, (_, limit) in zip(facts, targets, strict=True)
    ):
        beyond = value * (1 + Fraction(1, 2**12)) if upper else value * (1 - Fraction(1, 2**12))
        value = bracket(lambda x: reached(x, exact_parameters), value, beyond, 48)
    short = Fraction(decimal_near(value, 12))  # a budget of 0.1 that was found as 0.0999...
    if reached(short, exact_parameters) is not None:
        value = max(value, short) if upper else min(value, short)
    chain = max((reached(value, exact_parameters) or []), key=lambda f: len(f.chain()), default=None)
    return Demand(obligation.claim, value, chain.chain() if chain else ())


def _blocked(node: Node, parameters: Parameters, targets: tuple[tuple[Atom, Fraction], ...]) -> str:
    """The number that leaves nothing for a budget."""
    atom, limit = targets[0]
    box = parameters.box
    sequence = BY_NAME[atom.node.quantity].sequence
    if node.rho > 0 and sequence and "horizon" in box:
        h = box["horizon"][1]
        best = best_fact(propagate(hole_facts(node, Fraction(0)), parameters), atom)
        if best is not None and best.value > 0:
            per_hit = best.value if h * node.rho >= 1 else best.value / (h * node.rho)
            text = (
                f"the exception alone costs {decimal_up(best.value, 4)} of {decimal_down(limit, 4)}: {decimal_down(h, 6)} tokens at a rate of "
                f"{percent(node.rho)} expect {decimal_up(h * node.rho, 3)} exceedances a response"
            )
            rate, longest = limit / (h * per_hit), limit / (node.rho * per_hit)
            return (
                text
                + f"; it needs a rate below {percent(rate)}, a horizon below {decimal_down(longest, 3)} tokens or a tolerance above {decimal_up(best.value, 4)}"
            )
    if atom.node.rho < node.rho:
        return f"the clause allows an exception of {percent(node.rho)} and the claim only {percent(atom.node.rho)}"
    if limit <= 0:
        return f"its limit is {decimal_down(limit, 4)}, and any drift at all gives more"
    return f"no chain leads from `{node.quantity}` to `{atom.node.quantity}`"


def derive(
    contract: Contract, limits: Limits | None = None
) -> tuple[list[Budget], list[tuple[Clause, tuple[Demand, ...]]]]:
    """Budgets for all holes, and the holes that nothing can fill with what each guarantee said.

    Several holes share every guarantee's tolerance by the contract's `split`, equally where it has none.
    """
    cache = limits.cache if limits is not None else None
    contract = inherited(contract, limits)
    holes = [c for c in contract.clauses if c.limit.hole]
    shares = dict(contract.splits)
    filled: list[Budget] = []
    failed: list[tuple[Clause, tuple[Demand, ...]]] = []
    for clause in holes:
        share = shares.get(clause.name, Fraction(1, len(holes)) if not shares else Fraction(0))
        demands = tuple(_demands(contract, clause, share, cache))
        values = [d for d in demands if d.value is not None]
        if not demands or len(values) < len(demands):
            failed.append((clause, demands))
            continue
        filled.append(_budget(contract, clause, share, demands))
    return filled, failed


def _demands(contract: Contract, clause: Clause, share: Fraction, cache: Path | None) -> list[Demand]:
    target = hole_of(clause)
    if target is None:
        return []
    node, out = target.node, list[Demand]()
    if not certifiable(clause, contract.clauses):
        return [Demand(o.claim, None, blocked=UNCERTIFIABLE) for o in obligations(contract) if o.atoms]
    for o in obligations(contract):
        if not o.atoms or not applies(replace(clause, limit=Limit(upper=Threshold(Fraction(0)))), o.scope):
            continue
        worst: Demand | None = None
        for inner, piece in _bound_pieces(contract, clause, o):
            parameters = piece_parameters(inner, o, piece)
            targets = tuple((a, _scaled(a, weakest_limit(a, piece), share)) for a in o.atoms)
            d = demand(o, node, parameters, targets, cache)
            if worst is None or d.value is None or (worst.value is not None and _tighter(node, d.value, worst.value)):
                worst = d
        if worst is not None:
            out.append(worst)
    return out


def _bound_pieces(contract: Contract, clause: Clause, obligation: Obligation) -> list[tuple[Contract, Piece]]:
    """Pieces of the claim's band on which the hole binds, each beside the contract narrowed to that band."""
    inner = narrowed(contract, obligation.claim)
    if inner is None:
        return []
    shown = replace(clause, limit=Limit(upper=Threshold(Fraction(0))))
    inner = replace(inner, clauses=tuple(shown if c is clause else c for c in inner.clauses))
    return [(inner, p) for p in pieces(inner, obligation.scope) if any(c is shown for c in p.clauses)]


def _tighter(node: Node, a: Fraction, b: Fraction) -> bool:
    return a < b if BY_NAME[node.quantity].upper else a > b


def _scaled(atom: Atom, limit: Fraction, share: Fraction) -> Fraction:
    """A share of the tolerance: of the limit itself, or of the distance from 1 for a lower-bounded quantity."""
    return limit * share if atom.upper else 1 - (1 - limit) * share


def _budget(contract: Contract, clause: Clause, share: Fraction, demands: tuple[Demand, ...]) -> Budget:
    target = hole_of(clause)
    assert target is not None
    node, upper = target.node, BY_NAME[target.node.quantity].upper
    pick = min if upper else max
    binding = pick(demands, key=lambda d: d.value if d.value is not None else Fraction(0))
    assert binding.value is not None
    text = decimal_down(binding.value, DIGITS) if upper else decimal_up(binding.value, DIGITS)
    value = short_dyadic(binding.value, up=not upper)
    value = max(value, Fraction(text)) if upper else min(value, Fraction(text))
    limit, decimal = target.threshold(value), decimal_exact(target.threshold(Fraction(text)))
    double = monitor_float_down(limit) if target.upper else monitor_float_up(limit)
    return Budget(
        clause,
        target.upper,
        limit,
        decimal,
        double,
        binding,
        demands,
        share,
        _breach(contract, clause, node, binding, Fraction(text), share),
    )


def short_dyadic(x: Fraction, *, up: bool, bits: int = 64) -> Fraction:
    """A fraction of at most `bits` significant bits on the safe side of `x >= 0`."""
    shift = bits - (x.numerator.bit_length() - x.denominator.bit_length())
    scaled = x * Fraction(2) ** shift
    whole = -((-scaled.numerator) // scaled.denominator) if up else scaled.numerator // scaled.denominator
    return Fraction(whole) / Fraction(2) ** shift


def _breach(
    contract: Contract, clause: Clause, node: Node, binding: Demand, shown: Fraction, share: Fraction
) -> Fraction:
    unit = _last_digit(shown)
    beyond = shown + unit if BY_NAME[node.quantity].upper else shown - unit
    worst = Fraction(0)
    for o in obligations(contract):
        if o.claim is not binding.claim:
            continue
        for inner, piece in _bound_pieces(contract, clause, o):
            boxes = replace(piece_parameters(inner, o, piece), effort=Effort(run=True))
            best = propagate(hole_facts(node, beyond), boxes)
            for a in o.atoms:
                fact = best_fact(best, a)
                if fact is not None:
                    limit = _scaled(a, weakest_limit(a, piece), share)
                    worst = max(worst, fact.value - limit if a.upper else limit - fact.value)
    return worst


def _last_digit(x: Fraction) -> Fraction:
    """One unit in the last of `DIGITS` significant digits."""
    size = Fraction(1)
    while size <= x:
        size *= 10
    while size > x and x > 0:
        size /= 10
    return size * Fraction(1, 10 ** (DIGITS - 1))


def fill(contract: Contract, budgets: list[Budget]) -> Contract:
    """The contract with each hole replaced by the decimal that is printed for it."""
    by_name = {b.clause.name: b for b in budgets}

    def filled(c: Clause) -> Clause:
        b = by_name.get(c.name)
        if b is None:
            return c
        threshold = Threshold(Fraction(b.decimal))
        return replace(c, limit=Limit(upper=threshold) if b.upper else Limit(lower=threshold))

    return replace(contract, clauses=tuple(filled(c) for c in contract.clauses))
