"""Exact arithmetic of the language: expressions to numbers that are linear in assumptions, and units."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.catalog import units
from kcverify.catalog.model import Dimension, Direction
from kcverify.elaborate.contract import Interval, Threshold
from kcverify.elaborate.scope import Scope, choose, did_you_mean
from kcverify.exact import NumberError, bounded, decimal_exact, decimal_near, parse_decimal, power
from kcverify.source import Span
from kcverify.syntax import tree

NOT_NUMBERS = frozenset({"nan", "inf", "infinity", "infinite"})


@dataclass(frozen=True)
class Linear:
    """`constant + sum(coefficient * assumption)`; `dimension` comes from parameters with a unit."""

    constant: Fraction
    terms: tuple[tuple[str, Fraction], ...] = ()
    dimension: Dimension = Dimension.NONE

    def scaled(self, factor: Fraction) -> Linear:
        """Every coefficient times `factor`."""
        terms = tuple((name, bounded(value * factor)) for name, value in self.terms)
        return Linear(bounded(self.constant * factor), terms, self.dimension)


def _added(left: Linear, right: Linear, sign: int) -> Linear:
    terms = dict(left.terms)
    for name, value in right.terms:
        terms[name] = bounded(terms.get(name, Fraction(0)) + sign * value)
    kept = tuple((name, value) for name, value in terms.items() if value)
    return Linear(bounded(left.constant + sign * right.constant), kept, left.dimension)


def linear(scope: Scope, node: tree.Expression) -> Linear:
    """Value of an expression. Raises RefusedError, with the fault reported, for whatever is not linear and finite."""
    try:
        return _linear(scope, node)
    except NumberError as error:
        raise scope.refuse("number_invalid", node.span, reason=str(error)) from error


def _linear(scope: Scope, node: tree.Expression) -> Linear:
    if isinstance(node, tree.Number):
        return Linear(parse_decimal(node.text))
    if isinstance(node, tree.Name):
        return _named(scope, node)
    if isinstance(node, tree.Negative):
        return _linear(scope, node.operand).scaled(Fraction(-1))
    if isinstance(node, tree.Power):
        return _power(scope, node)
    if isinstance(node, tree.Chain):
        return _chain(scope, node)
    raise scope.refuse("unknown_name", node.span, name=node.span.text)


def _named(scope: Scope, node: tree.Name) -> Linear:
    name = node.text
    if name in scope.params:
        return Linear(scope.params[name].value, (), scope.params[name].dimension)
    if name in scope.fixed:
        return Linear(scope.fixed[name])
    if name in scope.free:
        return Linear(Fraction(0), ((name, Fraction(1)),))
    if name.lower() in NOT_NUMBERS:
        raise scope.refuse("number_not_finite", node.span, text=name)
    known = [*scope.params, *scope.fixed, *scope.free]
    raise scope.refuse("unknown_name", node.span, name=name, hint=did_you_mean(name, known))


def _power(scope: Scope, node: tree.Power) -> Linear:
    base, exponent = _linear(scope, node.base), _linear(scope, node.exponent)
    if base.terms or exponent.terms or base.dimension or exponent.dimension:
        raise scope.refuse("not_linear", node.span, reason="this is a power")
    return Linear(power(base.constant, -exponent.constant if node.minus else exponent.constant))


def _chain(scope: Scope, node: tree.Chain) -> Linear:
    total = _linear(scope, node.first)
    for operator, part in node.rest:
        value = _linear(scope, part)
        if operator in "+-":
            if value.dimension is not total.dimension:
                raise scope.refuse(
                    "unit_wrong", part.span, what=node.first.span.text, unit=value.dimension or "nothing"
                )
            total = _added(total, value, 1 if operator == "+" else -1)
        elif operator == "*":
            total = _product(scope, node.span, total, value)
        else:
            total = _quotient(scope, part.span, total, value)
    return total


def _product(scope: Scope, span: Span, left: Linear, right: Linear) -> Linear:
    if (left.terms and right.terms) or (left.dimension and right.dimension):
        raise scope.refuse("not_linear", span, reason="this multiplies two of them")
    if right.terms or right.dimension:
        left, right = right, left
    return left.scaled(right.constant)


def _quotient(scope: Scope, span: Span, left: Linear, right: Linear) -> Linear:
    if right.terms or right.dimension:
        raise scope.refuse("not_linear", span, reason="this divides by one")
    if right.constant == 0:
        raise scope.refuse("division_by_zero", span)
    return left.scaled(1 / right.constant)


def find_unit(scope: Scope, unit: tree.Unit, number: Fraction | None = None) -> units.Unit:
    """The row of a unit. Raises RefusedError, with the converted value as the hint where a foreign unit was meant."""
    row = units.BY_NAME.get(unit.text)
    if row:
        return row
    foreign = units.FOREIGN.get(unit.text) or units.FOREIGN.get(unit.text.lower())
    if foreign and number is not None:
        hint = f"write `{written(number * foreign[1])} {foreign[0]}`"
    else:
        hint = f"did you mean `{foreign[0]}`?" if foreign else choose(unit.text, units.BY_NAME)
    raise scope.refuse("unknown_unit", unit.span, name=unit.text, hint=hint)


def written(value: Fraction) -> str:
    """A number as a hint shows it: exact where short, else five digits."""
    exact = decimal_exact(value)
    return exact if len(exact) <= 12 else decimal_near(value, 5)


def _with_space(value: Fraction, unit: str) -> str:
    return f"{written(value)}{'' if unit == '%' else ' '}{unit}".rstrip()


def _missing_hint(value: Fraction, dimension: Dimension) -> str:
    """What the bare number is in units, for the units that it may have been meant in."""
    plain = _with_space(value, dimension.value)
    best = _with_space(*units.readable(value, dimension))
    hint = f"write `{best}`" if best == plain else f"write `{best}` (that is {plain})"
    return f"{hint} or `{_with_space(value, 'ms')}`" if dimension is Dimension.SECOND and abs(value) >= 1 else hint


def _check_unit(
    scope: Scope, value: tree.Value, unit: tree.Unit | None, number: Linear, dimension: Dimension, what: str
) -> units.Unit | None:
    """The unit of a value of the wanted dimension, or None where it needs none. Raises RefusedError."""
    bare = written(number.constant)
    if unit is None:
        if number.dimension is dimension or dimension in (Dimension.NONE, *units.UNIT_OPTIONAL):
            return None
        hint = _missing_hint(number.constant, dimension)
        raise scope.refuse("unit_missing", value.span, what=what, unit=dimension.value, value=bare, hint=hint)
    row = find_unit(scope, unit, number.constant)
    if row.dimension is dimension and not number.dimension:
        return row
    if dimension in (Dimension.NONE, *units.UNIT_OPTIONAL):
        plain = written(number.constant * row.low) if row.name == "%" else value.expression.span.text
        hint = f"write `{plain}`"
        raise scope.refuse("unit_forbidden", unit.span, what=what, hint=hint)
    known = ", ".join(row.name for row in units.of_dimension(dimension))
    raise scope.refuse("unit_wrong", unit.span, what=what, unit=row.name, hint=f"units of `{what}` are: {known}")


def measured(
    scope: Scope,
    value: tree.Value,
    dimension: Dimension,
    what: str,
    *,
    side: Direction = Direction.AT_MOST,
    unit: tree.Unit | None = None,
) -> Linear:
    """A value in the canonical unit of `dimension`; `unit` is one that is written once for both ends of a range.

    A unit with an irrational factor is rounded so that the limit becomes stricter on its `side`, with a note.
    Raises RefusedError for a unit that is missing, wrong or unknown.
    """
    number = linear(scope, value.expression)
    row = _check_unit(scope, value, value.unit or unit, number, dimension, what)
    if row is None:
        return number
    if row.exact:
        return number.scaled(row.low)
    if number.terms:
        raise scope.refuse("not_linear", value.span, reason=f"{row.name} need a plain number")
    convert = units.canonical_low if side is Direction.AT_MOST else units.canonical_high
    result = convert(number.constant, row)
    scope.report.add("unit_rounded", value.span, value=written(number.constant), nats=decimal_near(result, 6))
    return Linear(result)


def constant(
    scope: Scope, value: tree.Value, dimension: Dimension, what: str, *, unit: tree.Unit | None = None
) -> Fraction:
    """A plain number in the canonical unit of `dimension`. Raises RefusedError where assumptions occur in it."""
    number = measured(scope, value, dimension, what, unit=unit)
    if number.terms:
        raise scope.refuse("not_constant", value.span, name=number.terms[0][0])
    return number.constant


def amount(scope: Scope, node: tree.Amount, dimension: Dimension, what: str) -> Fraction:
    """A plain amount in the canonical unit of `dimension`."""
    return constant(scope, tree.Value(node.span, node.number, node.unit), dimension, what)


def threshold(number: Linear) -> Threshold:
    """The number as the typed contract keeps it."""
    return Threshold(number.constant, number.terms)


def closed(scope: Scope, node: tree.Range) -> tree.Range:
    """The range itself. Raises RefusedError unless both ends are in it."""
    if node.open_low or node.open_high:
        raise scope.refuse("range_ends", node.span, form="`[low, high]`")
    return node


def interval(scope: Scope, node: tree.Range, dimension: Dimension, what: str) -> Interval:
    """A range of plain numbers, its upper end open where the text says so. Raises RefusedError when it is reversed."""
    if node.open_low:
        raise scope.refuse("range_ends", node.span, form="`[low, high]` or `[low, high)`")
    low = constant(scope, node.low, dimension, what, unit=node.unit)
    high = constant(scope, node.high, dimension, what, unit=node.unit)
    in_order(scope, node, low, high)
    return Interval(low, high, node.open_high)


def in_order(scope: Scope, node: tree.Range, low: Fraction, high: Fraction) -> None:
    """Raises RefusedError when the ends are reversed, or equal in a half-open range."""
    if low > high or (low == high and node.open_high):
        ends = f"[{node.high.span.text}, {node.low.span.text}{')' if node.open_high else ']'}"
        hint = f"write `{ends}`" if low > high else "a half-open range needs two different ends"
        reversed_ = f"reversed: {written(low)} is above {written(high)}"
        fault = reversed_ if low > high else f"empty: it begins at {written(low)} and leaves {written(high)} out"
        raise scope.refuse("range_reversed", node.span, fault=fault, hint=hint)


def in_range(
    scope: Scope, span: Span, value: Fraction, what: str, wanted: str, *, ok: bool, slug: str = "number_range"
) -> Fraction:
    """The value itself. Raises RefusedError unless `ok`."""
    if not ok:
        raise scope.refuse(slug, span, what=what, wanted=wanted, value=written(value))
    return value
