"""One line of a family's block, or one claim, from syntax to the typed clause."""

from __future__ import annotations

import re
from fractions import Fraction

from kcverify.catalog.metrics import statistics_of
from kcverify.catalog.model import Direction, Family, Metric, Statistic
from kcverify.elaborate import modifiers, numbers
from kcverify.elaborate.contract import Clause, Limit, Threshold
from kcverify.elaborate.metrics import arguments_of, metric_of
from kcverify.elaborate.modifiers import Context
from kcverify.elaborate.scope import RefusedError, Scope, choose
from kcverify.source import Span
from kcverify.syntax import tree
from kcverify.syntax.printer import clause_cells

SEVERITIES = ("L1", "L2", "L3")

_STATISTICS = {"max": Statistic.MAX, "mean": Statistic.MEAN, "rate": Statistic.RATE}
_QUANTILE = re.compile(r"p([0-9]+(?:\.[0-9]+)?)")
_OF_PAIRS = (Family.NUMERICAL, Family.STATISTICAL, Family.CLAIM)


def clause(context: Context, node: tree.Clause, block: str) -> Clause | None:
    """The typed clause, or None where a fault was reported."""
    try:
        return _clause(context, node, block)
    except RefusedError:
        return None


def _clause(context: Context, node: tree.Clause, block: str) -> Clause:
    scope = context.scope
    metric = metric_of(scope, node.metric, context.aliases)
    _check_block(scope, node, metric, block)
    arguments = arguments_of(scope, node.metric, metric)
    statistic, quantile = _statistic(scope, node, metric)
    limit = _limit(scope, node, metric, block)
    modified = modifiers.read(context, modifiers.Subject(node, metric, statistic, block))
    if quantile is not None:
        modified["exception"] = (quantile if _is_floor(node) else 100 - quantile) / 100
    return Clause(
        name=node.name.text,
        metric=metric,
        arguments=arguments,
        statistic=statistic,
        limit=limit,
        span=node.span,
        value_span=_value_span(node),
        severity=_severity(scope, node, block),
        quantile=quantile,
        text=" ".join(clause_cells(node)),
        **modified,
    )


def _is_floor(node: tree.Clause) -> bool:
    """Whether the clause asks for at least its threshold."""
    return isinstance(node.test, tree.Compared) and node.test.operator.text == ">="


def _check_block(scope: Scope, node: tree.Clause, metric: Metric, block: str) -> None:
    """Raises RefusedError when the metric belongs to another block."""
    if block == "guarantee":
        fits = metric.family in _OF_PAIRS
    else:
        fits = metric.family.value == block
    if not fits:
        home = "guarantee" if metric.family is Family.CLAIM else metric.family.value
        hint = f"move the clause to the block `{home}`"
        raise scope.refuse("wrong_block", node.metric.span, metric=metric.name, block=home, hint=hint)


def _statistic(scope: Scope, node: tree.Clause, metric: Metric) -> tuple[Statistic, Fraction | None]:
    """The statistic and, for `pNN`, the quantile in percent."""
    word = node.statistic
    if word is None:
        if metric.statistic is None:
            hint = f"write `p99 {metric.name}`, `mean {metric.name}` or `max {metric.name}`"
            raise scope.refuse("statistic_missing", node.metric.span, metric=metric.name, hint=hint)
        return metric.statistic, None
    match = _QUANTILE.fullmatch(word.text)
    if match is None and word.text not in _STATISTICS:
        hint = choose(word.text, [*_STATISTICS, "p99"])
        raise scope.refuse("unknown_statistic", word.span, name=word.text, hint=hint)
    statistic = Statistic.MAX if match else _STATISTICS[word.text]
    two_sided = match is not None and isinstance(node.test, tree.Range)
    if statistic not in statistics_of(metric) or two_sided:
        hint = "write the range without a quantile and add `except`" if two_sided else ""
        raise scope.refuse("statistic_not_allowed", word.span, metric=metric.name, statistic=word.text, hint=hint)
    if match is None:
        return statistic, None
    quantile = Fraction(match[1])
    ok = 0 < quantile < 100
    numbers.in_range(scope, word.span, quantile, "a quantile", "above 0 and below 100", ok=ok)
    return statistic, quantile


def _value_span(node: tree.Clause) -> Span:
    return node.test.span if isinstance(node.test, tree.Range) else node.test.value.span


