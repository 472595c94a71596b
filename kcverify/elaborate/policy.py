"""The blocks `escalate`, `promote` and `observability`, and the line `split`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kcverify.catalog.model import Dimension
from kcverify.elaborate import numbers
from kcverify.elaborate.clauses import SEVERITIES
from kcverify.elaborate.contract import Action, Clause, Observability, Stage
from kcverify.elaborate.scope import RefusedError, Scope, choose, report_duplicates
from kcverify.syntax import tree

ACTIONS = ("log", "alert", "guard", "rollback", "stop")
"""What a severity can do, from the weakest."""

STAGES = ("offline", "shadow", "canary", "full")

FINGERPRINT = (
    "weights",
    "build",
    "device",
    "dtype",
    "quantization",
    "parallelism",
    "tokenizer",
    "sampler",
    "attention",
    "kernels",
    "versions",
    "driver",
    "batch",
    "compile_mode",
    "environment",
)
"""What a fingerprint may hold."""


@dataclass(frozen=True)
class _Field:
    """One option: the field of the typed record that it sets, what it takes, and how it is read."""

    target: str
    wanted: str
    read: Callable[[Scope, list[tree.Amount | tree.Text]], Any]


def _amount(
    dimension: Dimension, wanted: str, fits: Callable[[Fraction], bool], whole: bool = False
) -> Callable[..., Any]:
    def read(scope: Scope, values: list[tree.Amount | tree.Text]) -> Any:
        value = values[0]
        assert isinstance(value, tree.Amount)
        number = numbers.amount(scope, value, dimension, wanted)
        numbers.in_range(scope, value.span, number, "this", wanted, ok=fits(number))
        return int(number) if whole else number

    return read


def _shares(scope: Scope, values: list[tree.Amount | tree.Text]) -> tuple[Fraction, ...]:
    shares = []
    for value in values:
        assert isinstance(value, tree.Amount)
        share = numbers.amount(scope, value, Dimension.NONE, "a share")
        shares.append(numbers.in_range(scope, value.span, share, "a share", "from 0% to 100%", ok=0 <= share <= 1))
    return tuple(shares)


def _time(target: str) -> _Field:
    wanted = "a time such as `2 h`"
    return _Field(target, wanted, _amount(Dimension.SECOND, wanted, lambda number: number >= 0))


def _count(target: str) -> _Field:
    wanted = "a whole number of requests such as `2000 requests`"
    return _Field(target, wanted, _amount(Dimension.REQUEST, wanted, lambda n: n.denominator == 1 and n >= 0, True))


_DATA = _Field("data", 'quoted text such as `"eval/*.jsonl"`', lambda scope, values: values[0].value)  # type: ignore[union-attr]
_TRAFFIC = _Field("traffic", "shares such as `1%, 5%`", _shares)
_MIRROR = _Field("mirror", "a share such as `100%`", lambda scope, values: _shares(scope, values)[0])

_EVERY = _count("false_alarm_every")
"""The interval between false alarms counted in requests instead of time."""
_RULE_FIELDS = {"dwell": _time("dwell"), "recover": _count("recover"), "false_alarm_every": _time("false_alarm_every")}
_STAGE_FIELDS: dict[str, dict[str, _Field]] = {
    "offline": {"data": _DATA, "min": _count("min_requests")},
    "shadow": {"mirror": _MIRROR, "for": _time("duration"), "min": _count("min_requests")},
    "canary": {"traffic": _TRAFFIC, "hold": _time("hold"), "min": _count("min_requests")},
    "full": {"stable": _time("stable"), "min": _count("min_requests")},
}


def _options(
    scope: Scope, items: Iterable[tree.Option | tree.Amount], fields: dict[str, _Field], where: str
) -> dict[str, Any]:
    """Values of the options by target. Raises RefusedError at the first fault."""
    gathered: list[tuple[tree.Name, list[tree.Amount | tree.Text]]] = []
    for item in items:
        if isinstance(item, tree.Option):
            gathered.append((item.name, [item.value]))
        elif gathered and fields.get(gathered[-1][0].text) is _TRAFFIC:
            gathered[-1][1].append(item)
        else:
            raise scope.refuse("field_value", item.span, field=where, wanted="a name before each value")
    if report_duplicates(scope.report, "the field", [(name.text, name.span) for name, _ in gathered]):
        raise RefusedError("duplicate")
    values: dict[str, Any] = {}
    for name, given in gathered:
        field = fields.get(name.text)
        if field is None:
            hint = choose(name.text, fields, "fields are")
            raise scope.refuse("unknown_field", name.span, name=name.text, where=where, hint=hint)
        if isinstance(given[0], tree.Text) != (field is _DATA):
            raise scope.refuse("field_value", given[0].span, field=name.text, wanted=field.wanted)
        values[field.target] = _value(scope, name, field, given)
    return values


def _value(scope: Scope, name: tree.Name, field: _Field, given: list[tree.Amount | tree.Text]) -> Any:
    """One option's value; a unit of another kind is told in the words of the field."""
    first = given[0]
    if isinstance(first, tree.Amount) and first.unit is not None and field not in (_TRAFFIC, _MIRROR):
        row = numbers.find_unit(scope, first.unit, Fraction(1))
        if field.target == _EVERY.target and row.dimension is Dimension.REQUEST:
            return _EVERY.read(scope, given)
        wanted = Dimension.REQUEST if "requests" in field.wanted else Dimension.SECOND
        if row.dimension is not wanted:
            raise scope.refuse("field_value", first.span, field=name.text, wanted=field.wanted)
    return field.read(scope, given)


