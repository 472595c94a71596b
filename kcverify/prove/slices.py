"""Slices decided by z3: emptiness, inclusion and overlap, and what they say about the clauses of a contract.

Counts are whole numbers from 0, other fields are exact rationals or texts (of which only equality matters), tags are
booleans. Every answer is True, False, or None where the solver gave up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import permutations

import z3

from kcverify.catalog.model import Statistic
from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import (
    Clause,
    Conjunction,
    Contract,
    Disjunction,
    FieldWithin,
    HasTag,
    Interval,
    Negation,
    Predicate,
    SliceDef,
)
from kcverify.elaborate.membership import Field
from kcverify.elaborate.slices import COUNTS
from kcverify.prove.verdict import Limits


@dataclass
class _Names:
    """The solver's variables of trace fields and tags, and a number for each text."""

    numbers: dict[str, z3.ArithRef] = field(default_factory=dict)
    texts: dict[str, z3.ArithRef] = field(default_factory=dict)
    tags: dict[str, z3.BoolRef] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> z3.ArithRef:
        """The value of a field as a number."""
        if name not in self.numbers:
            self.numbers[name] = z3.Int(f"count.{name}") if name in COUNTS else z3.Real(f"number.{name}")
        return self.numbers[name]

    def text(self, name: str) -> z3.ArithRef:
        """The value of a field as a text: the number that stands for it."""
        return self.texts.setdefault(name, z3.Int(f"text.{name}"))

    def tag(self, name: str) -> z3.BoolRef:
        """Whether the request carries the tag."""
        return self.tags.setdefault(name, z3.Bool(f"tag.{name}"))

    def code(self, text: str) -> int:
        """The number that stands for a text."""
        return self.codes.setdefault(text, len(self.codes))

    def is_text(self, name: str) -> z3.BoolRef:
        """Whether a field holds a text; it holds a text or a number."""
        return z3.Bool(f"holds_text.{name}")

    def background(self) -> list[z3.BoolRef]:
        """Counts are never negative."""
        return [x >= 0 for name, x in self.numbers.items() if name in COUNTS]


def _numeral(x: Fraction) -> z3.ArithRef:
    return z3.RealVal(f"{x.numerator}/{x.denominator}")


_COMPARE: dict[str, Callable[[z3.ArithRef, z3.ArithRef], z3.BoolRef]] = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def _formula(names: _Names, value: Predicate) -> z3.BoolRef:
    """The predicate over the solver's variables."""
    if isinstance(value, Conjunction):
        return z3.And([_formula(names, part) for part in value.parts])
    if isinstance(value, Disjunction):
        return z3.Or([_formula(names, part) for part in value.parts])
    if isinstance(value, Negation):
        return z3.Not(_formula(names, value.part))
    if isinstance(value, HasTag):
        return names.tag(value.tag)
    if isinstance(value, FieldWithin):
        return _holds_number(names, value.field, _inside(names.number(value.field), value.interval))
    compare = _COMPARE[value.operator]
    if isinstance(value.value, str):
        inside = compare(names.text(value.field), z3.IntVal(names.code(value.value)))
        return z3.And(names.is_text(value.field), inside)
    return _holds_number(names, value.field, compare(names.number(value.field), _numeral(value.value)))


def _holds_number(names: _Names, name: str, inside: z3.BoolRef) -> z3.BoolRef:
    return inside if name in COUNTS else z3.And(z3.Not(names.is_text(name)), inside)


def _inside(x: z3.ArithRef, interval: Interval) -> z3.BoolRef:
    parts = [x >= _numeral(interval.low)] if interval.low is not None else []
    if interval.high is not None:
        parts.append(x < _numeral(interval.high) if interval.open_high else x <= _numeral(interval.high))
    return z3.And(parts)


def _satisfiable(names: _Names, formulas: list[z3.BoolRef], limits: Limits) -> bool | None:
    solver = z3.Solver()
    solver.set("timeout", limits.solver_ms)
    solver.add(names.background())
    solver.add(formulas)
    answer = solver.check()
    return None if answer == z3.unknown else bool(answer == z3.sat)


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def is_empty(predicate: Predicate, limits: Limits | None = None) -> bool | None:
    """Whether no request can be in the slice."""
    names = _Names()
    return _not(_satisfiable(names, [_formula(names, predicate)], limits or Limits()))


def includes(outer: Predicate, inner: Predicate, limits: Limits | None = None) -> bool | None:
    """Whether every request of `inner` is in `outer`."""
    names = _Names()
    formulas = [_formula(names, inner), z3.Not(_formula(names, outer))]
    return _not(_satisfiable(names, formulas, limits or Limits()))


def overlaps(a: Predicate, b: Predicate, limits: Limits | None = None) -> bool | None:
    """Whether a request can be in both."""
    names = _Names()
    return _satisfiable(names, [_formula(names, a), _formula(names, b)], limits or Limits())