def _limit(scope: Scope, node: tree.Clause, metric: Metric, block: str) -> Limit:
    """What the metric is compared with."""
    test = node.test
    if isinstance(test, tree.Range):
        limit = _range_limit(scope, test, metric)
    else:
        if test.operator.text not in ("<=", ">="):
            hint = f"write `{'>=' if '>' in test.operator.text else '<='}`"
            raise scope.refuse("comparison_not_allowed", test.operator.span, operator=test.operator.text, hint=hint)
        side = Direction(test.operator.text)
        _warn_of_direction(scope, test.operator, metric, side)
        if isinstance(test.value, tree.Hole):
            return _hole(scope, test.value, metric, block, side)
        number = numbers.measured(scope, test.value, metric.dimension, metric.name, side=side)
        bound = numbers.threshold(number)
        limit = Limit(upper=bound) if side is Direction.AT_MOST else Limit(lower=bound)
    _check_possible(scope, node, metric, limit)
    return limit


def _range_limit(scope: Scope, node: tree.Range, metric: Metric) -> Limit:
    numbers.closed(scope, node)
    low = numbers.measured(scope, node.low, metric.dimension, metric.name, side=Direction.AT_LEAST, unit=node.unit)
    high = numbers.measured(scope, node.high, metric.dimension, metric.name, side=Direction.AT_MOST, unit=node.unit)
    if not low.terms and not high.terms:
        numbers.in_order(scope, node, low.constant, high.constant)
    return Limit(numbers.threshold(low), numbers.threshold(high))


def _warn_of_direction(scope: Scope, operator: tree.Name, metric: Metric, side: Direction) -> None:
    if metric.direction not in (Direction.WITHIN, side):
        better = "smaller" if metric.direction is Direction.AT_MOST else "larger"
        hint = f"write `{metric.direction.value}` unless a test for change is meant"
        scope.report.add("direction_unusual", operator.span, metric=metric.name, better=better, hint=hint)


def _hole(scope: Scope, hole: tree.Hole, metric: Metric, block: str, side: Direction) -> Limit:
    """A hole. Raises RefusedError where the compiler has nothing to fill it from."""
    if hole.unit is not None:
        row = numbers.find_unit(scope, hole.unit)
        if row.dimension is not metric.dimension:
            raise scope.refuse("unit_wrong", hole.unit.span, what=metric.name, unit=row.name)
    reason = ""
    if block != Family.NUMERICAL.value:
        reason = f"a hole is a threshold of a numerical clause, and this block is `{block}`"
    elif metric.quantity is None:
        reason = f"no guarantee rests on `{metric.name}`"
    elif metric.direction not in (side, Direction.WITHIN):
        reason = f"a budget of `{metric.name}` is a limit of the form `{metric.direction.value} ?`"
    if reason:
        raise scope.refuse("hole_not_allowed", hole.span, reason=reason)
    return Limit(hole=True, floor=side is Direction.AT_LEAST)


def _below(bound: Threshold | None, edge: Fraction | None) -> bool:
    return bound is not None and bound.is_constant and edge is not None and bound.constant < edge


def _above(bound: Threshold | None, edge: Fraction | None) -> bool:
    return bound is not None and bound.is_constant and edge is not None and bound.constant > edge


def _check_possible(scope: Scope, node: tree.Clause, metric: Metric, limit: Limit) -> None:
    """Raises RefusedError when no value in the metric's range meets the limit."""
    low, high = metric.range
    if _below(limit.upper, low) or _above(limit.lower, high):
        ends = [numbers.written(end) if end is not None else "infinity" for end in (low, high)]
        words = f"[{ends[0]}, {ends[1]}]" if high is not None else f"[{ends[0]}, infinity)"
        raise scope.refuse("threshold_impossible", _value_span(node), metric=metric.name, range=words)


def _severity(scope: Scope, node: tree.Clause, block: str) -> str:
    """The severity of a clause; empty for a claim."""
    word = node.severity
    if block == "guarantee":
        if word is not None:
            raise scope.refuse(
                "modifier_not_allowed",
                word.span,
                modifier=f"-> {word.text}",
                where="in `guarantee`",
                reason="a claim is proved, not measured",
            )
        return ""
    if word is None:
        raise scope.refuse("severity_missing", node.name.span, name=node.name.text)
    if word.text not in SEVERITIES:
        hint = choose(word.text, SEVERITIES, "severities are")
        raise scope.refuse("unknown_severity", word.span, name=word.text, hint=hint)
    return word.text
