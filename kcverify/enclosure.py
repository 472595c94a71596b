"""Rigorous enclosures: sympy expressions evaluated in ball arithmetic, rounded outward to rationals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from math import isqrt

import sympy as sp
from flint import arb, ctx, fmpq

MAX_PRECISION = 16384
MAX_EXPONENT = 8192
RATIONAL_BITS = 128
_SUMMED = 20_000
_LONGEST = 1_000_000


class KLSpan(sp.Function):  # type: ignore[misc]
    """`g(s) = w - 1 - ln w` with `w = s/(1 - exp(-s))`: the largest KL divergence at effective span `s` (nat)."""

    nargs = 1

    @classmethod
    def eval(cls, s: sp.Expr) -> sp.Expr | None:
        """`g(0) = 0`."""
        return sp.Integer(0) if s.is_zero else None


class BinomialTV(sp.Function):  # type: ignore[misc]
    """Total variation between `Bin(H, a)` and `Bin(H, 1-a)` with `a = 1/(1 + exp(-lam))`: arguments `lam`, `H`."""

    nargs = 2


class OptimalTV(sp.Function):  # type: ignore[misc]
    """Worst adaptive total variation over `H` steps of effective span `s`: arguments `s`, `H`.

    It has no formula; `bounds.special` computes it by a recursion.
    """

    nargs = 2


class ClosedTV(sp.Function):  # type: ignore[misc]
    """The closed forms above `OptimalTV`: arguments `s`, `H`; computed by `bounds.special`."""

    nargs = 2


class EnclosureError(ArithmeticError):
    """An expression left its domain, or could not be enclosed within the precision limit."""


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Ball arithmetic with `bits` of precision inside the block."""
    before = ctx.prec
    ctx.prec = bits
    try:
        yield
    finally:
        ctx.prec = before


def ball(x: Fraction | int) -> arb:
    """Ball around an exact rational."""
    x = Fraction(x)
    return arb(fmpq(x.numerator, x.denominator))


def kl_span(s: arb) -> arb:
    """`KLSpan` on a ball `s >= 0`."""
    if s == 0:
        return arb(0)
    w = s / -((-s).expm1())
    return w - 1 - w.log()