def excludes(
    predicate: Predicate, fields: Mapping[str, Field], tags: Set[str] = frozenset(), limits: Limits | None = None
) -> bool | None:
    """Whether a request with these fields and exactly these tags is not in the slice, whatever its other fields are."""
    names = _Names()
    formulas = [_formula(names, predicate)]
    formulas += [x if name in tags else z3.Not(x) for name, x in names.tags.items()]
    for name, value in fields.items():
        if isinstance(value, str):
            formulas += [names.is_text(name), names.text(name) == names.code(value)]
        elif not isinstance(value, bool):
            formulas += [z3.Not(names.is_text(name)), names.number(name) == _numeral(Fraction(value))]
    return _not(_satisfiable(names, formulas, limits or Limits()))


def slice_findings(contract: Contract, report: Report, limits: Limits | None = None) -> None:
    """Reports slices that are empty or unused, and clauses on slices that conflict or that others cover."""
    limits = limits or Limits()
    used = {name for clause in (*contract.clauses, *contract.guarantees) for name in clause.slices}
    filled: dict[str, SliceDef] = {}
    for item in contract.slices:
        if is_empty(item.predicate, limits) is True:
            report.add("slice_empty", item.span, name=item.name)
        elif item.name in used:
            filled[item.name] = item
        if item.name not in used:
            report.add("slice_unused", item.span, name=item.name)
    pairs = Pairs(filled, limits)
    clauses = [clause for clause in contract.clauses if clause.slices and not clause.limit.hole]
    for earlier, later in _worth_asking(pairs, clauses):
        _conflict(pairs, earlier, later, report)
        _covered(pairs, earlier, later, report)
        _covered(pairs, later, earlier, report)


def _worth_asking(pairs: Pairs, clauses: list[Clause]) -> list[tuple[Clause, Clause]]:
    """Comparable clauses, the earlier first, that may conflict or cover each other; ordered as they stand.

    Clauses are compared in families of one reading, and there only where a floor lies above a ceiling, or one slice lies
    in another: many clauses on slices that have nothing to do with each other cost little.
    """
    families: dict[object, dict[tuple[str, ...], list[int]]] = {}
    for index, clause in enumerate(clauses):
        if _is_plain(clause):
            family = families.setdefault(_family(clause), {})
            family.setdefault(clause.slices, []).append(index)
    found: set[tuple[int, int]] = set()
    for family in families.values():
        found |= _apart(clauses, [i for places in family.values() for i in places])
        for inner, outer in permutations(family, 2):
            if not set(inner) & set(outer) and pairs.inside(inner, outer):
                found |= {
                    (max(i, j), min(i, j))
                    for j in family[outer]
                    if _reaches_parts(clauses[j])
                    for i in family[inner]
                    if _tighter(clauses[j], clauses[i])
                }
    return [(clauses[earlier], clauses[later]) for later, earlier in sorted(found)]


def _family(clause: Clause) -> object:
    return (clause.metric.name, clause.arguments, clause.statistic, clause.band)


def _apart(clauses: list[Clause], family: list[int]) -> set[tuple[int, int]]:
    """Places, the later first, of clauses of one family without exception on different slices, a floor above a ceiling."""
    bounds = {i: _bounds(clauses[i]) for i in family if not clauses[i].exception}
    lows = {i: low for i, (low, _) in bounds.items() if low is not None}
    highs = {i: high for i, (_, high) in bounds.items() if high is not None}
    if not lows or not highs or max(lows.values()) <= min(highs.values()):
        return set()
    least, most = min(highs.values()), max(lows.values())
    floors, ceilings = [i for i in lows if lows[i] > least], [i for i in highs if highs[i] < most]
    return {
        (max(i, j), min(i, j))
        for i in floors
        for j in ceilings
        if lows[i] > highs[j] and not set(clauses[i].slices) & set(clauses[j].slices)
    }


def _reaches_parts(clause: Clause) -> bool:
    """Whether the clause says something on every part of its slices: an exceeding share, or a mean, may gather in one."""
    return clause.statistic is Statistic.MAX and not clause.exception


