"""Backwards through the lemmas: the weakest premise that still gives a conclusion, to the safe side."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache

from kcverify.bounds.graph import Corner, Fact, Parameters
from kcverify.bounds.special import SPECIALS, TABLE, Effort
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.model import Dimension
from kcverify.catalog.quantities import BY_NAME, RHO
from kcverify.enclosure import EnclosureError, approximate_root, value_down, value_up

_CEILING = {Dimension.NAT: Fraction(2**12), Dimension.LOGIT: Fraction(2**14)}


@cache
def weakest_premise(
    name: str, target: Fraction, corner: Corner, rho: Fraction, effort: Effort = TABLE
) -> Fraction | None:
    """Weakest premise that proves the conclusion `target`; None where none does, the largest considered where all do."""
    row = LEMMAS[name]
    premise, conclusion = BY_NAME[row.premises[0]], BY_NAME[row.conclusion]
    env = {**dict(corner), RHO: rho}
    if row.special:
        return SPECIALS[name].inverse(target, env, effort)

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
        if x >= 0 and holds(x):
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


def along_chain(fact: Fact, limit: Fraction, parameters: Parameters) -> Fraction | None:
    """The weakest root premise of a chain: the limit carried backwards along a chain of single premises, each step inverted to the safe side."""
    target: Fraction | None = limit
    while fact.premises and target is not None:
        if len(fact.premises) != 1 or fact.lemma is None:
            return None
        (premise,) = fact.premises
        corner = parameters.corner(fact.lemma)
        if corner is None:
            return None
        rho = premise.node.rho
        target = weakest_premise(
            fact.lemma.name, target, tuple(sorted(corner.items(), key=lambda kv: str(kv[0]))), rho, parameters.effort
        )
        fact = premise
    return target


def bracket(reached: Callable[[Fraction], object], good: Fraction, bad: Fraction, bits: int = 14) -> Fraction:
    """A value between `good`, which qualifies, and `bad`, which need not, within `2^-bits` of the best."""
    if reached(bad) is not None:
        return bad
    for _ in range(90):
        ratio = max(good, bad) / min(good, bad) if min(good, bad) > 0 else None
        if abs(bad - good) <= max(good, bad) / 2**bits:
            break
        middle = (good + bad) / 2 if ratio is None or ratio < 4 else _geometric(good, bad)
        if reached(middle) is not None:
            good = middle
        else:
            bad = middle
    return good


def _geometric(a: Fraction, b: Fraction) -> Fraction:
    """A power of two between two positive numbers, near their geometric mean."""
    exponent = (
        (a.numerator.bit_length() - a.denominator.bit_length())
        + (b.numerator.bit_length() - b.denominator.bit_length())
    ) // 2
    return min(max(Fraction(2) ** exponent, min(a, b)), max(a, b))
