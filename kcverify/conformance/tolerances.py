"""Tolerances derived from the declared precision, never from measuring a candidate: exact fractions with their derivation.

Model of arithmetic: fl(x op y) = (x op y)(1 + d), |d| <= u, round to nearest. Formulas: Higham, Accuracy and Stability of
Numerical Algorithms, 2nd edition, section 3.1 (gamma), 3.5 (matrix products), 4.2 (orders of summation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import isqrt

from kcverify.catalog.storage import BY_NAME
from kcverify.conformance.model import Derivation
from kcverify.elaborate.words import Apply, Binary, Constant, Symbol, Term

EXACT_FORMATS = ("int8", "int4", "int32")
FUNCTION_ROUNDOFFS = 8
"""Declared relative error of exp, log and sqrt in unit roundoffs: 4 units in the last place."""

_OTHER = {"tfloat32": Fraction(1, 2**11), "float4_e2m1": Fraction(1, 4)}
_HALF = Fraction(1, 2)


def unit_roundoff(name: str) -> Fraction:
    """Largest relative error of rounding to nearest: 2^-p for p significant bits; 0 for integers. Raises KeyError."""
    if name in EXACT_FORMATS:
        return Fraction(0)
    return _OTHER[name] if name in _OTHER else BY_NAME[name].roundoff


def smallest_normal(name: str) -> Fraction:
    """Below it a format loses relative precision; 0 for integers."""
    return Fraction(2) ** BY_NAME[name].smallest if name in BY_NAME else Fraction(0)


_TINY = Fraction(1, 2**100)


def lost(name: str, flush: bool) -> Fraction:
    """What one rounding below the smallest normal number may lose: a step there, all of the number where it is flushed.

    Functions of formats whose smallest normal number is below 2^-100 may flush undeclared: nothing depends on it.
    """
    least = smallest_normal(name)
    return least if flush or least < _TINY else 2 * least * unit_roundoff(name)


def gamma(count: int, name: str) -> Derivation:
    """`n u / (1 - n u)`: n roundings in a row. Says nothing once `n u >= 1/2`."""
    u = unit_roundoff(name)
    product = max(count, 0) * u
    if product >= _HALF:
        return Derivation(
            None, (f"gamma({count}, {name}) says nothing: {count} * {shown(u)} = {shown(product)} >= 1/2",)
        )
    value = product / (1 - product)
    return Derivation(value, (f"gamma({count}, {name}) = {count} u / (1 - {count} u), u = {shown(u)}: {shown(value)}",))


def ceil_log2(count: int) -> int:
    """Least d with 2^d >= count."""
    return max(count - 1, 0).bit_length()


def spread(count: int, name: str, summation: str = "sequential") -> Derivation:
    """How far two orders of a sum of `count` terms differ, as a multiple of `Σ|x|`: twice gamma of the depth.

    The depth is `count - 1` for any order, `ceil(log2 count)` where every order is a balanced tree. Fails closed on
    `count u >= 1/2` for both, since then even the declared sum need not resemble the exact one.
    """
    if count * unit_roundoff(name) >= _HALF:
        return Derivation(None, gamma(count, name).lines)
    depth = ceil_log2(count) if summation == "pairwise" else count - 1
    one = gamma(depth, name)
    assert one.value is not None
    return Derivation(2 * one.value, (*one.lines, f"two orders of one sum: 2 gamma({depth}) Σ|x|"))


def published_spread(count: int, name: str) -> Fraction:
    """The published bound `N eps max|x|` as a multiple of `max|x|`, eps = 2 u. It is false: kept to show that."""
    return count * 2 * unit_roundoff(name)


def plus(a: Derivation, b: Derivation, why: str) -> Derivation:
    """Sum of two parts; nothing if one says nothing."""
    if a.value is None or b.value is None:
        return Derivation(None, (*a.lines, *b.lines))
    return Derivation(a.value + b.value, (*a.lines, *b.lines, f"{why}: {shown(a.value + b.value)}"))


def rounded_to(inner: Derivation, name: str) -> Derivation:
    """`inner` followed by one rounding to a format: `t + u (1 + t)`."""
    u = unit_roundoff(name)
    if inner.value is None or u == 0:
        return inner
    value = inner.value + u * (1 + inner.value)
    return Derivation(value, (*inner.lines, f"rounded to {name}: t + u (1 + t), u = {shown(u)}: {shown(value)}"))


def times(factor: int, one: Derivation, why: str) -> Derivation:
    """A whole multiple."""
    if one.value is None:
        return one
    return Derivation(factor * one.value, (*one.lines, f"{why}: {shown(factor * one.value)}"))


def constant(value: Fraction, why: str) -> Derivation:
    """A part that is a number."""
    return Derivation(value, (f"{why}: {shown(value)}",))


NOTHING = Derivation(Fraction(0), ())
"""No error."""


def compound(why: str, *parts: Derivation) -> Derivation:
    """`(1 + a)(1 + b)... - 1`: relative errors one after another; nothing if one says nothing."""
    lines = tuple(dict.fromkeys(line for one in parts for line in one.lines))
    value = Fraction(1)
    for one in parts:
        if one.value is None:
            return Derivation(None, one.lines)
        value *= 1 + one.value
    return Derivation(value - 1, (*lines, f"{why}: {shown(value - 1)}"))


def larger(a: Derivation, b: Derivation) -> Derivation:
    """The larger one; nothing if one says nothing."""
    if a.value is None or b.value is None:
        return a if a.value is None else b
    return a if a.value >= b.value else b


def quotient(over: Derivation, under: Derivation, why: str) -> Derivation:
    """`(1 + over) / (1 - under) - 1`, the relative error of a quotient; nothing once a part is above 1/2."""
    if over.value is None or under.value is None:
        return over if over.value is None else under
    lines = tuple(dict.fromkeys((*over.lines, *under.lines)))
    if under.value > _HALF or over.value > _HALF:
        return Derivation(None, (*lines, f"{why} says nothing: a part of it is above 1/2"))
    value = (1 + over.value) / (1 - under.value) - 1
    return Derivation(value, (*lines, f"{why}: {shown(value)}"))


Derive = Callable[[str], Derivation]
"""An operation's derived tolerance at given operands, by the accumulator's format."""


def evaluate(term: Term, dims: Mapping[str, int], derive: Derive | None = None) -> Derivation:
    """A contract's tolerance at one shape, exactly. `sqrt` and `log2` are rounded up: the contract's author meant a bound.

    `derived(format)` is what the operation's own derivation gives at the operands; without operands it says nothing.
    """
    match term:
        case Constant(value) if abs(value) <= _LARGEST:
            return Derivation(value, ())
        case Symbol(name) if name in dims:
            return Derivation(Fraction(dims[name]), ())
        case Apply("gamma", (count, Symbol(name))):
            inner = evaluate(count, dims, derive)
            return Derivation(None, inner.lines) if inner.value is None else gamma(_ceil(inner.value), name)
        case Apply("unit_roundoff", (Symbol(name),)):
            return constant(unit_roundoff(name), f"unit_roundoff({name})")
        case Apply("derived", (Symbol(name),)) if derive is not None:
            return derive(name)
        case Apply(function, arguments):
            return _applied(function, [evaluate(one, dims, derive) for one in arguments])
        case Binary(operator, left, right):
            return _binary(operator, evaluate(left, dims, derive), evaluate(right, dims, derive))
    return Derivation(None, (f"`{term}` is no number here",))


def formats_of(term: Term) -> set[str]:
    """Number formats that a formula names."""
    match term:
        case Apply(_, arguments):
            return {name for one in arguments for name in formats_of(one)}
        case Binary(_, left, right):
            return formats_of(left) | formats_of(right)
        case Symbol(name) if name in EXACT_FORMATS or name in _OTHER or name in BY_NAME:
            return {name}
    return set()


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _applied(function: str, values: list[Derivation]) -> Derivation:
    lines = tuple(line for one in values for line in one.lines)
    numbers = [one.value for one in values if one.value is not None]
    if len(numbers) < len(values):
        return Derivation(None, lines)
    rows: dict[str, Callable[[list[Fraction]], Fraction | None]] = {
        "max": max,
        "min": min,
        "abs": lambda x: abs(x[0]),
        "sqrt": lambda x: root_up(x[0]),
        "log2": lambda x: _log2(x[0]),
    }
    found = rows[function](numbers) if function in rows else None
    return Derivation(found, lines if found is not None else (*lines, f"`{function}` is no number here"))


def root_up(value: Fraction) -> Fraction | None:
    """A root rounded up to a multiple of 2^-40; None of a negative number."""
    if value < 0:
        return None
    scaled = _ceil(value * 4**40)
    root = isqrt(scaled)
    return Fraction(root if root**2 == scaled else root + 1, 2**40)


def _log2(value: Fraction) -> Fraction | None:
    return Fraction(ceil_log2(_ceil(value))) if value >= 1 else None


def _binary(operator: str, left: Derivation, right: Derivation) -> Derivation:
    lines = (*left.lines, *right.lines)
    a, b = left.value, right.value
    if a is None or b is None:
        return Derivation(None, lines)
    if operator in "/%" and b == 0:
        return Derivation(None, (*lines, f"{shown(a)} {operator} 0 is no number"))
    if operator == "^":
        small = b.denominator == 1 and abs(b) <= 200 and _bits(a) * abs(b) <= _MOST_BITS
        return Derivation(a ** int(b) if small and (a or b >= 0) else None, lines)
    found = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a, "%": a % b if b else a}[operator]
    if _bits(found) > _MOST_BITS or abs(found) > _LARGEST:
        return Derivation(None, (*lines, f"the result of `{operator}` is no tolerance: its size is beyond float64"))
    return Derivation(
        found, lines if operator in "%" else (*lines, f"{shown(a)} {operator} {shown(b)} = {shown(found)}")
    )


_MOST_BITS, _LARGEST = 2**13, Fraction(2) ** 1000
"""Of a number in a tolerance, above and below the line together; beyond them none is meant."""


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def shown(value: Fraction) -> str:
    """A fraction for reading: a power of two as such, else three digits."""
    if value.numerator == 1 and value.denominator & (value.denominator - 1) == 0 and value.denominator > 16:
        return f"2^-{value.denominator.bit_length() - 1}"
    if value.denominator == 1 and abs(value) < 10**7:
        return str(value)
    return f"{float(value):.3g}"


def rate_decision(passed: int, count: int, floor: Fraction, confidence: Fraction) -> bool | None:
    """Whether a pass rate is at least `floor`: True, False, or None where `count` trials do not say. Exact binomial tails.

    True needs `P(X >= passed | floor) <= 1 - confidence`, False `P(X <= passed | floor) <= 1 - confidence`
    (Clopper and Pearson, 1934, read as tests).
    """
    alpha = 1 - confidence
    weights, weight = [], (1 - floor) ** count
    for k in range(count + 1):
        weights.append(weight)
        if k < count and floor < 1:
            weight = weight * (count - k) / (k + 1) * floor / (1 - floor)
    if floor >= 1:
        return passed == count
    if sum(weights[passed:]) <= alpha:
        return True
    return False if sum(weights[: passed + 1]) <= alpha else None
