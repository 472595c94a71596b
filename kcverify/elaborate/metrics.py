"""Finds the catalogue row of a metric as it is written, and checks its arguments."""

from __future__ import annotations

from fractions import Fraction

from kcverify.catalog import metrics
from kcverify.catalog.model import Argument, Dimension, Metric
from kcverify.diagnostics import Related
from kcverify.elaborate import numbers
from kcverify.elaborate.scope import Scope, choose, did_you_mean
from kcverify.syntax import tree

_SIDES = ("candidate", "reference")


def metric_of(scope: Scope, use: tree.MetricUse, aliases: dict[str, str]) -> Metric:
    """The row of the metric. Raises RefusedError for an unknown name or a missing direction."""
    name = use.name.text
    directed = [argument for argument in use.arguments if isinstance(argument, tree.Directed)]
    if name in metrics.DIRECTED:
        return _directed(scope, use, directed, aliases)
    row = metrics.BY_NAME.get(name)
    if row is None:
        known = sorted({known.partition("(")[0] for known in metrics.BY_NAME})
        hint = did_you_mean(name, known)
        raise scope.refuse("unknown_metric", use.name.span, name=name, hint=hint)
    if directed:
        raise scope.refuse("unknown_argument", directed[0].span, metric=name, name=directed[0].span.text)
    return row


def _directed(scope: Scope, use: tree.MetricUse, directed: list[tree.Directed], aliases: dict[str, str]) -> Metric:
    name = use.name.text
    for argument in directed[:1]:
        sides = [_side(scope, word, aliases) for word in (argument.left, argument.right)]
        if len(directed) == 1 and set(sides) == set(_SIDES):
            return metrics.BY_NAME[f"{name}({sides[0]} || {sides[1]})"]
    hint = f"write `{name}(candidate || reference)` (samples from the candidate) or `{name}(reference || candidate)`"
    raise scope.refuse("direction_missing", use.span, name=name, hint=hint)


def _side(scope: Scope, word: tree.Name, aliases: dict[str, str]) -> str:
    """`candidate` or `reference`, from the role or the alias that the pair gives it."""
    if word.text in _SIDES:
        return word.text
    if word.text in aliases:
        return aliases[word.text]
    known = [*_SIDES, *aliases]
    hint = choose(word.text, known)
    raise scope.refuse("unknown_word", word.span, kind="side", name=word.text, hint=hint)


def arguments_of(scope: Scope, use: tree.MetricUse, metric: Metric) -> tuple[tuple[str, str | Fraction], ...]:
    """Arguments in the order of the row, defaults filled in. Raises RefusedError for a fault."""
    known = {argument.name: argument for argument in metric.arguments}
    given: dict[str, tree.Named] = {}
    for argument in use.arguments:
        if isinstance(argument, tree.Directed):
            continue
        if isinstance(argument, tree.Value):
            hint = f"write `{metric.arguments[0].name} = {argument.span.text}`" if known else "leave it out"
            raise scope.refuse("argument_form", argument.span, metric=metric.name, hint=hint)
        name = argument.name.text
        if name not in known:
            hint = choose(name, known, "arguments are") if known else "leave it out"
            raise scope.refuse("unknown_argument", argument.name.span, metric=metric.name, name=name, hint=hint)
        if name in given:
            related = [Related(given[name].span, "first given here")]
            raise scope.refuse("duplicate", argument.span, what="argument", name=name, related=related)
        given[name] = argument
    return tuple((row.name, _argument(scope, use, metric, row, given.get(row.name))) for row in metric.arguments)


def _argument(
    scope: Scope, use: tree.MetricUse, metric: Metric, row: Argument, given: tree.Named | None
) -> str | Fraction:
    if given is None:
        if row.default is None:
            example = f"{metric.name}({row.name} = {row.values[0] if row.values else 1})"
            hint = f"write `{example}`"
            raise scope.refuse("argument_missing", use.span, metric=metric.name, name=row.name, hint=hint)
        return row.default
    if row.values:
        word = given.value.expression
        if isinstance(word, tree.Name) and word.text in row.values and given.value.unit is None:
            return word.text
        wanted, text = " or ".join(f"`{value}`" for value in row.values), given.value.span.text
        raise scope.refuse("argument_invalid", given.value.span, name=row.name, wanted=wanted, value=f"`{text}`")
    return _number(scope, row, given)


def _number(scope: Scope, row: Argument, given: tree.Named) -> Fraction:
    value = numbers.constant(scope, given.value, Dimension.NONE, row.name)
    whole = row.name in metrics.WHOLE_ARGUMENTS
    fits = (row.low is None or value >= row.low) and (row.high is None or value <= row.high)
    if fits and (value.denominator == 1 or not whole):
        return value
    wanted = "a whole number" if whole else "a number"
    if row.high is None:
        wanted += f" of at least {numbers.written(row.low or Fraction(0))}"
    else:
        wanted += f" from {numbers.written(row.low or Fraction(0))} to {numbers.written(row.high)}"
    shown = numbers.written(value)
    raise scope.refuse("argument_invalid", given.value.span, name=row.name, wanted=wanted, value=shown)
