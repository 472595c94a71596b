"""Compares two typed contracts: what the newer one tightens, loosens, adds and removes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import product
from typing import Any

from kcverify.catalog.model import Statistic
from kcverify.elaborate.contract import Action, Assumptions, Clause, Contract, Interval, Predicate, Stage, Threshold
from kcverify.elaborate.form import predicate as written_predicate
from kcverify.elaborate.numbers import written
from kcverify.elaborate.policy import ACTIONS
from kcverify.source import Span

Covers = Callable[[Predicate, Predicate], bool]


class Kind(StrEnum):
    """What became of one line. `CHANGED` is neither weaker nor stronger."""

    TIGHTENED = "tightened"
    LOOSENED = "loosened"
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Change:
    """One difference: of what (`clause`, `assumption`, ...), its name, in which respects, both places."""

    kind: Kind
    what: str
    name: str
    detail: str = ""
    old: Span | None = None
    new: Span | None = None

    @property
    def weakens(self) -> bool:
        """Whether the newer contract promises less."""
        return self.kind in (Kind.LOOSENED, Kind.REMOVED)


@dataclass(frozen=True)
class _Respect:
    """One respect in which two lines differ: `sign` above 0 weaker, below 0 stronger, 0 neither."""

    text: str
    sign: int


def compare(old: Contract, new: Contract, covers: Covers | None = None) -> tuple[Change, ...]:
    """All differences. `covers(outer, inner)` decides inclusion of slices; without it only equal ones are the same."""
    changes = _clauses(old, new)
    changes += _assumptions(old, new)
    changes += _slices(old, new, covers or (lambda outer, inner: outer == inner))
    changes += _observability(old, new)
    changes += _named("severity", old.actions, new.actions, lambda item: item.severity, _action)
    changes += _named("stage", old.stages, new.stages, lambda item: item.name, _stage)
    changes += _named("role", old.roles, new.roles, lambda item: item.role, _role)
    shares = dict(old.splits), dict(new.splits)
    if shares[0] != shares[1]:
        changes.append(Change(Kind.CHANGED, "split", "", "the shares of the holes", old.span, new.span))
    return tuple(changes)


def _change(what: str, name: str, respects: Iterable[_Respect], old: Span | None, new: Span | None) -> list[Change]:
    """One change of all respects: loosened where any of them is weaker."""
    found = list(respects)
    if not found:
        return []
    worst = max(respect.sign for respect in found)
    kind = Kind.LOOSENED if worst > 0 else Kind.TIGHTENED if any(r.sign < 0 for r in found) else Kind.CHANGED
    shown = [respect.text for respect in found if respect.sign > 0 or worst <= 0]
    return [Change(kind, what, name, "; ".join(shown), old, new)]


def _named(
    what: str,
    old: Iterable[Any],
    new: Iterable[Any],
    name: Callable[[Any], str],
    respects: Callable[[Any, Any], Iterable[_Respect]],
) -> list[Change]:
    """Changes of lines that have a name and a span."""
    before, after = {name(item): item for item in old}, {name(item): item for item in new}
    changes = [Change(Kind.REMOVED, what, key, "", item.span) for key, item in before.items() if key not in after]
    for key, item in after.items():
        if key not in before:
            changes.append(Change(Kind.ADDED, what, key, "", None, item.span))
        else:
            changes += _change(what, key, respects(before[key], item), before[key].span, item.span)
    return changes


def _clauses(old: Contract, new: Contract) -> list[Change]:
    ranges = new.assumptions

    def respects(before: Clause, after: Clause) -> Iterable[_Respect]:
        return _clause(before, after, ranges)

    changes = _named("clause", old.clauses, new.clauses, lambda item: item.name, respects)
    return changes + _named("guarantee", old.guarantees, new.guarantees, lambda item: item.name, respects)


def _number(what: str, old: Fraction | None, new: Fraction | None, sign: int, share: bool = False) -> list[_Respect]:
    """A respect of two numbers; `sign` is that of a larger one (1: weaker). None is the weakest."""
    if old == new:
        return []
    shown = [("none" if x is None else f"{written(x * 100)}%" if share else written(x)) for x in (old, new)]
    weaker = sign if old is not None and new is not None and new > old else -sign
    if old is None or new is None:
        weaker = 1 if new is None else -1
    return [_Respect(f"{what} {shown[1]} instead of {shown[0]}", weaker)]


_GROWS = {("logit_span", "mass"): 1, ("flip_rate", "margin"): -1}
"""Arguments in which a metric only grows (1) or falls (-1), so that the same limit says more on one side."""


def _reads_more(old: Clause, new: Clause) -> bool:
    """Whether the new clause reads a value that is never below the old one's: the same metric, graded further."""
    if (
        (old.metric, old.statistic) != (new.metric, new.statistic)
        or old.limit.upper is None
        or old.limit.lower is not None
    ):
        return False
    pairs = [(name, a, b) for (name, a), (_, b) in zip(old.arguments, new.arguments, strict=True) if a != b]
    signs = [(_GROWS.get((old.metric.name, name), 0), a, b) for name, a, b in pairs]
    return all(isinstance(a, Fraction) and isinstance(b, Fraction) and sign * (b - a) > 0 for sign, a, b in signs)


