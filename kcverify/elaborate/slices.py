"""Slices: predicates over trace fields, from syntax to typed predicates."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from kcverify.catalog.model import Dimension
from kcverify.elaborate import numbers
from kcverify.elaborate.contract import (
    Conjunction,
    Disjunction,
    FieldCompare,
    FieldWithin,
    HasTag,
    Negation,
    Predicate,
    SliceDef,
)
from kcverify.elaborate.scope import RefusedError, Scope, did_you_mean
from kcverify.syntax import tree

COUNTS = ("prompt_tokens", "output_tokens", "position")
"""Fields that every trace has: whole numbers of tokens."""


def slice_of(scope: Scope, node: tree.Slice, traced: frozenset[str]) -> SliceDef | None:
    """The typed slice, or None where a fault was reported. `traced` are the fields that `trace` names."""
    try:
        predicate = _predicate(scope, node.predicate, traced)
    except RefusedError:
        return None
    return SliceDef(node.name.text, predicate, node.span, tuple(dict.fromkeys(_fields(predicate))))


def _fields(predicate: Predicate) -> Iterator[str]:
    """Trace fields that a predicate reads, in order."""
    if isinstance(predicate, FieldCompare | FieldWithin):
        yield predicate.field
    elif isinstance(predicate, HasTag):
        yield "tags"
    elif isinstance(predicate, Negation):
        yield from _fields(predicate.part)
    else:
        for part in predicate.parts:
            yield from _fields(part)


def _predicate(scope: Scope, node: tree.Predicate, traced: frozenset[str]) -> Predicate:
    if isinstance(node, tree.Junction):
        parts = tuple(_predicate(scope, part, traced) for part in node.parts)
        return Conjunction(parts) if node.operator == "and" else Disjunction(parts)
    if isinstance(node, tree.Not):
        return Negation(_predicate(scope, node.part, traced))
    if isinstance(node, tree.Tagged):
        if node.function.text != "tag":
            name = node.function.text
            raise scope.refuse("unknown_word", node.function.span, kind="test", name=name, hint='write `tag("...")`')
        return HasTag(node.tag.value)
    _check_field(scope, node.field, traced)
    if isinstance(node, tree.Membership):
        return FieldWithin(node.field.text, numbers.interval(scope, node.range, _dimension(node), node.field.text))
    return FieldCompare(node.field.text, node.operator.text, _operand(scope, node))


def _check_field(scope: Scope, field: tree.Name, traced: frozenset[str]) -> None:
    """Raises RefusedError for a field that no trace of this contract has, or that is no single value."""
    if field.text == "tags":
        hint = 'write `tag("...")`'
        raise scope.refuse("predicate_type", field.span, field="tags", kind="a set", value="one value", hint=hint)
    if field.text not in COUNTS and field.text not in traced:
        known = [*COUNTS, *sorted(traced)]
        hint = did_you_mean(field.text, known) or "name the field in `trace` of `observability`"
        raise scope.refuse("unknown_field", field.span, name=field.text, where="the trace", hint=hint)


def _dimension(node: tree.Comparison | tree.Membership) -> Dimension:
    """Counts may be written with `tokens`; every other number is pure."""
    units: tuple[tree.Unit | None, ...]
    if isinstance(node, tree.Membership):
        units = (node.range.unit, node.range.low.unit, node.range.high.unit)
    else:
        units = (node.value.unit if isinstance(node.value, tree.Value) else None,)
    return Dimension.TOKEN if node.field.text in COUNTS and any(units) else Dimension.NONE


def _operand(scope: Scope, node: tree.Comparison) -> Fraction | str:
    if isinstance(node.value, tree.Value):
        return numbers.constant(scope, node.value, _dimension(node), node.field.text)
    if node.field.text in COUNTS:
        shown = f'"{node.value.value}"'
        raise scope.refuse("predicate_type", node.value.span, field=node.field.text, kind="a number", value=shown)
    if node.operator.text not in ("==", "!="):
        shown = f'"{node.value.value}" by `{node.operator.text}`'
        hint = "text is compared with `==` or `!=`"
        raise scope.refuse(
            "predicate_type", node.value.span, field=node.field.text, kind="text", value=shown, hint=hint
        )
    return node.value.value
