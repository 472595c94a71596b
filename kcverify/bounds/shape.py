"""Monotonicity and curvature of a bound, read off its structure by sign rules (no sampling, no derivative)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import sympy as sp
from flint import arb

from kcverify.catalog.model import Lemma
from kcverify.catalog.quantities import BY_NAME, PARAMETER_HIGH, PARAMETER_LOW, PARAMETERS, RHO
from kcverify.enclosure import BinomialTV, ClosedTV, KLSpan, OptimalTV, ball, precision

_INF = arb("inf")
Signs = Mapping[sp.Symbol, int | None]


@dataclass(frozen=True)
class Shape:
    """Range of an expression, sign of its dependence on each symbol (+1, -1, None unknown), curvature in one symbol.

    `curve` is 0 affine, +1 convex, -1 concave, None unknown, all for the symbol that `shape` was asked about.
    """

    low: arb
    high: arb
    signs: Signs
    curve: int | None


def _flip(x: int | None) -> int | None:
    return None if x is None else -x


def _join(a: int | None, b: int | None) -> int | None:
    """Sign of a sum of two monotone (or curved) terms: 0 is neutral, opposite signs are unknown."""
    if a == 0 or b == 0:
        return b if a == 0 else a
    return a if a == b else None


def _merge(shapes: list[Shape]) -> dict[sp.Symbol, int | None]:
    out: dict[sp.Symbol, int | None] = {}
    for s in shapes:
        for symbol, sign in s.signs.items():
            out[symbol] = _join(out[symbol], sign) if symbol in out else sign
    return out


# function -> (sign on its domain, curvature on [0, inf), needs argument >= 0, lower end of the value, its own arb)
_RULES: dict[type, tuple[int, int | None, bool, Callable[[arb], arb]]] = {
    sp.exp: (1, 1, False, lambda x: x.exp()),
    sp.log: (1, -1, True, lambda x: x.log()),
    sp.tanh: (1, -1, True, lambda x: x.tanh()),
    sp.atanh: (1, 1, True, lambda x: x.atanh() if x < 1 else _INF),
    sp.sinh: (1, 1, True, lambda x: x.sinh()),
    sp.asinh: (1, -1, True, lambda x: x.asinh()),
    sp.cosh: (1, 1, True, lambda x: x.cosh()),
    sp.acosh: (1, -1, True, lambda x: x.acosh()),
    sp.sech: (-1, None, True, lambda x: 1 / x.cosh()),
    sp.coth: (-1, 1, True, lambda x: 1 / x.tanh() if x > 0 else _INF),
    KLSpan: (1, 1, True, lambda x: _kl(x)),
}


def _kl(x: arb) -> arb:
    if x == 0:
        return arb(0)
    if not x.is_finite():
        return _INF
    w = x / -((-x).expm1())
    return w - 1 - w.log()


def _composed(outer: int, curve: int | None, inner: Shape, symbol_sign: int | None) -> int | None:
    """Disciplined convex composition: a curved monotone function keeps the curvature that its argument shares."""
    if curve is None:
        return None
    if inner.curve == 0:
        return curve
    wanted = curve if outer > 0 else -curve
    return curve if inner.curve == wanted else None


def _function(expr: sp.Expr, inner: Shape) -> Shape:
    outer, curve, nonneg, f = _RULES[expr.func]
    if nonneg and not inner.low >= 0:
        return Shape(-_INF, _INF, dict.fromkeys(inner.signs), None)
    ends = [f(inner.low), f(inner.high) if inner.high.is_finite() else _limit(expr.func)]
    low, high = (ends[0], ends[1]) if outer > 0 else (ends[1], ends[0])
    signs = {k: v if outer > 0 else _flip(v) for k, v in inner.signs.items()}
    return Shape(low, high, signs, _composed(outer, curve, inner, None))


def _limit(func: type) -> arb:
    return {sp.tanh: arb(1), sp.sech: arb(0), sp.coth: arb(1)}.get(func, _INF)


def _product(a: Shape, b: Shape, about: sp.Symbol | None = None) -> Shape:
    """Product of two factors of known sign; curved in `about` where only one factor depends on it."""
    for x in (a, b):
        if x.high <= 0 and not (x.low >= 0):
            other = b if x is a else a
            return _negate(_product(_negate(x), other, about))
    if not (a.low >= 0 and b.low >= 0):
        return Shape(-_INF, _INF, dict.fromkeys({**a.signs, **b.signs}), None)
    curve = b.curve if about not in a.signs else a.curve if about not in b.signs else None
    zero = arb(0)
    low = a.low * b.low if (a.low.is_finite() and b.low.is_finite()) else zero
    high = _INF if not (a.high.is_finite() and b.high.is_finite()) else a.high * b.high
    return Shape(low, high, _merge([a, b]), curve)


def _negate(x: Shape) -> Shape:
    return Shape(-x.high, -x.low, {k: _flip(v) for k, v in x.signs.items()}, _flip(x.curve))


def _pow_up(x: arb, e: arb) -> arb:
    if not x.is_finite():
        return _INF
    return arb(0) if x == 0 else x**e


def _rational_power(base: Shape, e: Fraction) -> Shape:
    if not base.low >= 0:
        if e.denominator == 1 and e > 0 and e.numerator % 2 == 1:
            return Shape(-_INF, _INF, base.signs, None)
        return Shape(-_INF, _INF, dict.fromkeys(base.signs), None)
    power = ball(e)
    if e > 0:
        curve = 1 if e >= 1 else -1
        keep = curve if base.curve in (0, curve) else None
        return Shape(_pow_up(base.low, power), _pow_up(base.high, power), base.signs, 0 if e == 1 else keep)
    low = arb(0) if not base.high.is_finite() else base.high**power
    high = _INF if not base.low > 0 else base.low**power
    keep = 1 if base.curve in (0, -1) else None
    return Shape(low, high, {k: _flip(v) for k, v in base.signs.items()}, keep)


def _power(base: Shape, exponent: Shape) -> Shape:
    """`base^exponent` with a symbolic exponent: `exp(exponent ln base)`, for a base on one side of 1."""
    if base.low >= 1:
        log = Shape(base.low.log(), base.high.log() if base.high.is_finite() else _INF, base.signs, None)
        inner = _product(exponent, log)
    elif base.low >= 0 and base.high <= 1:
        low = -_INF if not base.low > 0 else base.low.log()
        log = Shape(low, base.high.log(), base.signs, None)
        inner = _negate(_product(exponent, _negate(log)))
    else:
        return Shape(arb(0), _INF, dict.fromkeys({**base.signs, **exponent.signs}), None)
    low = arb(0) if not inner.low.is_finite() else inner.low.exp()
    high = _INF if not inner.high.is_finite() else inner.high.exp()
    return Shape(low, high, inner.signs, None)


def shape(expr: sp.Expr, ranges: Mapping[sp.Symbol, tuple[arb, arb]], about: sp.Symbol | None = None) -> Shape:
    """Shape of `expr` over the box `ranges`, its curvature in the symbol `about`.

    The answer is a proof where it is not None: only rules that hold for every function of the table are applied.
    """
    if expr.is_Rational:
        value = ball(Fraction(int(expr.p), int(expr.q)))
        return Shape(value, value, {}, 0)
    if expr.is_Symbol:
        low, high = ranges[expr]
        return Shape(low, high, {expr: 1}, 0)
    if about not in expr.free_symbols:
        return replace(_dispatch(expr, ranges, None), curve=0)
    return _dispatch(expr, ranges, about)


def _dispatch(expr: sp.Expr, ranges: Mapping[sp.Symbol, tuple[arb, arb]], about: sp.Symbol | None) -> Shape:
    parts = [shape(a, ranges, about) for a in expr.args]
    if expr.is_Add:
        low, high = sum((p.low for p in parts[1:]), parts[0].low), sum((p.high for p in parts[1:]), parts[0].high)
        curve: int | None = 0
        for p in parts:
            curve = _join(curve, p.curve)
        return Shape(low if low.is_finite() else -_INF, high if high.is_finite() else _INF, _merge(parts), curve)
    if expr.is_Mul:
        out = parts[0]
        for p in parts[1:]:
            out = _product(out, p, about)
        return out
    if expr.is_Pow:
        if expr.exp.is_Rational:
            return _rational_power(parts[0], Fraction(int(expr.exp.p), int(expr.exp.q)))
        return _power(*parts)
    if isinstance(expr, sp.Min | sp.Max):
        pick = arb.min if isinstance(expr, sp.Min) else arb.max
        low, high = parts[0].low, parts[0].high
        for p in parts[1:]:
            low, high = pick(low, p.low), pick(high, p.high)
        wanted = -1 if isinstance(expr, sp.Min) else 1
        curved = all(p.curve in (0, wanted) for p in parts)
        return Shape(low, high, _merge(parts), wanted if curved else None)
    if expr.func in (BinomialTV, ClosedTV, OptimalTV):
        return Shape(arb(0), arb(1), dict.fromkeys(expr.free_symbols), None)
    return _function(expr, parts[0])


def lemma_shape(lemma: Lemma) -> Shape:
    """Shape of a row's bound over the natural ranges of its premises and parameters, its declared signs included."""
    with precision(64):
        ranges = {RHO: (arb(0), arb(1))}
        for name in lemma.premises:
            q = BY_NAME[name]
            ranges[q.symbol] = (ball(q.low), ball(q.high) if q.high is not None else _INF)
        for name in lemma.parameters:
            high = PARAMETER_HIGH.get(name)
            ranges[PARAMETERS[name]] = (ball(PARAMETER_LOW[name]), _INF if high is None else ball(high))
        found = shape(lemma.bound, ranges, BY_NAME[lemma.premises[0]].symbol)
    declared = {symbol: lemma.monotone[str(symbol)] for symbol in found.signs if str(symbol) in lemma.monotone}
    return Shape(found.low, found.high, {**found.signs, **declared}, found.curve)
