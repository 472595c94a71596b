"""Whether a request is in a slice: three-valued, since a trace may lack a field."""

from __future__ import annotations

from collections.abc import Mapping, Set
from fractions import Fraction
from operator import eq, ge, gt, le, lt, ne

from kcverify.elaborate.contract import (
    Conjunction,
    Disjunction,
    FieldCompare,
    FieldWithin,
    HasTag,
    Interval,
    Negation,
    Predicate,
)

_OPERATORS = {"<=": le, ">=": ge, "<": lt, ">": gt, "==": eq, "!=": ne}
Field = str | int | float | bool


def belongs(predicate: Predicate, fields: Mapping[str, Field], tags: Set[str]) -> bool | None:
    """True or False, or None where the answer rests on a field that `fields` lacks or that has another type."""
    if isinstance(predicate, HasTag):
        return predicate.tag in tags
    if isinstance(predicate, Negation):
        inner = belongs(predicate.part, fields, tags)
        return None if inner is None else not inner
    if isinstance(predicate, Conjunction | Disjunction):
        answers = [belongs(p, fields, tags) for p in predicate.parts]
        decisive = isinstance(predicate, Disjunction)
        if any(a is decisive for a in answers):
            return decisive
        return None if any(a is None for a in answers) else not decisive
    value = fields.get(predicate.field)
    if isinstance(predicate, FieldWithin):
        number = _number(value)
        return None if number is None else _inside(number, predicate.interval)
    return _compare(predicate, value)


def _number(value: Field | None) -> Fraction | None:
    if value is None or isinstance(value, str | bool):
        return None
    return Fraction(value)


def _inside(x: Fraction, i: Interval) -> bool:
    if i.low is not None and x < i.low:
        return False
    return i.high is None or x < i.high or (x == i.high and not i.open_high)


def _compare(predicate: FieldCompare, value: Field | None) -> bool | None:
    if isinstance(predicate.value, str):
        return bool(_OPERATORS[predicate.operator](value, predicate.value)) if isinstance(value, str) else None
    number = _number(value)
    return None if number is None else bool(_OPERATORS[predicate.operator](number, predicate.value))
