"""Prints what stands within one statement: numbers, ranges, metrics, modifiers, predicates, words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kcverify.syntax import tree


def without_text(text: str) -> str:
    """The text with every quoted part left out."""
    return re.sub(r'"[^"\r\n]*"', "", text)


def expression(node: tree.Expression) -> str:
    """An expression with the fewest brackets that keep its tree."""
    if isinstance(node, tree.Number | tree.Name):
        return node.text
    if isinstance(node, tree.Call):
        return f"{node.function.text}({', '.join(expression(argument) for argument in node.arguments)})"
    if isinstance(node, tree.Negative):
        return f"-{_within(node.operand, tree.Chain, tree.Negative)}"
    if isinstance(node, tree.Power):
        base, exponent = (_within(part, tree.Chain, tree.Negative, tree.Power) for part in (node.base, node.exponent))
        return f"{base}^{'-' if node.minus else ''}{exponent}"
    operands = [node.first, *(part for _, part in node.rest)]
    shown = [_operand(part, sums=_is_sum(node)) for part in operands]
    return shown[0] + "".join(f" {operator} {part}" for (operator, _), part in zip(node.rest, shown[1:], strict=True))


def _is_sum(node: tree.Chain) -> bool:
    return node.rest[0][0] in "+-"


def _operand(node: tree.Expression, *, sums: bool) -> str:
    """A part of a sum, which may be a product, or of a product, which may be neither."""
    bare = not isinstance(node, tree.Chain) or (sums and not _is_sum(node))
    return expression(node) if bare else f"({expression(node)})"


def _within(node: tree.Expression, *bracketed: type) -> str:
    return f"({expression(node)})" if isinstance(node, bracketed) else expression(node)


def _with_unit(shown: str, unit: tree.Unit | None) -> str:
    if unit is None:
        return shown
    return f"{shown}{'' if unit.text == '%' else ' '}{unit.text}"


def value(node: tree.Value) -> str:
    """A number and its unit."""
    return _with_unit(expression(node.expression), node.unit)


def amount(node: tree.Amount) -> str:
    """A plain number and its unit."""
    return _with_unit(node.number.text, node.unit)


def hole(node: tree.Hole) -> str:
    """`?` and its unit."""
    return _with_unit("?", node.unit)


def range_(node: tree.Range) -> str:
    """A range with its kind of ends."""
    opening, closing = "(" if node.open_low else "[", ")" if node.open_high else "]"
    return _with_unit(f"{opening}{value(node.low)}, {value(node.high)}{closing}", node.unit)


def metric(node: tree.MetricUse) -> str:
    """A metric with its arguments."""
    if not node.arguments:
        return node.name.text
    return f"{node.name.text}({', '.join(_argument(argument) for argument in node.arguments)})"


def _argument(node: tree.Named | tree.Directed | tree.Value) -> str:
    if isinstance(node, tree.Named):
        return f"{node.name.text} = {value(node.value)}"
    if isinstance(node, tree.Directed):
        return f"{node.left.text} || {node.right.text}"
    return value(node)


def value_or_hole(node: tree.Value | tree.Hole) -> str:
    """What stands where a number or `?` may stand."""
    return hole(node) if isinstance(node, tree.Hole) else value(node)


def test(node: tree.Compared | tree.Range) -> str:
    """What a clause compares its metric with."""
    if isinstance(node, tree.Range):
        return f"in {range_(node)}"
    return f"{node.operator.text} {value_or_hole(node.value)}"


def modifier(node: tree.Modifier) -> str:
    """One modifier with its keyword."""
    names = ", ".join(name.text for name in node.names)
    shown = {"at": "at confidence", "when": f"when {names} in", "on": f"on {names}", "unit": f"unit {names}"}
    parts = [shown.get(node.keyword, node.keyword)]
    if node.value is not None:
        parts.append(value_or_hole(node.value))
    if node.range is not None:
        parts.append(range_(node.range))
    return " ".join(parts)


def predicate(node: tree.Predicate) -> str:
    """A predicate with the fewest brackets that keep its tree."""
    if isinstance(node, tree.Junction):
        return f" {node.operator} ".join(_part(part, node.operator) for part in node.parts)
    if isinstance(node, tree.Not):
        part = predicate(node.part)
        return f"not ({part})" if isinstance(node.part, tree.Junction | tree.Not) else f"not {part}"
    if isinstance(node, tree.Tagged):
        return f'{node.function.text}("{node.tag.value}")'
    if isinstance(node, tree.Membership):
        return f"{node.field.text} in {range_(node.range)}"
    operand = f'"{node.value.value}"' if isinstance(node.value, tree.Text) else value(node.value)
    return f"{node.field.text} {node.operator.text} {operand}"


def _part(node: tree.Predicate, operator: str) -> str:
    bare = not isinstance(node, tree.Junction) or (operator == "or" and node.operator == "and")
    return predicate(node) if bare else f"({predicate(node)})"


_TIGHT_BEFORE = frozenset({",", ")", "]", ":", "^", "/"})
_TIGHT_AFTER = frozenset({"(", "[", "^", "/"})


def words(texts: Sequence[str]) -> str:
    """The words of one line of a kernel contract, with spaces where people put them."""
    out = ""
    before = ""
    for index, text in enumerate(texts):
        after = texts[index + 1] if index + 1 < len(texts) else ""
        if out and not _tight(before, text, after):
            out += " "
        out += text
        before = text
    return out


def _tight(before: str, text: str, after: str) -> bool:
    """Whether no space stands between two words."""
    if text == "(" or text == "[":
        return before in _TIGHT_AFTER or (text == "(" and _is_name(before))
    if text == "%":
        return before[:1].isdigit() and not _starts_operand(after)
    return text in _TIGHT_BEFORE or before in _TIGHT_AFTER


def _is_name(text: str) -> bool:
    return text[:1].isalpha() and text not in ("in", "and", "or", "not", "on", "with", "to")


def _starts_operand(text: str) -> bool:
    return text[:1].isalnum() or text == "("
