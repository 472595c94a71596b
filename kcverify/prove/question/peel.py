"""Peeling: an inequality about nested functions becomes one about a linear term, its constant rounded to one side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import sympy as sp
import z3
from flint import arb

from kcverify.enclosure import KLSpan, approximate_root, ball, kl_span, rational
from kcverify.prove.linear import z
from kcverify.prove.question.intervals import Ranges, UndefinedError, enclosure, fraction

_S = sp.Symbol("s", nonnegative=True)


@dataclass
class Peeler:
    """Turns atoms into linear formulas over one set of variables.

    `weaken` True: each formula follows from its atom; False: each formula implies its atom. Constants keep `bits`
    significant bits. A term that is not linear becomes a variable of its own, held in its range over the box.
    """

    ranges: Ranges
    bits: int
    weaken: bool
    strict: bool = False
    variables: dict[sp.Expr, z3.ArithRef] = field(default_factory=dict)

    def variable(self, term: sp.Expr) -> z3.ArithRef:
        """The variable of a symbol or of an opaque term."""
        if term not in self.variables:
            self.variables[term] = z3.Real(str(term) if term.is_Symbol else f"term{len(self.variables)}")
        return self.variables[term]

    def formula(self, atom: sp.Expr, *, at_most: bool) -> z3.BoolRef:
        """`atom <= 0`, or `atom > 0` where `at_most` is False: what is peeled is strictly monotone, so it stays strict."""
        self.strict = not at_most
        return self.compare(atom, Fraction(0), at_most)

    def relation(self, left: z3.ArithRef, right: z3.ArithRef, at_most: bool) -> z3.BoolRef:
        """The comparison itself; strict only on the way to a broken goal."""
        if self.strict:
            return left < right if at_most else left > right
        return left <= right if at_most else left >= right

    def side(self, at_most: bool) -> bool:
        """Whether a constant on the right must be rounded up."""
        return at_most is self.weaken

    def compare(self, e: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
        """`e <= c` or `e >= c`."""
        if not e.free_symbols:
            return z3.BoolVal(self._decide(e, c, at_most))
        if e.is_Add:
            return self._sum(e, c, at_most)
        if e.is_Mul:
            return self._product(e, c, at_most)
        if e.is_Pow:
            return self._power(e, c, at_most)
        rule = _RULES.get(e.func)
        if rule is not None:
            return rule(self, e.args[0], c, at_most)
        return self.linear(e, c, at_most)

    def _decide(self, e: sp.Expr, c: Fraction, at_most: bool) -> bool:
        if e.is_Rational:
            x = fraction(e)
            return x != c and (x < c) is at_most if self.strict else x == c or (x < c) is at_most
        value, bound = enclosure(e, {}), ball(c)
        if self.weaken:
            return not value.low > bound if at_most else not value.high < bound
        return bool(value.high < bound) if at_most else bool(value.low > bound)

    def _sum(self, e: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
        constant = sp.Add(*(a for a in e.args if not a.free_symbols))
        rest = sp.Add(*(a for a in e.args if a.free_symbols))
        moved = c - self.constant(constant, up=not self.side(at_most))
        return self.linear(rest, moved, at_most) if rest.is_Add else self.compare(rest, moved, at_most)

    def constant(self, e: sp.Expr, *, up: bool) -> Fraction:
        """A rational on one side of a closed term; rationals themselves are never rounded."""
        if e.is_Rational:
            return fraction(e)
        value = enclosure(e, {})
        return self.rounded(value.high if up else value.low, up)

    def rounded(self, x: arb, up: bool) -> Fraction:
        """A ball as a rational of `bits` significant bits, to one side."""
        return rational(x, up=up, bits=self.bits)

    def _product(self, e: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
        constant = sp.Mul(*(a for a in e.args if not a.free_symbols))
        rest = sp.Mul(*(a for a in e.args if a.free_symbols))
        if constant != 1:
            low, high = self.constant(constant, up=False), self.constant(constant, up=True)
            if not (low > 0 or high < 0):
                return self.linear(e, c, at_most)
            now = at_most if low > 0 else not at_most
            quotients = (c / low, c / high)
            moved = max(quotients) if self.side(now) else min(quotients)
            return self.compare(rest, moved, now)
        below = sp.Mul(*(a.base**-a.exp for a in rest.args if a.is_Pow and a.exp.is_Integer and a.exp < 0))
        if below != 1 and enclosure(below, self.ranges).low > 0:
            above = sp.Mul(*(a for a in rest.args if not (a.is_Pow and a.exp.is_Integer and a.exp < 0)))
            left, right = self.term(above), z(c) * self.term(below)
            return self.relation(left, right, at_most)
        return self.linear(e, c, at_most)

    def _power(self, e: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
        if not e.exp.is_Rational:
            return self.linear(e, c, at_most)
        exponent = fraction(e.exp)
        if not enclosure(e.base, self.ranges).low >= 0:
            if exponent.denominator != 1 or exponent <= 0 or exponent % 2:
                return self.linear(e, c, at_most)
            return (
                _abs(self, e.base, self._root(c, 1 / exponent, self.side(at_most)), at_most)
                if c >= 0
                else z3.BoolVal(not at_most)
            )
        if c <= 0 and exponent > 0:
            return self.at_floor(e.base, c, at_most)
        if c <= 0:
            return z3.BoolVal(not at_most)
        now = at_most if exponent > 0 else not at_most
        return self.compare(e.base, self._root(c, 1 / exponent, self.side(now)), now)

    def _root(self, c: Fraction, power: Fraction, up: bool) -> Fraction:
        if power.denominator == 1 or c == 0:
            return c ** int(power) if c else c
        return self.rounded((ball(c).log() * ball(power)).exp(), up)

    def at_floor(self, x: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
        """`f(x) <= c` or `>= c` for an `f` of value 0 at 0, increasing on `x >= 0`, and `c <= 0`."""
        if c == 0 and (at_most or self.strict):
            return self.compare(x, Fraction(0), at_most)
        return z3.BoolVal(not at_most)

    def linear(self, e: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
        """The inequality over variables, opaque terms among them."""
        return self.relation(self.term(e), z(c), at_most)

    def term(self, e: sp.Expr) -> z3.ArithRef:
        """A sum of rational multiples of variables."""
        out = z(Fraction(0))
        for part in sp.Add.make_args(e):
            factor, rest = part.as_coeff_Mul(rational=True)
            if rest == 1:
                out = out + z(fraction(factor))
            else:
                out = out + z(fraction(factor)) * self.variable(rest)
        return out

    def opaque(self) -> list[z3.BoolRef]:
        """The ranges of the opaque terms, rounded outward."""
        out = []
        for term, x in list(self.variables.items()):
            if term.is_Symbol:
                continue
            value = enclosure(term, self.ranges)
            out += [x >= z(rational(value.low, up=False)), x <= z(rational(value.high, up=True))]
        return out


def _tanh(p: Peeler, x: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
    if abs(c) >= 1:
        return z3.BoolVal((c > 0) is at_most)
    return p.compare(x, p.rounded(ball(c).atanh(), p.side(at_most)) if c else Fraction(0), at_most)


def _exp(p: Peeler, x: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
    if c <= 0:
        return z3.BoolVal(not at_most)
    return p.compare(x, p.rounded(ball(c).log(), p.side(at_most)) if c != 1 else Fraction(0), at_most)


def _log(p: Peeler, x: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
    return p.compare(x, p.rounded(ball(c).exp(), p.side(at_most)) if c else Fraction(1), at_most)


def _kl_span(p: Peeler, x: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
    if c <= 0:
        return p.at_floor(x, c, at_most)
    return p.compare(x, span_of_kl(c, up=p.side(at_most), bits=p.bits), at_most)


def _abs(p: Peeler, x: sp.Expr, c: Fraction, at_most: bool) -> z3.BoolRef:
    if at_most:
        return z3.And(p.compare(x, c, True), p.compare(-x, c, True))
    return z3.Or(p.compare(x, c, False), p.compare(-x, c, False))


_RULES: dict[type, Callable[[Peeler, sp.Expr, Fraction, bool], z3.BoolRef]] = {
    sp.tanh: _tanh,
    sp.exp: _exp,
    sp.log: _log,
    KLSpan: _kl_span,
    sp.Abs: _abs,
}


def span_of_kl(c: Fraction, *, up: bool, bits: int) -> Fraction:
    """A rational on one side of the span at which `KLSpan` reaches `c > 0`, proved by an enclosure at that rational."""
    guess = approximate_root(KLSpan(_S), _S, c, {}, Fraction(2**40) + 2 * c)
    if guess is None:
        raise UndefinedError
    step = Fraction(1, 2**100)
    while step < 1:
        x = guess * (1 + step) if up else guess * (1 - step)
        rounded = rational(ball(x), up=up, bits=bits)
        value = kl_span(ball(rounded))
        if (up and value >= ball(c)) or (not up and value <= ball(c)):
            return rounded
        step *= 16
    if up:
        raise UndefinedError
    return Fraction(0)