def _clause(old: Clause, new: Clause, ranges: Assumptions) -> Iterable[_Respect]:
    if (old.metric, old.arguments, old.statistic) != (new.metric, new.arguments, new.statistic):
        tighter = _reads_more(old, new)
        yield _Respect(f"it limits `{_reading(new)}` and not `{_reading(old)}`", -1 if tighter else 1)
        if not tighter:
            return
    yield from _hole(old, new)
    if old.limit.hole == new.limit.hole:
        yield from _side("at most", old.limit.upper, new.limit.upper, 1, ranges)
        yield from _side("at least", old.limit.lower, new.limit.lower, -1, ranges)
    yield from _number("an exception of", old.exception, new.exception, 1, share=True)
    yield from _where(old, new)
    yield from _number("confidence", old.confidence, new.confidence, -1, share=True)
    yield from _number("a window in seconds of", old.window, new.window, 1)
    if old.unit != new.unit:
        yield _Respect(f"the unit of evidence is a {new.unit} and not a {old.unit}", 1 if new.unit == "token" else -1)
    if old.severity != new.severity:
        yield _Respect(f"severity {new.severity} instead of {old.severity}", 1 if new.severity < old.severity else -1)


def _reading(clause: Clause) -> str:
    arguments = ", ".join(f"{n} = {v if isinstance(v, str) else written(v)}" for n, v in clause.arguments)
    statistic = "" if clause.statistic is Statistic.READING else f"{clause.statistic.value} "
    return f"{statistic}{clause.metric.name}{f'({arguments})' if arguments else ''}"


def _hole(old: Clause, new: Clause) -> Iterable[_Respect]:
    if old.limit.hole != new.limit.hole:
        yield _Respect(
            "its limit is left open" if new.limit.hole else "its limit is a number", 1 if new.limit.hole else -1
        )
    elif old.limit.hole and old.limit.floor != new.limit.floor:
        yield _Respect(f"its open limit is `{'>=' if new.limit.floor else '<='} ?`", 1)


def _side(
    what: str, old: Threshold | None, new: Threshold | None, sign: int, ranges: Assumptions
) -> Iterable[_Respect]:
    """One side of a limit; `sign` is that of a larger threshold."""
    if old == new:
        return
    if old is None or new is None:
        yield _Respect(f"{'no limit' if new is None else 'a limit'} {what}", 1 if new is None else -1)
        return
    text = f"{what} {shown(new)} instead of {shown(old)}"
    low, high = _difference(old, new, ranges)
    if low is None or high is None:
        yield _Respect(text, 1)
    elif low < 0 < high:
        yield _Respect(f"{text}, which is weaker for some values", 1)
    elif low or high:
        yield _Respect(text, sign if high > 0 else -sign)


