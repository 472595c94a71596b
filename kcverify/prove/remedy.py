"""What would do: for a claim that is not proved, the numbers at which it would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from kcverify.bounds.graph import Fact, propagate
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Contract
from kcverify.exact import decimal_down, decimal_near, decimal_up
from kcverify.prove.corner import best_fact, piece_parameters
from kcverify.prove.obligations import Obligation, Piece, as_written, written
from kcverify.prove.verdict import Limits, Route


def percent(x: Fraction, *, up: bool = False) -> str:
    """A share as a percentage of three significant digits."""
    return f"{(decimal_up if up else decimal_down)(x * 100, 3)}%"


def expected_exceedances(contract: Contract, route: Route) -> str:
    """Why an exception makes a sequence bound useless: how many exceedances a response expects."""
    root = next(f for f in route.fact.chain() if not f.premises)
    h = contract.assumptions.horizon
    if (
        root.node.mode is not Mode.POINT
        or root.node.rho == 0
        or h is None
        or not BY_NAME[route.atom.node.quantity].sequence
    ):
        return ""
    expected = h * root.node.rho
    return f"{h} tokens at a rate of {percent(root.node.rho)} expect {decimal_up(expected, 3)} exceedances a response"


def _root(route: Route) -> Fact:
    return next(f for f in route.fact.chain() if not f.premises)


def remedies(contract: Contract, obligation: Obligation, route: Route, piece: Piece, limits: Limits) -> tuple[str, ...]:
    """One sentence per number that alone would make the route prove its atom: limit, rate, horizon, tolerance."""
    root, atom = _root(route), route.atom
    parameters = piece_parameters(contract, obligation, piece)
    threshold = route.threshold

    def holds(fact: Fact, horizon: Fraction | None = None) -> bool:
        box = dict(parameters.box)
        if horizon is not None:
            box["horizon"] = (Fraction(1), horizon)
        best = best_fact(propagate([fact], replace(parameters, box=box)), atom)
        return best is not None and (best.value <= threshold if atom.upper else best.value >= threshold)

    def with_rho(rho: Fraction) -> Fact:
        return replace(root, node=replace(root.node, rho=rho))

    out = []
    if root.node.rho > 0:
        rho = _largest(lambda x: holds(with_rho(x)), root.node.rho, limits)
        if rho:
            out.append(f"`{root.label}` with `except {percent(rho)}`")
    if root.quantity.upper:
        value = _largest(lambda x: holds(replace(root, value=x)), root.value, limits)
        if value:
            limit, upper = as_written(root.node.quantity, value)
            now = decimal_near(as_written(root.node.quantity, root.value)[0], 6)
            out.append(f"`{root.label}` at {(decimal_down if upper else decimal_up)(limit, 3)} instead of {now}")
    h = contract.assumptions.horizon
    if h is not None and h > 1 and "horizon" in parameters.box and BY_NAME[atom.node.quantity].sequence:
        longest = _largest_integer(lambda n: holds(root, Fraction(n)), h)
        if longest:
            out.append(f"a horizon of {longest} tokens")
    if atom.upper and not _at_worst(route):
        out.append(f"a tolerance of {written(atom.node.quantity, route.fact.value, 6)}")
    return tuple(out)


def _at_worst(route: Route) -> bool:
    """Whether the bound is that of two policies with nothing in common, so that it says nothing."""
    return any(f.node.quantity == "tv_seq" and f.value >= 1 for f in route.fact.chain())


def _largest(holds: Callable[[Fraction], bool], start: Fraction, limits: Limits) -> Fraction | None:
    """Largest value below `start` that holds, to about three digits; None where not even `start / 10^6` does."""
    good = start / 10**6
    if not holds(good):
        return None
    bad = start
    for _ in range(limits.remedy_steps):
        if bad <= good * Fraction(1001, 1000):
            break
        middle = (good + bad) / 2 if bad <= 4 * good else good * 4
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def _largest_integer(holds: Callable[[int], bool], start: int) -> int:
    if not holds(1):
        return 0
    good, bad = 1, start
    while bad - good > 1:
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good