def binomial_tv(lam: arb, horizon: arb) -> arb:
    """`BinomialTV` as `tanh(lam/2) sum_(j<m) C(2j, j) x^j`, `x = 1/(4 cosh(lam/2)^2)`, for `H = 2m-1` or `2m`.

    The likelihood ratio is monotone in the count, so the distance is `2 P(Bin(H, a) >= m) - 1`; its derivative in the
    number of trials telescopes to the sum, whose terms are positive: nothing cancels, however small `lam` is.
    """
    n = int(horizon.unique_fmpz())
    if lam > 64:  # increasing in lam and in the trials, and within 2^-91 of 1 from here on
        return arb(32).tanh().union(arb(1))
    if n > _LONGEST and not lam > arb(1) / 16:
        return _binomial_tail(lam, n)
    if n > _SUMMED:
        return _binomial_cut(lam, n)
    half = lam / 2
    x = 1 / (2 * half.cosh() ** 2)
    term = total = arb(1)
    for j in range(1, (n + 1) // 2):
        term = term * x * (2 * j - 1) / j
        total = total + term
    return half.tanh() * total


def _binomial_cut(lam: arb, n: int) -> arb:
    """The same sum, cut where what is left of it no longer counts.

    Each term is less than `1/cosh(lam/2)^2` times the one before, so the terms after the last that is added make less
    than a geometric series.
    """
    half = lam / 2
    ratio = 1 / half.cosh() ** 2
    x, rest = ratio / 2, ratio / (1 - ratio)
    term = total = arb(1)
    for j in range(1, (n + 1) // 2):
        term = term * x * (2 * j - 1) / j
        total = total + term
        if j % 64 == 0 and term * rest < arb(2) ** -ctx.prec:
            total = total + arb(0).union(term * rest)
            break
    return half.tanh() * total


def _binomial_tail(lam: arb, n: int) -> arb:
    """The same by the regularised incomplete beta function, for long sums."""
    m = n // 2 + 1
    a = 1 / (1 + (-lam).exp())
    upper = arb.beta_lower(a, arb(m), arb(n - m + 1), regularized=True)
    lower = arb.beta_lower(1 - a, arb(m), arb(n - m + 1), regularized=True)
    return upper - lower


def integer_power(base: arb, n: int) -> arb:
    """`base^n`; by squaring where the ball touches 0, on which the library's own power gives no number."""
    if base > 0:
        return base**n
    if n < 0:
        return 1 / integer_power(base, -n)
    out = arb(1)
    while n:
        if n & 1:
            out = out * base
        base, n = base * base, n >> 1
    return out


def _power(base: arb, exponent: sp.Expr, env: Mapping[sp.Symbol, arb]) -> arb:
    if exponent.is_Integer:
        return integer_power(base, int(exponent))
    if exponent == sp.Rational(1, 2):
        return base.nonnegative_part().sqrt()
    e = evaluate(exponent, env)
    if base.contains(0) and base >= 0:
        return arb(0)
    return (base.log() * e).exp()


_FUNCTIONS: dict[type, Callable[..., arb]] = {
    sp.exp: lambda x: x.exp(),
    sp.log: lambda x: x.log(),
    sp.tanh: lambda x: x.tanh(),
    sp.atanh: lambda x: x.atanh(),
    sp.cosh: lambda x: x.cosh(),
    sp.acosh: lambda x: x.acosh(),
    sp.sinh: lambda x: x.sinh(),
    sp.asinh: lambda x: x.asinh(),
    sp.sech: lambda x: 1 / x.cosh(),
    sp.coth: lambda x: 1 / x.tanh(),
    sp.Abs: abs,
    KLSpan: kl_span,
    BinomialTV: binomial_tv,
}


def evaluate(expr: sp.Expr, env: Mapping[sp.Symbol, arb]) -> arb:
    """Ball that contains the value of `expr` for all values in the balls of `env`, at the current precision.

    Raises KeyError for a symbol that `env` lacks and TypeError for a function that is not in the table: faults of a
    lemma row, never of a user.
    """
    if expr.is_Rational:
        return ball(Fraction(int(expr.p), int(expr.q)))
    if expr.is_Symbol:
        return env[expr]
    if expr.is_Pow:
        return _power(evaluate(expr.base, env), expr.exp, env)
    values = [evaluate(a, env) for a in expr.args]
    if expr.is_Add:
        return sum(values[1:], values[0])
    if expr.is_Mul:
        out = values[0]
        for v in values[1:]:
            out = out * v
        return out
    if isinstance(expr, sp.Min | sp.Max):
        out = values[0]
        for v in values[1:]:
            out = out.min(v) if isinstance(expr, sp.Min) else out.max(v)
        return out
    function = _FUNCTIONS.get(expr.func)
    if function is None:
        raise TypeError(f"no enclosure for {expr.func}")
    return function(*values)


def enclose(expr: sp.Expr, env: Mapping[sp.Symbol, Fraction], bits: int = 160) -> arb:
    """Ball of relative radius below 2^-80 around `expr` at exact rational arguments.

    Doubles the precision until it is that narrow; raises EnclosureError beyond `MAX_PRECISION` or outside the domain.
    A value that is exactly zero is returned as the zero ball or as a ball below 2^-2048 in size.
    """
    while bits <= MAX_PRECISION:
        with precision(bits):
            value = evaluate(expr, {k: ball(v) for k, v in env.items()})
            if value.is_finite():
                small = value.rad() <= abs(value).upper() * arb(2) ** -80
                if small or abs(value).upper() <= arb(2) ** -2048:
                    return value
            elif not value.is_finite() and bits >= 4096:
                break
        bits *= 2
    raise EnclosureError(f"cannot enclose {expr}")


def rational(x: arb, *, up: bool, bits: int = RATIONAL_BITS) -> Fraction:
    """Dyadic rational of at most `bits` significant bits on the safe side of a ball: `>=` it if `up`, else `<=` it."""
    if not x.is_finite():
        raise EnclosureError("a bound without a finite end")
    with precision(MAX_PRECISION):
        mantissa, exponent = (x.upper() if up else x.lower()).man_exp()
    m, e = int(mantissa), int(exponent)
    size = abs(m).bit_length() + e
    if abs(size) > MAX_EXPONENT and m:
        return _beyond(m > 0, size > 0, up)
    excess = abs(m).bit_length() - bits
    if excess > 0:
        m = -((-m) >> excess) if up else m >> excess
        e += excess
    return Fraction(m) * Fraction(2) ** e


def _beyond(positive: bool, large: bool, up: bool) -> Fraction:
    """Safe side of a number whose size is beyond `2^MAX_EXPONENT` or below its inverse."""
    end = Fraction(2) ** (MAX_EXPONENT if large else -MAX_EXPONENT)
    if positive is up:
        if large:
            raise EnclosureError("a bound beyond 2^8192")
        return end if positive else -end
    inner = end if large else Fraction(0)
    return inner if positive else -inner


def value_up(expr: sp.Expr, env: Mapping[sp.Symbol, Fraction]) -> Fraction:
    """Rational that is at least `expr`; exact where the expression is rational."""
    exact = _exact(expr, env)
    return _directed(expr, env, up=True) if exact is None else exact


def value_down(expr: sp.Expr, env: Mapping[sp.Symbol, Fraction]) -> Fraction:
    """Rational that is at most `expr`; exact where the expression is rational."""
    exact = _exact(expr, env)
    return _directed(expr, env, up=False) if exact is None else exact


def _directed(expr: sp.Expr, env: Mapping[sp.Symbol, Fraction], *, up: bool) -> Fraction:
    return rational(enclose(expr, env), up=up)


def _exact(expr: sp.Expr, env: Mapping[sp.Symbol, Fraction]) -> Fraction | None:
    """Value of a rational expression, None where a transcendental occurs: exact rationals are never widened."""
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    if expr.is_Symbol:
        return env[expr]
    if expr.is_Mul or (expr.is_Pow and expr.exp == sp.Rational(1, 2)):
        return _exact_product(expr, env)
    if expr.is_Pow and expr.exp.is_Integer:
        base = _exact(expr.base, env)
        if base is None or (base == 0 and int(expr.exp) < 0) or abs(int(expr.exp)) > 64:
            return None
        return Fraction(base ** int(expr.exp))
    if not (expr.is_Add or isinstance(expr, sp.Min | sp.Max)):
        return None
    values = []
    for a in expr.args:
        v = _exact(a, env)
        if v is None:
            return None
        values.append(v)
    if expr.is_Add:
        return sum(values, Fraction(0))
    return min(values) if isinstance(expr, sp.Min) else max(values)


def _exact_product(expr: sp.Expr, env: Mapping[sp.Symbol, Fraction]) -> Fraction | None:
    """A product of rational factors and square roots, exact where the roots together are the root of a square."""
    out = square = Fraction(1)
    for factor in expr.args if expr.is_Mul else (expr,):
        root = factor.is_Pow and factor.exp == sp.Rational(1, 2)
        value = _exact(factor.base if root else factor, env)
        if value is None or (root and value < 0):
            return None
        if root:
            square *= value
        else:
            out *= value
    top, bottom = isqrt(square.numerator), isqrt(square.denominator)
    if top * top != square.numerator or bottom * bottom != square.denominator:
        return None
    return out * Fraction(top, bottom)


def midpoint(expr: sp.Expr, env: Mapping[sp.Symbol, arb], bits: int) -> arb:
    """Approximate value at `bits` of precision, without any claim; NaN outside the domain."""
    with precision(bits):
        try:
            return evaluate(expr, env).mid()
        except ZeroDivisionError:
            return arb("nan")


def approximate_root(
    expr: sp.Expr, symbol: sp.Symbol, target: Fraction, env: Mapping[sp.Symbol, Fraction], high: Fraction
) -> Fraction | None:
    """A number near the root of `expr = target` on `(0, high]`, for a monotone `expr`: a guess, to be verified by enclosure.

    Bisection on the exponent, then secant steps; None where no sign change is seen.
    """
    fixed = {k: ball(v) for k, v in env.items()}
    goal = ball(target)

    def f(x: arb, bits: int) -> arb:
        return midpoint(expr, {**fixed, symbol: x}, bits) - goal

    top, bottom = ball(high), ball(high) * arb(2) ** -256
    sign = f(top, 128) > 0
    if not f(top, 128).is_finite() or (f(bottom, 320) > 0) == sign:
        return None
    for _ in range(10):
        with precision(128):
            middle = (top * bottom).sqrt().mid()
        if (f(middle, 192) > 0) == sign:
            top = middle
        else:
            bottom = middle
    x, y = bottom, top
    fx, fy = f(x, 192), f(y, 192)
    for bits in (128, 128, 128, 160, 192, 256, 320, 320):
        with precision(bits):
            if fx == fy:
                break
            new = (y - fy * (y - x) / (fy - fx)).mid()
        if not (new > 0 and new.is_finite()):
            break
        x, fx, y = y, fy, new
        fy = f(y, bits + 64)
    return rational(y, up=False)


def root_down(
    expr: sp.Expr, symbol: sp.Symbol, target: Fraction, env: Mapping[sp.Symbol, Fraction], *, bits: int = 96
) -> Fraction:
    """Largest rational found with `expr <= target` proved, for `expr` non-decreasing in `symbol` from 0.

    Bisection on enclosures to `bits` relative bits; 0 where not even the smallest step qualifies.
    """

    def holds(x: Fraction) -> bool:
        return value_up(expr, {**env, symbol: x}) <= target

    low, high = Fraction(0), Fraction(1)
    if holds(high):
        while holds(high) and high < 2**64:
            low, high = high, high * 2
    else:
        while not holds(high) and high > Fraction(1, 2**256):
            high /= 2
        low, high = (high, high * 2) if holds(high) else (Fraction(0), high)
    if low == 0:
        return low
    for _ in range(bits):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
