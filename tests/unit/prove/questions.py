"""The 35 questions: realistic ranges, coupled assumptions, bands, margins down to 1e-15, long sequences; each with its truth."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction as F

import sympy as sp
from flint import arb

from kcverify.enclosure import KLSpan, ball, precision
from kcverify.prove.question import Question

d, T, R, H, A, G, rho, tv, kl, s, a, b, d1, d2 = sp.symbols("d T R H A G rho tv kl s a b d1 d2", real=True)
SYMBOLS = {x.name: x for x in (d, T, R, H, A, G, rho, tv, kl, s, a, b, d1, d2)}
TV = sp.tanh(d / (2 * T))
KL = KLSpan(2 * d / T)
KL_TWO = a * sp.log(a / b) + (1 - a) * sp.log((1 - a) / (1 - b))


def q(text: str) -> sp.Rational:
    """An exact decimal."""
    x = F(text)
    return sp.Rational(x.numerator, x.denominator)


def digits_below(x: arb, n: int) -> F:
    """The decimal of `n` places just below a ball."""
    with precision(400):
        return F(int((x * arb(10) ** n).floor().unique_fmpz()), 10**n)


def rational(x: F) -> sp.Rational:
    """A Fraction for sympy."""
    return sp.Rational(x.numerator, x.denominator)


@dataclass(frozen=True)
class Known:
    """A question and its truth; `hard` where corner and linear leave it open."""

    question: Question
    truth: bool
    hard: bool = False


def _known(name, box, goal, truth, hypotheses=(), hard=False):
    ranges = {SYMBOLS[k]: (F(low), F(high)) for k, (low, high) in box.items()}
    clauses = tuple(tuple(h) if isinstance(h, list) else (h,) for h in hypotheses)
    return Known(Question(ranges, sp.sympify(goal), clauses, name), truth, hard)


def _questions():
    with precision(400):
        near_24, near_40 = ball(F(1, 24)).tanh(), ball(F(1, 40)).tanh()
    drift, wide = ("0", "0.05"), ("0.6", "1.2")
    box, small = {"d": drift, "T": wide}, {"d": ("0", "1e-4"), "T": wide}
    coupled = {"d": ("0", "1"), "T": ("0.1", "2")}
    return [
        _known("tv at one temperature", {"d": drift, "T": ("1", "1")}, TV - q("0.025"), True),
        _known("tv over a range", box, TV - q("0.0417"), True),
        _known("tv too strict", box, TV - q("0.0416"), False),
        _known("tv with a margin of 1e-9", box, TV - rational(digits_below(near_24, 9) + F(1, 10**9)), True),
        _known("tv with a margin of 1e-15", box, TV - rational(digits_below(near_24, 15) + F(1, 10**15)), True),
        _known("tv short by 1e-15", box, TV - rational(digits_below(near_24, 15)), False),
        _known("kl, tight form", box, KL - q("0.0035"), True),
        _known("kl too strict", box, KL - q("0.0034"), False),
        _known("reward over a range", {**box, "R": ("1", "10")}, R * TV - q("0.42"), True),
        _known("gradient bias", {**box, "A": ("0", "5"), "G": ("0", "2")}, 2 * TV * A * G - q("0.84"), True),
        _known("128 tokens", small, 1 - (1 - TV) ** 128 - q("0.0107"), True),
        _known("4096 tokens", small, 1 - (1 - TV) ** 4096 - q("0.29"), True),
        _known("up to 4096 tokens", {**small, "H": ("1", "4096")}, 1 - (1 - TV) ** H - q("0.29"), True),
        _known("kl of up to 8192 tokens", {"d": ("0", "1e-3"), "T": wide, "H": ("1", "8192")}, H * KL - q("0.0114"), True),
        _known("exceedance", {**box, "rho": ("0", "1e-3")}, (1 - rho) * TV + rho - q("0.0427"), True),
        _known(
            "exceedance over 256 tokens", {**small, "rho": ("0", "1e-5")},
            1 - ((1 - rho) * (1 - TV)) ** 256 - q("0.024"), True,
        ),
        _known("ratio clip", box, sp.exp(2 * d / T) - q("1.2"), True),
        _known("bretagnolle-huber", {"kl": ("0", "0.0035")}, sp.sqrt(1 - sp.exp(-kl)) - q("0.06"), True),
        _known("pinsker chain", {"kl": ("0", "1e-5"), "H": ("1", "1024")}, sp.sqrt(H * kl / 2) - q("0.072"), True),
        _known("drift coupled to temperature", coupled, TV - q("0.0251"), True, [d - T / 20]),
        _known("coupled, margin 1e-6", coupled, TV - rational(digits_below(near_40, 6) + F(1, 10**6)), True, [d - T / 20]),
        _known(
            "bands with a hole at 4/5", {"d": ("0", "1"), "T": wide}, TV - q("0.0188"), False,
            [[q("0.8") - T, d - q("0.02")], [T - q("0.8"), d - q("0.03")]],
        ),
        _known(
            "bands without a hole", {"d": ("0", "1"), "T": wide}, TV - q("0.0188"), True,
            [[q("0.8") - T, d - q("0.02")], d - q("0.03")],
        ),
        _known(
            "two kernels", {"d1": ("0", "1"), "d2": ("0", "0.01"), "T": wide, "R": ("1", "10")},
            R * sp.tanh((d1 + d2) / (2 * T)) - q("0.35"), True, [d1 - T / 20],
        ),
        _known(
            "expected flips bound a response", {"tv": ("0", "0.05"), "H": ("1", "4096")},
            1 - (1 - tv) ** H - q("0.0505"), True, [H * tv - q("0.05")], hard=True,
        ),
        _known("hoeffding on [0, 5]", {"s": ("0", "5")}, KLSpan(s) - s**2 / 8, True, hard=True),
        _known("pinsker on [0.001, 10]", {"s": ("1e-3", "10")}, 2 * sp.tanh(s / 4) ** 2 - KLSpan(s), True, hard=True),
        _known("one inequality beats the other", {"kl": ("1.6", "10")}, 1 - sp.exp(-kl) - kl / 2, True, hard=True),
        _known("but not from 1.59 on", {"kl": ("1.59", "10")}, 1 - sp.exp(-kl) - kl / 2, False, hard=True),
        _known("a kl clause is redundant", {"d": ("0", "10"), "T": wide}, KL - q("0.00325"), True, [TV - q("0.04")]),
        _known("a kl clause is needed", {"d": ("0", "10"), "T": wide}, KL - q("0.0032"), False, [TV - q("0.04")]),
        _known(
            "tv bounds no kl", {"a": ("1e-6", "0.999999"), "b": ("1e-6", "0.999999")}, KL_TWO - q("0.1"), False,
            [a - b - q("0.05"), b - a - q("0.05")], hard=True,
        ),
        _known(
            "kl bounds tv", {"a": ("0.001", "0.999"), "b": ("0.001", "0.999")}, sp.Abs(a - b) - q("0.0505"), True,
            [KL_TWO - q("0.005")], hard=True,
        ),
        _known("a contradiction", {"d": ("0.1", "10"), "T": wide, "R": ("1", "10")}, 1, True, [R * TV - q("0.04")]),
        _known("a feasible floor", {"d": ("0.1", "10"), "T": wide, "R": ("1", "10")}, 1, False, [R * TV - q("0.06")]),
    ]  # fmt: skip


QUESTIONS: list[Known] = _questions()
