"""Definitions of the token quantities in ball arithmetic, on explicit distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from flint import arb

from kcverify.enclosure import ball

Balls = Sequence[arb]


def softmax(logits: Sequence[Fraction], temperature: Fraction) -> list[arb]:
    """`softmax(z/T)` of exact logits, one ball an outcome."""
    top = max(logits)
    e = [ball((z - top) / temperature).exp() for z in logits]
    total = sum(e[1:], e[0])
    return [x / total for x in e]


def total(values: Balls) -> arb:
    """Sum of balls."""
    return sum(values[1:], values[0])


def tv(p: Balls, q: Balls) -> arb:
    """Total variation `1/2 sum |p - q|`."""
    return total([abs(a - b) for a, b in zip(p, q, strict=True)]) / 2


def kl(p: Balls, q: Balls) -> arb:
    """`KL(p || q)` in nat; `+inf` where p has mass and q has none."""
    terms = []
    for a, b in zip(p, q, strict=True):
        if a == 0:
            continue
        if b == 0:
            return arb("inf")
        terms.append(a * (a / b).log())
    return total(terms)


def chi2(p: Balls, q: Balls) -> arb:
    """`sum (p - q)^2 / q`; `+inf` where p has mass and q has none."""
    terms = []
    for a, b in zip(p, q, strict=True):
        if b == 0:
            if a == 0:
                continue
            return arb("inf")
        terms.append((a - b) * (a - b) / b)
    return total(terms)


def bc(p: Balls, q: Balls) -> arb:
    """Bhattacharyya coefficient `sum sqrt(p q)`."""
    return total([(a * b).nonnegative_part().sqrt() for a, b in zip(p, q, strict=True)])


def ratios(p: Balls, q: Balls) -> list[arb]:
    """`p/q` on every outcome that has mass on a side; `+inf` where only p has."""
    return [arb("inf") if b == 0 else a / b for a, b in zip(p, q, strict=True) if not (a == 0 and b == 0)]


def _max(values: Balls) -> arb:
    out = values[0]
    for v in values[1:]:
        out = out.max(v)
    return out


def ratio_above(p: Balls, q: Balls) -> arb:
    """Largest `p/q` minus 1."""
    return _max(ratios(p, q)) - 1


def ratio_below(p: Balls, q: Balls) -> arb:
    """1 minus the smallest `p/q`."""
    return 1 + _max([-w for w in ratios(p, q)])


def log_ratio(p: Balls, q: Balls) -> arb:
    """Largest `|ln(p/q)|`; `+inf` where the supports differ."""
    w = ratios(p, q)
    if any(x == 0 or not x.is_finite() for x in w):
        return arb("inf")
    return _max([abs(x.log()) for x in w])


# quantity -> its definition on (p, q), p the reference
TOKEN: dict[str, Callable[[Balls, Balls], arb]] = {
    "tv": tv,
    "kl_reference_candidate": kl,
    "kl_candidate_reference": lambda p, q: kl(q, p),
    "chi2": chi2,
    "bc": bc,
    "log_ratio": log_ratio,
    "ratio_above": ratio_above,
    "ratio_below": ratio_below,
    "ratio_gap": lambda p, q: ratio_above(p, q).max(ratio_below(p, q)),
}
