"""Random questions next to their exact threshold, with the truth from 400 bits, and rewritings that keep the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction as F
from random import Random

import sympy as sp

from kcverify.enclosure import KLSpan, enclose, precision, rational
from kcverify.prove.question import Question

d, T, R, rho = sp.symbols("d T R rho", real=True)
TV = sp.tanh(d / (2 * T))
CHAINS = {
    "tv": TV,
    "kl": KLSpan(2 * d / T),
    "reward": R * TV,
    "tokens": 1 - (1 - TV) ** 64,
    "exceedance": (1 - rho) * TV + rho,
    "bretagnolle_huber": sp.sqrt(1 - sp.exp(-KLSpan(2 * d / T))),
    "ratio": sp.exp(2 * d / T),
    "span": 2 * d / T,
}


def exact(x: F) -> sp.Rational:
    """A Fraction for sympy."""
    return sp.Rational(x.numerator, x.denominator)


def _threshold(rng: Random, value, truth_above: bool) -> F:
    """A threshold on one side of the value: near by a power of two, or the double next to it."""
    above, below = rational(value, up=True, bits=300), rational(value, up=False, bits=300)
    if rng.random() < 0.4:
        double = above.numerator / above.denominator
        while F(double) < above:
            double = math.nextafter(double, math.inf)
        return F(double) if truth_above else F(math.nextafter(double, 0.0))
    off = F(1, 2 ** rng.randint(3, 40))
    return above * (1 + off) if truth_above else below * (1 - off)


def near_tight(rng: Random) -> tuple[Question, bool] | None:
    """A question and its truth; None where the threshold is not told from the value (or the value is 0)."""
    name = rng.choice(sorted(CHAINS))
    goal = CHAINS[name]
    low = F(rng.randint(30, 100), 100)
    box = {
        d: (F(0), F(rng.randint(1, 400), 1000)),
        T: (low, low + F(rng.randint(0, 50), 100)),
        R: (F(0), F(rng.randint(1, 20))),
        rho: (F(0), F(rng.randint(0, 50), 1000)),
    }
    box = {s: r for s, r in box.items() if s in goal.free_symbols}
    worst = {s: r[1] for s, r in box.items()} | {T: box[T][0]}
    hypotheses: tuple[tuple[sp.Expr, ...], ...] = ()
    if rng.random() < 0.6:
        slope = F(rng.randint(1, 300), 1000)
        hypotheses = ((d - exact(slope) * T,),)
        worst[T] = max(box[T][0], min(box[T][1], box[d][1] / slope))
        worst[d] = min(box[d][1], slope * worst[T])
    with precision(800):
        value = enclose(goal, worst, 800)
        threshold = _threshold(rng, value, rng.random() < 0.5)
        known = enclose(goal - exact(threshold), worst, 800)
    if not (known > 0 or known <= 0):
        return None
    return Question(box, goal - exact(threshold), hypotheses, name), bool(known <= 0)


def scaled(question: Question, factor: F) -> Question:
    """Drift and temperature both times a factor: nothing depends on their scale."""
    box = {s: (low * factor, high * factor) if s in (d, T) else (low, high) for s, (low, high) in question.box.items()}
    return replace(question, box=box)


def refined(question: Question, rng: Random) -> Question:
    """A smaller box: what was proved stays proved."""
    box = {}
    for s, (low, high) in question.box.items():
        a, b = sorted(low + (high - low) * F(rng.randint(0, 8), 8) for _ in range(2))
        box[s] = (a, b)
    return replace(question, box=box)


def redundant(question: Question) -> Question:
    """A clause more that the box implies."""
    return replace(question, hypotheses=(*question.hypotheses, (d - exact(question.box[d][1]), T)))


def split(question: Question) -> tuple[Question, Question]:
    """The two halves of the range of temperatures."""
    low, high = question.box[T]
    middle = (low + high) / 2
    return replace(question, box={**question.box, T: (low, middle)}), replace(
        question, box={**question.box, T: (middle, high)}
    )


REWRITINGS: dict[str, Callable[[Question], Question]] = {
    "scaled by 3/7": lambda x: scaled(x, F(3, 7)),
    "scaled by 1e6": lambda x: scaled(x, F(10**6)),
    "redundant": redundant,
    "permuted": lambda x: replace(redundant(x), hypotheses=tuple(reversed(redundant(x).hypotheses))),
    "doubled": lambda x: replace(x, hypotheses=x.hypotheses * 2),
}
