"""The typed contract as the JSON form states it, every number exact, and the digest that names it."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

import rfc8785

from kcverify.catalog import units
from kcverify.catalog.model import Dimension, Metric, Statistic
from kcverify.elaborate.contract import (
    Action,
    Assumptions,
    Clause,
    Conjunction,
    Contract,
    Disjunction,
    FieldCompare,
    FieldWithin,
    HasTag,
    Interval,
    Negation,
    Predicate,
    Stage,
    Threshold,
)
from kcverify.elaborate.kernel import KernelContract
from kcverify.exact import decimal_exact
from kcverify.forms.version import LANGUAGE

Data = dict[str, Any]

_RANGES = ("temperature", "reward", "logit_range")
_BOUNDS = {"score_norm": "", "token_score_norm": "", "horizon": " tokens"}
_VALUES = {"log_ratio_sd": "", "vocabulary": "", "traffic": " requests/s"}


def digest(contract: Contract | KernelContract) -> str:
    """`sha256:` and the SHA-256 of the contract's canonical form (RFC 8785).

    It is the same for every layout, order, unit and form in which one contract is written, and for a contract that
    extends another and its text written out; parameters count with their values.
    """
    form = kernel(contract) if isinstance(contract, KernelContract) else pair(contract)
    canonical = rfc8785.dumps({"language": LANGUAGE, "contracts": [form]})
    return "sha256:" + hashlib.sha256(canonical).hexdigest()


def _filled(**parts: Any) -> Data:
    """The parts that say something."""
    return {key.rstrip("_"): value for key, value in parts.items() if value not in (None, "", [], {})}


def pair(contract: Contract) -> Data:
    """A contract in the JSON form, numbers in canonical units, defaults written out, parameters replaced."""
    families: dict[str, Data] = {}
    for item in contract.clauses:
        families.setdefault(item.metric.family.value, {})[item.name] = clause(item)
    watched = contract.observability
    out = _filled(
        kind="pair",
        name=contract.name,
        version=contract.version,
        description=contract.description,
        pair={role.role: {"name": role.alias, "kernel": role.kernel} for role in contract.roles},
        assume=assumptions(contract.assumptions),
        slices={item.name: predicate(item.predicate) for item in contract.slices},
        **families,
        guarantee={item.name: clause(item) for item in contract.guarantees},
        split={name: decimal_exact(share) for name, share in contract.splits},
        escalate={item.severity: action(item) for item in contract.actions},
        promote={item.name: stage(item) for item in contract.stages},
    )
    if watched is not None:
        replay = f"{decimal_exact(watched.replay)} s" if watched.replay is not None else ""
        fields = _filled(trace=sorted(watched.trace), fingerprint=sorted(watched.fingerprint), replay=replay)
        out["observability"] = fields
    return out


def assumptions(found: Assumptions) -> Data:
    """The assumptions in the JSON form."""
    out: Data = {}
    for name in _RANGES:
        ends = getattr(found, name)
        if ends is not None:
            out[name] = [decimal_exact(end) for end in (ends.low, ends.high) if end is not None]
    if found.advantage is not None:
        out["advantage"] = [decimal_exact(-found.advantage), decimal_exact(found.advantage)]
    for name, unit in (*_BOUNDS.items(), *_VALUES.items()):
        value = getattr(found, name)
        if value is not None:
            shown = f"{decimal_exact(Fraction(value))}{unit}"
            out[name] = {"at_most": shown} if name in _BOUNDS else shown
    if found.sampler is not None:
        argument = "" if found.sampler.value is None else f"({decimal_exact(found.sampler.value)})"
        out["sampler"] = f"{found.sampler.kind}{argument}"
    if found.storage is not None:
        out["storage"] = found.storage
    if found.independent_tokens:
        out["independent"] = ["tokens"]
    return out


def _unit(metric: Metric) -> str:
    """The unit that a threshold of the metric is written with."""
    dimension = metric.dimension
    return "" if dimension in (Dimension.NONE, *units.UNIT_OPTIONAL) else f" {dimension.value}"


def threshold(value: Threshold, unit: str) -> str:
    """A threshold as a sum in the order of its names; one with names in it and a unit stands in brackets."""
    terms = [f"{decimal_exact(factor)} * {name}" for name, factor in sorted(value.terms)]
    if value.constant or not terms:
        terms.insert(0, decimal_exact(value.constant))
    return " + ".join(terms) + unit


def interval(value: Interval, unit: str = "") -> Any:
    """A closed interval as a list, a half-open one as text."""
    ends = [f"{decimal_exact(end)}{unit}" for end in (value.low, value.high) if end is not None]
    return f"[{ends[0]}, {ends[1]})" if value.open_high else ends


def metric(item: Clause) -> str:
    """The metric with all its arguments."""
    if not item.arguments:
        return item.metric.name
    named = [f"{name} = {value if isinstance(value, str) else decimal_exact(value)}" for name, value in item.arguments]
    return f"{item.metric.name}({', '.join(named)})"


def clause(item: Clause) -> Data:
    """A clause in the JSON form; a quantile is the exception that it means."""
    unit, limit = _unit(item.metric), item.limit
    lower = threshold(limit.lower, unit) if limit.lower is not None else None
    upper = threshold(limit.upper, unit) if limit.upper is not None else None
    both = lower is not None and upper is not None
    hole = "?" if limit.hole else None
    return _filled(
        metric=metric(item),
        statistic="" if item.statistic is Statistic.READING else item.statistic.value,
        in_=[lower, upper] if both else None,
        at_least=(None if both else lower) or (hole if limit.floor else None),
        at_most=(None if both else upper) or (None if limit.floor else hole),
        except_=decimal_exact(item.exception) if item.exception else "",
        slices=sorted(item.slices),
        confidence=decimal_exact(item.confidence) if item.severity else "",
        over=f"{decimal_exact(item.window)} s" if item.window is not None else "",
        unit=item.unit if item.unit != "request" else "",
        when={item.band.parameter: band(item)} if item.band is not None else None,
        severity=item.severity,
    )


def band(item: Clause) -> Any:
    """The interval of a clause's band."""
    assert item.band is not None
    return interval(item.band.interval, " tokens" if item.band.parameter == "horizon" else "")


