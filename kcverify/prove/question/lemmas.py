"""Step 3: rewriting with lemmas, so that what is left is linear or monotone. A proof of the rewritten goal is a proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations

import sympy as sp

from kcverify.catalog.model import Evidence
from kcverify.enclosure import EnclosureError, KLSpan, precision
from kcverify.prove.question.corner import corner, ranges_of
from kcverify.prove.question.intervals import Ranges, UndefinedError, enclosure
from kcverify.prove.question.linear import linear
from kcverify.prove.question.model import Answer, Question
from kcverify.prove.verdict import Limits, Status


@dataclass(frozen=True)
class Rule:
    """`match` gives for a term a bound on it over the box: from above if `up`, else from below; None where it has none."""

    name: str
    up: bool
    match: Callable[[sp.Expr, Ranges], sp.Expr | None]
    statement: str
    argument: str
    evidence: Evidence = Evidence.PROVED


def _bernoulli(e: sp.Expr, ranges: Ranges) -> sp.Expr | None:
    if not e.is_Pow or not enclosure(e.exp, ranges).low >= 1 or not enclosure(e.base, ranges).low >= 0:
        return None
    return 1 + e.exp * (e.base - 1)


def _nonnegative(e: sp.Expr, ranges: Ranges, func: type) -> bool:
    return e.func is func and bool(enclosure(e.args[0], ranges).low >= 0)


def _hoeffding(e: sp.Expr, ranges: Ranges) -> sp.Expr | None:
    return e.args[0] ** 2 / 8 if _nonnegative(e, ranges, KLSpan) else None


def _pinsker_span(e: sp.Expr, ranges: Ranges) -> sp.Expr | None:
    return 2 * sp.tanh(e.args[0] / 4) ** 2 if _nonnegative(e, ranges, KLSpan) else None


def two_point_kl(a: sp.Expr, b: sp.Expr) -> sp.Expr:
    """KL divergence (nat) between two outcomes of probabilities `a, 1-a` and `b, 1-b`."""
    return a * sp.log(a / b) + (1 - a) * sp.log((1 - a) / (1 - b))


def _pinsker_two_points(e: sp.Expr, ranges: Ranges) -> sp.Expr | None:
    if not e.is_Add:
        return None
    for a, b in permutations(sorted(e.free_symbols, key=str), 2):
        pattern = set(two_point_kl(a, b).args)
        inside = all(enclosure(x, ranges).low > 0 for x in (a, b, 1 - a, 1 - b))
        if pattern <= set(e.args) and inside:
            return 2 * (a - b) ** 2 + sp.Add(*(t for t in e.args if t not in pattern))
    return None


def _tangent_exp(e: sp.Expr, ranges: Ranges) -> sp.Expr | None:
    return 1 + e.args[0] if e.func is sp.exp else None


def _tangent_log(e: sp.Expr, ranges: Ranges) -> sp.Expr | None:
    return e.args[0] - 1 if e.func is sp.log and enclosure(e.args[0], ranges).low > 0 else None


def _tangent_tanh(e: sp.Expr, ranges: Ranges) -> sp.Expr | None:
    return e.args[0] if _nonnegative(e, ranges, sp.tanh) else None


RULES: tuple[Rule, ...] = (
    Rule(
        "bernoulli", False, _bernoulli, "(1-t)^n >= 1 - n t for 0 <= 1-t, n >= 1",
        "b^n is convex in b, and the right side is its tangent at b = 1",
    ),
    Rule(
        "pinsker_two_points", False, _pinsker_two_points, "KL((a, 1-a) || (b, 1-b)) >= 2 (a-b)^2",
        "Pinsker 1964; Csiszar 1967, for two outcomes", Evidence.CITED,
    ),
    Rule("hoeffding", True, _hoeffding, "g(s) <= s^2/8 for s >= 0", "Hoeffding 1963, lemma 1", Evidence.CITED),
    Rule(
        "joint_tv_kl", False, _pinsker_span, "g(s) >= 2 tanh(s/4)^2 for s >= 0",
        "some pair of span s has TV = tanh(s/4) (tv_of_span is attained); its KL is at most g(s) and at least 2 TV^2 (Pinsker)",
    ),
    Rule("tangent_exp", False, _tangent_exp, "exp(x) >= 1 + x", "exp is convex, and 1 + x is its tangent at 0"),
    Rule("tangent_log", True, _tangent_log, "ln x <= x - 1 for x > 0", "ln is concave, and x - 1 is its tangent at 1"),
    Rule("tangent_tanh", True, _tangent_tanh, "tanh x <= x for x >= 0", "tanh is concave on x >= 0, and x is its tangent at 0"),
)  # fmt: skip


def bounded(e: sp.Expr, rule: Rule, ranges: Ranges, *, up: bool) -> sp.Expr:
    """The term with every occurrence that bounds it on the wanted side replaced by the rule; itself where none does."""
    if not e.free_symbols:
        return e
    if rule.up is up:
        found = rule.match(e, ranges)
        if found is not None:
            return found
    if e.is_Add:
        return sp.Add(*(bounded(a, rule, ranges, up=up) for a in e.args))
    if e.is_Mul:
        constant, rest = e.as_coeff_Mul(rational=True)
        if rest.is_Mul:
            return e
        return constant * bounded(rest, rule, ranges, up=up if constant > 0 else not up)
    if e.func in (sp.exp, sp.tanh):
        return e.func(bounded(e.args[0], rule, ranges, up=up))
    if e.is_Pow and e.exp == sp.Rational(1, 2) and up:
        return sp.sqrt(bounded(e.base, rule, ranges, up=True))
    return e


def rewritten(question: Question, rule: Rule) -> Question:
    """A question whose proof proves the original one: its goal is no smaller, its hypotheses are no larger, anywhere."""
    ranges = ranges_of(question.box)
    return replace(
        question,
        goal=bounded(question.goal, rule, ranges, up=True),
        hypotheses=tuple(tuple(bounded(a, rule, ranges, up=False) for a in c) for c in question.hypotheses),
    )


def lemmas(question: Question, limits: Limits) -> Answer | None:
    """Proved where some rewriting, by one rule or by two, is proved by the first two steps."""
    tried: list[tuple[Question, tuple[str, ...]]] = [(question, ())]
    for _ in range(2):
        further = []
        for known, names in tried:
            for rule in RULES:
                try:
                    with precision(limits.ball_bits):
                        new = rewritten(known, rule)
                except (EnclosureError, UndefinedError):
                    continue
                if (new.goal, new.hypotheses) == (known.goal, known.hypotheses):
                    continue
                used = (*names, rule.name)
                found = corner(new, limits) or linear(new, limits)
                if found is not None and found.status is Status.PROVED:
                    return Answer(Status.PROVED, "lemmas", lemmas=used)
                further.append((new, used))
        tried = further
    return None