@dataclass
class Pairs:
    """Answers about two named slices, each asked of the solver once.

    Slices that read different fields and tags are decided by what is known of each alone.
    """

    slices: dict[str, SliceDef]
    limits: Limits
    known: dict[tuple[str, str, str], bool | None] = field(default_factory=dict)
    alone: dict[tuple[str, bool], bool | None] = field(default_factory=dict)
    words: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)

    def ask(self, question: Callable[[Predicate, Predicate, Limits], bool | None], a: str, b: str) -> bool:
        """Whether the answer is a certain yes; a slice that is empty or faulty has none."""
        if a not in self.slices or b not in self.slices:
            return False
        key = (question.__name__, a, b)
        if key not in self.known:
            self.known[key] = self._answer(question, a, b)
        return self.known[key] is True

    def inside(self, inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
        """Whether each slice of `inner` lies in one of `outer`."""
        return all(any(self.ask(includes, big, small) for big in outer) for small in inner)

    def _answer(self, question: Callable[[Predicate, Predicate, Limits], bool | None], a: str, b: str) -> bool | None:
        """`question` is `includes` or `overlaps`: whether `b` can hold beside `a` failing, or beside it holding."""
        if not self._words(a) & self._words(b):
            holds = question is overlaps
            if self._possible(a, holds) and self._possible(b, True):
                return holds
        return question(self.slices[a].predicate, self.slices[b].predicate, self.limits)

    def _possible(self, name: str, holds: bool) -> bool:
        """Whether a request can surely be in the slice, or outside it."""
        if (name, holds) not in self.alone:
            predicate = self.slices[name].predicate
            self.alone[name, holds] = is_empty(predicate if holds else Negation(predicate), self.limits)
        return self.alone[name, holds] is False

    def _words(self, name: str) -> frozenset[tuple[str, str]]:
        """Fields and tags that the slice reads."""
        if name not in self.words:
            names = _Names()
            _formula(names, self.slices[name].predicate)
            fields = {("field", x) for x in (*names.numbers, *names.texts)}
            self.words[name] = frozenset(fields | {("tag", x) for x in names.tags})
        return self.words[name]


def _is_plain(clause: Clause) -> bool:
    """Whether the clause limits its reading with plain numbers."""
    return all(limit is None or limit.is_constant for limit in (clause.limit.lower, clause.limit.upper))


def _bounds(clause: Clause) -> tuple[Fraction | None, Fraction | None]:
    lower, upper = clause.limit.lower, clause.limit.upper
    return lower.constant if lower is not None else None, upper.constant if upper is not None else None


def _conflict(pairs: Pairs, a: Clause, b: Clause, report: Report) -> None:
    """Reports two clauses whose limits no value meets, on slices that share requests."""
    if a.exception or b.exception:
        return
    (low_a, high_a), (low_b, high_b) = _bounds(a), _bounds(b)
    apart = _above(low_a, high_b) or _above(low_b, high_a)
    for one in a.slices if apart else ():
        for other in b.slices:
            if one != other and pairs.ask(overlaps, one, other):
                related = [Related(a.span, f"`{a.name}` on `{one}`")]
                report.add("slice_conflict", b.value_span, related=related, first=one, second=other)
                return


def _above(low: Fraction | None, high: Fraction | None) -> bool:
    return low is not None and high is not None and low > high


def _covered(pairs: Pairs, inner: Clause, outer: Clause, report: Report) -> None:
    """Reports `inner` where each of its slices lies in one on which `outer` is tighter."""
    if not _reaches_parts(outer) or not _tighter(outer, inner):
        return
    homes = [next((big for big in outer.slices if pairs.ask(includes, big, small)), None) for small in inner.slices]
    if all(home is not None for home in homes):
        related = [Related(outer.span, f"`{outer.name}` is tighter")]
        names = {"name": inner.name, "inner": inner.slices[0], "other": outer.name, "outer": str(homes[0])}
        report.add("slice_covered", inner.span, hint="", related=related, **names)


def _tighter(a: Clause, b: Clause) -> bool:
    """Whether the limits of `a` lie within those of `b`, and are not the same."""
    (low_a, high_a), (low_b, high_b) = _bounds(a), _bounds(b)
    low = low_b is None or (low_a is not None and low_a >= low_b)
    high = high_b is None or (high_a is not None and high_a <= high_b)
    return low and high and ((low_a, high_a) != (low_b, high_b) or b.exception > 0)


def inherited(contract: Contract, limits: Limits | None = None) -> Contract:
    """The contract with every clause also on the slices that lie inside its own, as far as it says something there.

    A pointwise clause without exception holds on every part of its slice; an exception, or a mean, may gather in a
    part, so such a clause is not inherited. For the prover only: what is measured is what is written.
    """
    if len({s.name for s in contract.slices}) < 2:
        return contract
    pairs = Pairs({s.name: s for s in contract.slices}, limits or Limits())
    wanted = {name for g in contract.guarantees for name in g.slices}
    known: dict[tuple[str, ...], list[str]] = {}

    def widened(clause: Clause) -> Clause:
        if clause.statistic is not Statistic.MAX or clause.exception or not clause.slices:
            return clause
        own = clause.slices
        if own not in known:
            known[own] = sorted(n for n in wanted if n not in own and pairs.inside((n,), own))
        return replace(clause, slices=(*own, *known[own])) if known[own] else clause

    return replace(contract, clauses=tuple(widened(c) for c in contract.clauses))
