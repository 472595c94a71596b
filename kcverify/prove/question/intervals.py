"""Interval evaluation and interval gradients of expressions over boxes, every operation rounded outward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp
from flint import arb

from kcverify.enclosure import KLSpan, ball, kl_span

_INF = arb("inf")
_ZERO, _ONE = arb(0), arb(1)


@dataclass(frozen=True)
class Interval:
    """All reals between two exact numbers."""

    low: arb
    high: arb

    def __add__(self, other: Interval) -> Interval:
        return Interval((self.low + other.low).lower(), (self.high + other.high).upper())

    def __mul__(self, other: Interval) -> Interval:
        if self.low >= 0 and other.low >= 0:
            return Interval((self.low * other.low).lower(), (self.high * other.high).upper())
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(_least([e.lower() for e in ends]), -_least([-e.upper() for e in ends]))

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    @property
    def finite(self) -> bool:
        """Whether both ends are finite."""
        return bool(self.low.is_finite() and self.high.is_finite())


def _least(values: list[arb]) -> arb:
    out = values[0]
    for v in values[1:]:
        if not out.is_finite() or not v.is_finite():
            return -_INF
        out = v if v < out else out
    return out


class UndefinedError(ArithmeticError):
    """An expression is not defined, or not enclosed, on the whole box."""


def exactly(x: Fraction) -> Interval:
    """The narrowest interval around a rational."""
    b = ball(x)
    return Interval(b.lower(), b.upper())


def hull(low: Fraction, high: Fraction) -> Interval:
    """The narrowest interval around a range of rationals."""
    return Interval(ball(low).lower(), ball(high).upper())


def _increasing(x: Interval, low: arb, high: arb) -> Interval:
    out = Interval(low.lower(), high.upper())
    if not out.finite:
        raise UndefinedError
    return out


def inverse(x: Interval) -> Interval:
    """`1/x`; raises UndefinedError where x may be 0."""
    if not (x.low > 0 or x.high < 0):
        raise UndefinedError
    return Interval((1 / x.high).lower(), (1 / x.low).upper())


def logarithm(x: Interval) -> Interval:
    """`ln x`; raises UndefinedError where x may be 0 or less."""
    if not x.low > 0:
        raise UndefinedError
    return _increasing(x, x.low.log(), x.high.log())


def exponential(x: Interval) -> Interval:
    """`exp x`."""
    return _increasing(x, x.low.exp(), x.high.exp())


def _power(base: Interval, e: Fraction) -> Interval:
    if e < 0:
        return inverse(_power(base, -e))
    if e.denominator == 1:
        n = e.numerator
        if base.low >= 0 or n % 2 == 1:
            return _increasing(base, base.low**n, base.high**n)
        if base.high <= 0:
            return _increasing(base, base.high**n, base.low**n)
        widest = base.high if base.high > -base.low else -base.low
        return Interval(_ZERO, (widest**n).upper())
    if not base.low >= 0:
        raise UndefinedError
    if e == Fraction(1, 2):
        return _increasing(base, base.low.sqrt(), base.high.sqrt())
    low = _ZERO if base.low == 0 else (base.low.log() * ball(e)).exp()
    high = _ZERO if base.high == 0 else (base.high.log() * ball(e)).exp()
    return _increasing(base, low, high)


def _absolute(x: Interval) -> Interval:
    if x.low >= 0:
        return x
    if x.high <= 0:
        return -x
    return Interval(_ZERO, x.high if x.high > -x.low else -x.low)


def _kl(x: Interval) -> Interval:
    if not x.low >= 0:
        raise UndefinedError
    return _increasing(x, kl_span(x.low), kl_span(x.high))


Ranges = Mapping[sp.Symbol, Interval]
Gradient = dict[sp.Symbol, Interval]


def fraction(x: sp.Expr) -> Fraction:
    """A sympy rational as a Fraction."""
    return Fraction(int(x.p), int(x.q))


def enclosure(expr: sp.Expr, ranges: Ranges) -> Interval:
    """Interval that contains the value at every point; raises UndefinedError where there may be none."""
    return slopes(expr, ranges, ())[0]


def slopes(expr: sp.Expr, ranges: Ranges, about: tuple[sp.Symbol, ...]) -> tuple[Interval, Gradient]:
    """Intervals around the value and around the partial derivatives in the symbols `about` on which it depends."""
    if expr.is_Rational:
        return exactly(fraction(expr)), {}
    if expr is sp.E:
        return exponential(exactly(Fraction(1))), {}
    if expr.is_Symbol:
        return ranges[expr], {expr: Interval(_ONE, _ONE)} if expr in about else {}
    parts = [slopes(a, ranges, about) for a in expr.args]
    if expr.is_Add:
        value, gradient = parts[0]
        for v, g in parts[1:]:
            value, gradient = value + v, _sum(gradient, g)
        return value, gradient
    if expr.is_Mul:
        value, gradient = parts[0]
        for v, g in parts[1:]:
            value, gradient = value * v, _sum(_scaled(gradient, v), _scaled(g, value))
        return value, gradient
    if expr.is_Pow:
        return _pow_slopes(expr, parts)
    (x, inner) = parts[0]
    value, slope = _function(expr.func, x)
    return value, _scaled(inner, slope)


def _function(func: type, x: Interval) -> tuple[Interval, Interval]:
    """Value and derivative of a function of the table."""
    if func is sp.exp:
        value = exponential(x)
        return value, value
    if func is sp.log:
        return logarithm(x), inverse(x)
    if func is sp.tanh:
        value = _increasing(x, x.low.tanh(), x.high.tanh())
        square = _power(value, Fraction(2))
        return value, Interval(
            _ZERO if not (1 - square.high) > 0 else (1 - square.high).lower(), (1 - square.low).upper()
        )
    if func is KLSpan:  # 0 <= g' <= 1
        return _kl(x), Interval(_ZERO, _ONE)
    if func is sp.Abs:
        sign = Interval(_ONE, _ONE) if x.low >= 0 else Interval(-_ONE, -_ONE) if x.high <= 0 else Interval(-_ONE, _ONE)
        return _absolute(x), sign
    raise TypeError(f"no interval rule for {func}")


def _pow_slopes(expr: sp.Expr, parts: list[tuple[Interval, Gradient]]) -> tuple[Interval, Gradient]:
    (base, inner), (exponent, outer) = parts
    if expr.exp.is_Rational:
        e = fraction(expr.exp)
        value = _power(base, e)
        if not inner:
            return value, {}
        if e < 1 and not base.low > 0 and e.denominator != 1:
            return value, {
                k: Interval(_ZERO if _one_sign(g) > 0 else -_INF, _INF if _one_sign(g) >= 0 else _ZERO)
                for k, g in inner.items()
            }
        return value, _scaled(inner, exactly(e) * _power(base, e - 1))
    log = logarithm(base)
    value = exponential(log * exponent)
    by_base = _scaled(inner, exponent * value * inverse(base)) if inner else {}
    return value, _sum(by_base, _scaled(outer, value * log))


def _one_sign(x: Interval) -> int:
    return 1 if x.low >= 0 else -1 if x.high <= 0 else 0


def _sum(a: Gradient, b: Gradient) -> Gradient:
    out = dict(a)
    for k, v in b.items():
        out[k] = out[k] + v if k in out else v
    return out


def _scaled(g: Gradient, by: Interval) -> Gradient:
    return {k: v * by for k, v in g.items()}


def signs(expr: sp.Expr, ranges: Ranges) -> dict[sp.Symbol, int | None]:
    """+1 or -1 for each symbol in which the expression is monotone on the whole box, None where that is not seen."""
    about = tuple(expr.free_symbols)
    try:
        _, gradient = slopes(expr, ranges, about)
    except UndefinedError:
        return dict.fromkeys(about)
    return {s: _one_sign(gradient[s]) or None for s in about if s in gradient}
