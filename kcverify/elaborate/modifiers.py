"""The modifiers of a clause: `except`, `on`, `at confidence`, `over`, `unit`, `when`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kcverify.catalog.model import Dimension, Level, Metric, Statistic
from kcverify.diagnostics import Related
from kcverify.elaborate import numbers
from kcverify.elaborate.contract import Assumptions, Band
from kcverify.elaborate.scope import RefusedError, Scope, choose
from kcverify.elaborate.slices import COUNTS
from kcverify.syntax import tree

BAND_PARAMETERS = ("temperature", "horizon")


@dataclass(frozen=True)
class Context:
    """What a clause may refer to: numbers, aliases of the pair, slices, and the assumptions."""

    scope: Scope
    aliases: dict[str, str]
    slices: frozenset[str]
    assumptions: Assumptions


@dataclass(frozen=True)
class Subject:
    """The clause whose modifiers are read, as far as it is known."""

    node: tree.Clause
    metric: Metric
    statistic: Statistic
    block: str


def read(context: Context, subject: Subject) -> dict[str, Any]:
    """Fields of the typed clause that its modifiers set. Raises RefusedError at the first fault."""
    first: dict[str, tree.Modifier] = {}
    values: dict[str, Any] = {}
    for modifier in subject.node.modifiers:
        keyword = modifier.keyword
        if keyword in first:
            related = [Related(first[keyword].span, "first given here")]
            raise context.scope.refuse("modifier_repeated", modifier.span, modifier=keyword, related=related)
        first[keyword] = modifier
        if subject.block == "guarantee" and keyword in ("at", "over", "unit"):
            raise _refuse(context, modifier, "in `guarantee`", "a claim is proved, not measured")
        field, reader = _READERS[keyword]
        values[field] = reader(context, modifier, subject)
    return values


def _refuse(context: Context, modifier: tree.Modifier, where: str, reason: str) -> RefusedError:
    return context.scope.refuse(
        "modifier_not_allowed", modifier.span, modifier=modifier.keyword, where=where, reason=reason
    )


def _number(context: Context, modifier: tree.Modifier, dimension: Dimension) -> tuple[tree.Value, Fraction]:
    """The value of a modifier and its number. Raises RefusedError where a hole stands."""
    value = modifier.value
    if isinstance(value, tree.Value):
        return value, numbers.constant(context.scope, value, dimension, modifier.keyword)
    span = value.span if value else modifier.span
    raise context.scope.refuse("hole_not_allowed", span, reason="only a threshold can be filled by the compiler")


def _except(context: Context, modifier: tree.Modifier, subject: Subject) -> Fraction:
    if subject.statistic is not Statistic.MAX:
        where = f"on a {subject.statistic.value}"
        raise _refuse(context, modifier, where, "only single values can exceed a limit")
    word = subject.node.statistic
    if word is not None and word.text.startswith("p"):
        raise _refuse(context, modifier, f"beside `{word.text}`", "the quantile is an exception already")
    value, share = _number(context, modifier, Dimension.NONE)
    wanted = "a share from 0% to below 100%"
    return numbers.in_range(context.scope, value.span, share, "an exception", wanted, ok=0 <= share < 1)


def _on(context: Context, modifier: tree.Modifier, subject: Subject) -> tuple[str, ...]:
    for name in modifier.names:
        if name.text not in context.slices:
            hint = choose(name.text, sorted(context.slices), "slices are") if context.slices else ""
            raise context.scope.refuse("unknown_slice", name.span, name=name.text, hint=hint)
    return tuple(dict.fromkeys(name.text for name in modifier.names))


def _at(context: Context, modifier: tree.Modifier, subject: Subject) -> Fraction:
    value, share = _number(context, modifier, Dimension.NONE)
    wanted = "above 0% and below 100%"
    return numbers.in_range(context.scope, value.span, share, "a confidence", wanted, ok=0 < share < 1)


def _over(context: Context, modifier: tree.Modifier, subject: Subject) -> Fraction:
    value, seconds = _number(context, modifier, Dimension.SECOND)
    return numbers.in_range(context.scope, value.span, seconds, "a window", "above 0 s", ok=seconds > 0)


def _unit(context: Context, modifier: tree.Modifier, subject: Subject) -> str:
    name = modifier.names[0]
    if name.text not in ("request", "token"):
        hint = choose(name.text, ("request", "token"))
        raise context.scope.refuse("unknown_word", name.span, kind="unit of evidence", name=name.text, hint=hint)
    if name.text == "token" and not context.assumptions.independent_tokens:
        raise context.scope.refuse("token_unit", modifier.span)
    if name.text == "token" and subject.metric.level is not Level.TOKEN:
        raise _refuse(context, modifier, f"on `{subject.metric.name}`", "it is no metric of single tokens")
    return name.text


def _when(context: Context, modifier: tree.Modifier, subject: Subject) -> Band:
    name = modifier.names[0]
    assumed = getattr(context.assumptions, name.text) if name.text in BAND_PARAMETERS else None
    if assumed is None or modifier.range is None:
        hint = "" if name.text in BAND_PARAMETERS else choose(name.text, BAND_PARAMETERS, "bands are over")
        if name.text in (*COUNTS, "tokens") and modifier.range is not None:
            field = "prompt_tokens" if name.text == "tokens" else name.text
            hint = f"write `slice NAME = {field} in {modifier.range.span.text}`, and `on NAME` in the clause"
        raise context.scope.refuse("band_parameter", name.span, name=name.text, hint=hint)
    dimension = Dimension.TOKEN if name.text == "horizon" else Dimension.NONE
    return Band(name.text, numbers.interval(context.scope, modifier.range, dimension, name.text))


_READERS: dict[str, tuple[str, Callable[[Context, tree.Modifier, Subject], Any]]] = {
    "except": ("exception", _except),
    "on": ("slices", _on),
    "at": ("confidence", _at),
    "over": ("window", _over),
    "unit": ("unit", _unit),
    "when": ("band", _when),
}
