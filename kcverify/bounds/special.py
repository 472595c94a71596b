"""Rows whose bound is computed by a recursion instead of a formula: their values and their inverses, rigorous both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import sympy as sp

from kcverify.bounds import optimal
from kcverify.bounds.optimal_forms import closed_form
from kcverify.bounds.optimal_table import table_upper
from kcverify.catalog.quantities import HORIZON, RHO

_ONE = Fraction(1)


@dataclass(frozen=True)
class Effort:
    """How much a recursion may cost: the shipped table (`run` False, at once) or a run, kept in `cache` if given."""

    run: bool = False
    cache: Path | None = None


TABLE = Effort()
Env = Mapping[sp.Symbol, Fraction]


@dataclass(frozen=True)
class Special:
    """`value(premise, env, effort)` bounds the conclusion; `inverse(target, env, effort)` is the weakest premise."""

    value: Callable[[Fraction, Env, Effort], Fraction]
    inverse: Callable[[Fraction, Env, Effort], Fraction | None]


_VACUOUS = Fraction(64)
"""A span from which on one token may already change everything: its total variation is within 2^-45 of 1."""


def _optimal(s: Fraction, env: Env, effort: Effort) -> Fraction:
    h = int(env[HORIZON])
    if s >= _VACUOUS:
        return _ONE
    clean = optimal.upper(s, h, cache=effort.cache) if effort.run else table_upper(s, h)
    return min(_ONE, h * env[RHO] + clean)


def _closed(s: Fraction, env: Env, effort: Effort) -> Fraction:
    h = int(env[HORIZON])
    if s >= _VACUOUS:
        return _ONE
    return min(_ONE, h * env[RHO] + closed_form(s, h))


def _inverse(value: Callable[[Fraction, Env, Effort], Fraction]) -> Callable[[Fraction, Env, Effort], Fraction | None]:
    def search(target: Fraction, env: Env, effort: Effort) -> Fraction | None:
        h = int(env[HORIZON])
        room = target - h * env[RHO]
        if room <= 0:
            return None
        if room >= 1:
            return Fraction(2**12)
        if value is _optimal and effort.run:
            return optimal.span_budget(room, h, cache=effort.cache) or None
        return _bisect(lambda s: value(s, env, effort) <= target)

    return search


def _bisect(holds: Callable[[Fraction], bool]) -> Fraction | None:
    """Largest span found that holds, to 2^-40."""
    good, bad = Fraction(0), Fraction(2**12)
    x = _ONE
    while not holds(x):
        bad, x = x, x / 16
        if x < Fraction(1, 2**120):
            return None
    good = x
    while bad - good > good / 2**40:
        middle = (good + bad) / 2 if bad < 4 * good else 2 * good
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


SPECIALS: dict[str, Special] = {
    "seq_tv_optimal": Special(_optimal, _inverse(_optimal)),
    "seq_tv_closed": Special(_closed, _inverse(_closed)),
}