def predicate(value: Predicate) -> str:
    """A predicate in the language's words, every part of a junction in brackets."""
    if isinstance(value, Conjunction | Disjunction):
        word = " and " if isinstance(value, Conjunction) else " or "
        return word.join(f"({predicate(part)})" for part in value.parts)
    if isinstance(value, Negation):
        return f"not ({predicate(value.part)})"
    if isinstance(value, HasTag):
        return f'tag("{value.tag}")'
    if isinstance(value, FieldWithin):
        ends = interval(value.interval)
        return f"{value.field} in {ends if isinstance(ends, str) else f'[{ends[0]}, {ends[1]}]'}"
    assert isinstance(value, FieldCompare)
    shown = f'"{value.value}"' if isinstance(value.value, str) else decimal_exact(value.value)
    return f"{value.field} {value.operator} {shown}"


def _seconds(value: Fraction | None) -> str:
    return f"{decimal_exact(value)} s" if value is not None else ""


def _requests(value: int | None) -> str:
    return f"{value} requests" if value is not None else ""


def action(item: Action) -> Data:
    """One line of `escalate` in the JSON form."""
    every = _requests(int(item.false_alarm_every)) if item.false_alarm_every and item.false_alarm_unit != "s" else ""
    return _filled(
        action=item.action,
        false_alarm_every=every or _seconds(item.false_alarm_every),
        dwell=_seconds(item.dwell),
        recover=_requests(item.recover),
    )


def stage(item: Stage) -> Data:
    """One stage of `promote` in the JSON form."""
    return _filled(
        data=item.data,
        min=_requests(item.min_requests),
        mirror=decimal_exact(item.mirror) if item.mirror is not None else "",
        traffic=[decimal_exact(share) for share in item.traffic],
        for_=_seconds(item.duration),
        hold=_seconds(item.hold),
        stable=_seconds(item.stable),
    )


def kernel(contract: KernelContract) -> Data:
    """A kernel contract in the JSON form, its lines as the language writes them."""
    return _filled(
        kind="kernel",
        name=contract.name,
        version=contract.version,
        description=contract.description,
        class_=contract.class_name,
        **{name: list(lines) for name, lines in contract.lines},
    )