def shown(value: Threshold) -> str:
    """A threshold as a message shows it."""
    terms = [f"{written(factor)} * {name}" for name, factor in value.terms]
    return " + ".join([written(value.constant), *terms] if value.constant or not terms else terms)


def _difference(old: Threshold, new: Threshold, ranges: Assumptions) -> tuple[Fraction | None, Fraction | None]:
    """Smallest and largest value of `new - old` over the assumptions; None where a range is not known."""
    before, after = dict(old.terms), dict(new.terms)
    names = sorted({*before, *after})
    factors = [after.get(name, Fraction(0)) - before.get(name, Fraction(0)) for name in names]
    corners = [_ends(ranges, name) for name, factor in zip(names, factors, strict=True) if factor]
    if any(ends is None for ends in corners):
        return None, None
    moving = [factor for factor in factors if factor]
    sums = [
        sum((f * x for f, x in zip(moving, point, strict=True)), new.constant - old.constant)
        for point in product(*[ends for ends in corners if ends is not None])
    ]
    return min(sums), max(sums)


def _ends(ranges: Assumptions, name: str) -> tuple[Fraction, Fraction] | None:
    """Ends of the values that an assumption may take."""
    value = getattr(ranges, name, None)
    if isinstance(value, Interval):
        return None if value.low is None or value.high is None else (value.low, value.high)
    if value is None:
        return None
    return (Fraction(1), Fraction(value)) if name == "horizon" else (Fraction(0), Fraction(value))


def _where(old: Clause, new: Clause) -> Iterable[_Respect]:
    """Slices and band: a clause that speaks about more contexts is stronger."""
    before, after = set(old.slices), set(new.slices)
    if before != after:
        text = f"on {', '.join(sorted(after)) or 'all traffic'} instead of {', '.join(sorted(before)) or 'all traffic'}"
        pointwise = new.exception == 0 and new.statistic is Statistic.MAX
        wider = bool(before) and ((not after and pointwise) or (bool(after) and after >= before))
        yield _Respect(text, -1 if wider else 1)
    if old.band == new.band:
        return
    same = old.band is not None and new.band is not None and old.band.parameter == new.band.parameter
    if new.band is None:
        yield _Respect("for all values of the assumptions", -1)
    elif same and old.band is not None and _holds(new.band.interval, old.band.interval):
        yield _Respect("a wider band", -1)
    else:
        yield _Respect("another or a narrower band", 1)


def _holds(outer: Interval, inner: Interval) -> bool:
    """Whether an interval holds another."""
    if outer.low is not None and (inner.low is None or inner.low < outer.low):
        return False
    if outer.high is None:
        return True
    if inner.high is None or inner.high > outer.high:
        return False
    return inner.high < outer.high or inner.open_high or not outer.open_high


_LARGER_IS_WIDER = ("horizon", "advantage", "score_norm", "token_score_norm", "log_ratio_sd")


def _assumptions(old: Contract, new: Contract) -> list[Change]:
    """An assumption that allows more makes every guarantee stronger; one more assumption makes each weaker."""
    before, after = old.assumptions, new.assumptions
    changes = []
    for name in vars(before):
        a, b = getattr(before, name), getattr(after, name)
        if name == "spans" or a == b:
            continue
        places = before.spans.get(name, old.span), after.spans.get(name, new.span)
        changes.append(_assumption(name, a, b, bool(old.guarantees), *places))
    return changes


def _assumption(name: str, old: Any, new: Any, claims: bool, before: Span, after: Span) -> Change:
    what = "assumption"
    if old is None or old is False:
        kind = Kind.LOOSENED if claims else Kind.ADDED
        return Change(kind, what, name, "the guarantees hold under one more assumption" if claims else "", None, after)
    if new is None or new is False:
        return Change(Kind.TIGHTENED, what, name, "the guarantees hold without it", before, None)
    if name in ("traffic", "vocabulary"):
        return Change(Kind.CHANGED, what, name, f"{new} instead of {old}", before, after)
    if isinstance(old, Interval) and isinstance(new, Interval):
        wider, narrower = _holds(new, old), "the guarantees hold for fewer values"
    elif name in _LARGER_IS_WIDER:
        wider, narrower = new > old, f"{new} instead of {old}: the guarantees hold for fewer values"
    else:
        wider, narrower = False, "the guarantees are about another setting"
    detail = "the guarantees hold for more values" if wider else narrower
    return Change(Kind.TIGHTENED if wider else Kind.LOOSENED, what, name, detail, before, after)


