"""Step 1: a goal that is monotone in every symbol is worst at one corner of the box, where one enclosure decides."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import sympy as sp

from kcverify.enclosure import precision
from kcverify.prove.question.intervals import Interval, hull, signs
from kcverify.prove.question.model import Answer, Question, holds, refutes
from kcverify.prove.verdict import Limits, Status


def ranges_of(box: Mapping[sp.Symbol, tuple[Fraction, Fraction]]) -> dict[sp.Symbol, Interval]:
    """Balls around the box's ranges, at the current precision."""
    return {s: hull(low, high) for s, (low, high) in box.items()}


def worst_corner(question: Question, limits: Limits) -> dict[sp.Symbol, Fraction] | None:
    """The corner of the box at which the goal is largest; None where it is not monotone in some symbol of a range."""
    with precision(limits.ball_bits):
        found = signs(question.goal, ranges_of(question.box))
    out = {}
    for s, (low, high) in question.box.items():
        sign = found.get(s, 1)
        if sign is None and low != high:
            return None
        out[s] = high if sign == 1 else low
    return out


def corner(question: Question, limits: Limits) -> Answer | None:
    """Proved where the goal holds at its worst corner; refuted where it fails there and the corner meets every clause."""
    point = worst_corner(question, limits)
    if point is None:
        return None
    if holds(question.goal, point):
        return Answer(Status.PROVED, "corner")
    if refutes(question, point):
        return Answer(Status.REFUTED, "corner", witness=point)
    return None