def actions(scope: Scope, block: tree.Escalate) -> tuple[Action, ...]:
    """The lines of `escalate`; those with a fault are reported and left out."""
    named = [(rule.severity.text, rule.severity.span) for rule in block.rules]
    again = report_duplicates(scope.report, "the severity", named)
    found = []
    for index, rule in enumerate(block.rules):
        try:
            action = _action(scope, rule)
        except RefusedError:
            continue
        if index not in again:
            found.append(action)
    return tuple(found)


def _action(scope: Scope, rule: tree.Rule) -> Action:
    severity, action = rule.severity.text, rule.action.text
    if severity not in SEVERITIES:
        hint = choose(severity, SEVERITIES, "severities are")
        raise scope.refuse("unknown_severity", rule.severity.span, name=severity, hint=hint)
    if action not in ACTIONS:
        hint = choose(action, ACTIONS, "actions are")
        raise scope.refuse("unknown_action", rule.action.span, name=action, hint=hint)
    values = _options(scope, rule.options, _RULE_FIELDS, "`escalate`")
    every = values.get(_EVERY.target)
    if isinstance(every, int):  # a count of requests; a time is a fraction
        values |= {_EVERY.target: Fraction(every), "false_alarm_unit": "requests"}
    return Action(severity, action, rule.span, **values)


def stages(scope: Scope, block: tree.Promote) -> tuple[Stage, ...]:
    """The stages of `promote` in the order of the text; those with a fault are reported and left out."""
    named = [(stage.name.text, stage.name.span) for stage in block.stages]
    again = report_duplicates(scope.report, "the stage", named)
    found = []
    for index, node in enumerate(block.stages):
        name = node.name.text
        if name not in STAGES:
            scope.report.add("unknown_stage", node.name.span, name=name, hint=choose(name, STAGES, "stages are"))
            continue
        try:
            values = _options(scope, node.items, _STAGE_FIELDS[name], f"the stage `{name}`")
        except RefusedError:
            continue
        if index not in again:
            found.append(Stage(name, node.span, **values))
    return tuple(found)


def observability(scope: Scope, block: tree.Observability) -> Observability:
    """Trace and fingerprint fields and the replay window."""
    names: dict[str, tuple[str, ...]] = {"trace": (), "fingerprint": ()}
    report_duplicates(scope.report, "the line", [(line.keyword, line.span) for line in block.lines])
    replay = None
    for line in block.lines:
        if line.keyword in names:
            report_duplicates(scope.report, f"the {line.keyword} field", [(n.text, n.span) for n in line.names])
            names[line.keyword] = tuple(dict.fromkeys(name.text for name in line.names))
        elif line.value is not None:
            replay = _replay(scope, line.value)
        for name in line.names if line.keyword == "fingerprint" else ():
            if name.text not in FINGERPRINT:
                hint = choose(name.text, FINGERPRINT, "fields are")
                scope.report.add("unknown_field", name.span, name=name.text, where="`fingerprint`", hint=hint)
    return Observability(names["trace"], names["fingerprint"], replay, block.span)


def _replay(scope: Scope, value: tree.Value) -> Fraction | None:
    try:
        seconds = numbers.constant(scope, value, Dimension.SECOND, "replay within")
        return numbers.in_range(scope, value.span, seconds, "a replay window", "above 0 s", ok=seconds > 0)
    except RefusedError:
        return None


def splits(
    scope: Scope, node: tree.Split, clauses: Iterable[Clause], refused: frozenset[str]
) -> tuple[tuple[str, Fraction], ...]:
    """Shares of the holes. `refused` are names of clauses that were left out for another fault."""
    holes = [clause.name for clause in clauses if clause.limit.hole]
    report_duplicates(scope.report, "the share of", [(share.name.text, share.name.span) for share in node.shares])
    shares: dict[str, Fraction] = {}
    for share in node.shares:
        name = share.name.text
        if name not in holes and name not in refused:
            hint = choose(name, holes, "clauses with a hole are") if holes else ""
            scope.report.add("split_clause", share.name.span, name=name, hint=hint)
        try:
            assert isinstance(share.value, tree.Amount)
            shares[name] = numbers.amount(scope, share.value, Dimension.NONE, "a share")
        except RefusedError:
            return ()
    total = sum(shares.values(), Fraction(0))
    missing = [name for name in holes if name not in shares]
    if missing and set(shares) <= {*holes, *refused}:
        scope.report.add("split_incomplete", node.span, names=", ".join(f"`{name}`" for name in missing))
    elif not missing and total != 1:
        scope.report.add("split_sum", node.span, sum=f"{numbers.written(total * 100)}%")
    return tuple(shares.items())