def _slices(old: Contract, new: Contract, covers: Covers) -> list[Change]:
    after = {item.name: item for item in new.slices}
    used = {name for item in (*new.clauses, *new.guarantees) for name in item.slices}
    changes = []
    for item in old.slices:
        other = after.get(item.name)
        if other is None or other.predicate == item.predicate or item.name not in used:
            continue
        if covers(other.predicate, item.predicate):
            kind, detail = Kind.TIGHTENED, "it holds more requests"
            if covers(item.predicate, other.predicate):
                kind, detail = Kind.CHANGED, "the same requests in other words"
        else:
            kind, detail = Kind.LOOSENED, f"`{written_predicate(other.predicate)}` leaves requests out"
        changes.append(Change(kind, "slice", item.name, detail, item.span, other.span))
    return changes


def _observability(old: Contract, new: Contract) -> list[Change]:
    before, after = old.observability, new.observability
    if before is None or after is None:
        if before is after:
            return []
        kind = Kind.REMOVED if after is None else Kind.ADDED
        places = [watched.span if watched is not None else None for watched in (before, after)]
        return [Change(kind, "block", "observability", "", *places)]
    respects = []
    for kept, fields in (
        ("trace", (before.trace, after.trace)),
        ("fingerprint", (before.fingerprint, after.fingerprint)),
    ):
        gone, more = sorted(set(fields[0]) - set(fields[1])), sorted(set(fields[1]) - set(fields[0]))
        respects += [_Respect(f"{kept} without {', '.join(gone)}", 1)] if gone else []
        respects += [_Respect(f"{kept} with {', '.join(more)}", -1)] if more else []
    respects += _number("replay within", before.replay, after.replay, -1)
    return _change("block", "observability", respects, before.span, after.span)


def _action(old: Action, new: Action) -> Iterable[_Respect]:
    if old.action != new.action:
        weaker = ACTIONS.index(new.action) < ACTIONS.index(old.action)
        yield _Respect(f"{new.action} instead of {old.action}", 1 if weaker else -1)
    if old.false_alarm_unit != new.false_alarm_unit:
        yield _Respect("false alarms counted in requests instead of time, or the other way", 0)
    else:
        unit = "seconds" if new.false_alarm_unit == "s" else "requests"
        yield from _number(f"{unit} between false alarms:", old.false_alarm_every, new.false_alarm_every, 1)
    yield from _number("dwell in seconds:", old.dwell, new.dwell, -1)
    recover = [None if x is None else Fraction(x) for x in (old.recover, new.recover)]
    yield from _number("requests to recover:", recover[0], recover[1], -1)


def _stage(old: Stage, new: Stage) -> Iterable[_Respect]:
    if old.data != new.data:
        yield _Respect(f"data {new.data} instead of {old.data}", 0)
    least = [None if x is None else Fraction(x) for x in (old.min_requests, new.min_requests)]
    yield from _number("least requests:", least[0], least[1], -1)
    for name, what in (
        ("mirror", "mirrored share"),
        ("duration", "seconds"),
        ("hold", "seconds"),
        ("stable", "seconds"),
    ):
        yield from _number(f"{what}:", getattr(old, name), getattr(new, name), -1)
    if old.traffic != new.traffic:
        slower = len(new.traffic) >= len(old.traffic) and all(
            b <= a for a, b in zip(old.traffic, new.traffic, strict=False)
        )
        yield _Respect("other steps of traffic", -1 if slower else 1)


def _role(old: Any, new: Any) -> Iterable[_Respect]:
    if (old.kernel, old.alias) != (new.kernel, new.alias):
        yield _Respect(f"`{new.kernel}` instead of `{old.kernel}`", 0)
