"""Builds the nodes of the syntax tree, one function a rule of the grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcverify.source import Span
from kcverify.syntax import tree


def _pick(parts: list[Any], kind: type) -> Any:
    """The first part of a kind, or None."""
    return next((part for part in parts if isinstance(part, kind)), None)


def _chain(span: Span, parts: list[Any]) -> tree.Expression:
    return tree.Chain(span, parts[0], tuple((op.text, part) for op, part in zip(parts[1::2], parts[2::2], strict=True)))


def _junction(operator: str) -> Callable[[Span, list[Any]], Any]:
    return lambda span, parts: tree.Junction(span, operator, tuple(parts))


def _power(span: Span, parts: list[Any]) -> tree.Power:
    minus = len(parts) == 3
    return tree.Power(span, parts[0], parts[-1], minus)


def _range(span: Span, parts: list[Any]) -> tree.Range:
    opening, low, high, closing, *unit = parts
    return tree.Range(span, low, high, opening.text == "(", closing.text == ")", unit[0] if unit else None)


def _modifier(span: Span, parts: list[Any]) -> tree.Modifier:
    keyword, *rest = parts
    value = _pick(rest, tree.Value) or _pick(rest, tree.Hole)
    names = tuple(part for part in rest if isinstance(part, tree.Name))
    return tree.Modifier(span, keyword.text, value, names, _pick(rest, tree.Range))


def _clause(span: Span, parts: list[Any]) -> tree.Clause:
    name, *rest = parts
    statistic = rest.pop(0) if isinstance(rest[0], _Statistic) else None
    metric, test, *rest = rest
    modifiers = tuple(part for part in rest if isinstance(part, tree.Modifier))
    severity = rest[-1] if rest and isinstance(rest[-1], tree.Name) else None
    return tree.Clause(span, name, statistic.name if statistic else None, metric, test, modifiers, severity)


class _Statistic:
    """Keeps a statistic apart from the other names of its clause."""

    def __init__(self, span: Span, parts: list[Any]) -> None:
        self.name: tree.Name = parts[0]


def _header(kernel: bool) -> Callable[[Span, list[Any]], tree.Header]:
    def header(span: Span, parts: list[Any]) -> tree.Header:
        names = [part for part in parts if isinstance(part, tree.Name)]
        return tree.Header(span, names[0], _pick(parts, tree.Text), names[1] if len(names) > 1 else None, kernel)

    return header


def _assumption(span: Span, parts: list[Any]) -> tree.Assumption:
    name, *rest = parts
    return tree.Assumption(span, name, _pick(rest, tree.Name), _pick(rest, tree.Value), _pick(rest, tree.Range))


def _recorded(keyword: str) -> Callable[[Span, list[Any]], tree.Recorded]:
    def recorded(span: Span, parts: list[Any]) -> tree.Recorded:
        names = tuple(part for part in parts if isinstance(part, tree.Name))
        return tree.Recorded(span, keyword, names, _pick(parts, tree.Value))

    return recorded


def _list(kind: Callable[..., Any]) -> Callable[[Span, list[Any]], Any]:
    """A node whose one field is the tuple of all parts."""
    return lambda span, parts: kind(span, tuple(parts))


def _fields(kind: Callable[..., Any]) -> Callable[[Span, list[Any]], Any]:
    """A node whose fields are the parts in order."""
    return lambda span, parts: kind(span, *parts)


def _then_list(kind: Callable[..., Any], fixed: int) -> Callable[[Span, list[Any]], Any]:
    """A node with `fixed` fields and then the tuple of the other parts."""
    return lambda span, parts: kind(span, *parts[:fixed], tuple(parts[fixed:]))


def _with_unit(kind: Callable[..., Any]) -> Callable[[Span, list[Any]], Any]:
    """A node whose last field is the unit or None."""

    def with_unit(span: Span, parts: list[Any]) -> Any:
        return kind(span, parts[0], parts[1] if len(parts) > 1 else None)

    return with_unit


def _hole(span: Span, parts: list[Any]) -> tree.Hole:
    return tree.Hole(span, _pick(parts, tree.Unit))


RULES: dict[str, Callable[[Span, list[Any]], Any]] = {
    "start": lambda span, parts: parts,
    "use": _fields(tree.Use),
    "doc": _fields(tree.Doc),
    "contract": _header(False),
    "kernel_contract": _header(True),
    "kernel_class": lambda span, parts: tree.KernelClass(span, parts[0].text),
    "version": lambda span, parts: parts[0],
    "slice": _fields(tree.Slice),
    "param": _fields(tree.Param),
    "split": _list(tree.Split),
    "share": _fields(tree.Option),
    "pair": _list(tree.Pair),
    "role": _fields(tree.Role),
    "assume": _list(tree.Assume),
    "ranged": _assumption,
    "bounded": _assumption,
    "equals": _assumption,
    "independence": _assumption,
    "clauses": _then_list(tree.Clauses, 1),
    "clause": _clause,
    "statistic": _Statistic,
    "metric": lambda span, parts: tree.MetricUse(span, parts[0], parts[1] if len(parts) > 1 else ()),
    "arguments": lambda span, parts: tuple(parts),
    "named": _fields(tree.Named),
    "direction": _fields(tree.Directed),
    "compared": _fields(tree.Compared),
    "within": lambda span, parts: parts[0],
    "hole": _hole,
    "modifier": _modifier,
    "severity": lambda span, parts: parts[0],
    "observability": _list(tree.Observability),
    "trace": _recorded("trace"),
    "fingerprint": _recorded("fingerprint"),
    "replay": _recorded("replay"),
    "escalate": _list(tree.Escalate),
    "rule": _then_list(tree.Rule, 2),
    "option": _fields(tree.Option),
    "promote": _list(tree.Promote),
    "stage": _then_list(tree.Stage, 1),
    "text_option": _fields(tree.Option),
    "any": _junction("or"),
    "all": _junction("and"),
    "negation": _fields(tree.Not),
    "comparison": _fields(tree.Comparison),
    "membership": _fields(tree.Membership),
    "tagged": _fields(tree.Tagged),
    "range": _range,
    "value": _with_unit(tree.Value),
    "amount": _with_unit(tree.Amount),
    "unit": lambda span, parts: tree.Unit(span, "/".join(part.text for part in parts)),
    "sum": _chain,
    "product": _chain,
    "negative": lambda span, parts: tree.Negative(span, parts[-1]),
    "power": _power,
    "call": _then_list(tree.Call, 1),
    "kernel_section": _then_list(tree.KernelSection, 1),
    **{
        f"{part}_text": lambda span, parts: parts[0]
        for part in ("metric", "test", "value", "range", "predicate", "amount", "kernel")
    },
    "kernel_item": lambda span, parts: tuple(_word(part) for part in parts),
}


def _word(part: tree.Name | tree.Text | tree.Number) -> tree.Name:
    """Any word of a kernel contract as a name with its own text; its span may be wider where another form folds lines."""
    if isinstance(part, tree.Name):
        return part
    return tree.Name(part.span, f'"{part.value}"' if isinstance(part, tree.Text) else part.text)
