"""The five steps in order: corner, linear, lemmas, paving, unknown with the gap."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kcverify.enclosure import precision, rational
from kcverify.prove.guard import guarded
from kcverify.prove.question.corner import corner, ranges_of
from kcverify.prove.question.intervals import UndefinedError, enclosure
from kcverify.prove.question.lemmas import lemmas
from kcverify.prove.question.linear import linear, with_threshold
from kcverify.prove.question.model import Answer, Question, threshold_of
from kcverify.prove.question.paving import paving
from kcverify.prove.verdict import Limits, Status


def decide(question: Question, limits: Limits | None = None) -> Answer:
    """The answer to a question: `PROVED`, `REFUTED` with an exact witness, or `UNKNOWN` with the gap."""
    limits = limits or Limits()
    for step in (corner, linear, lemmas):
        found = step(question, limits)
        if found is not None:
            return found
    found = paving(question, limits)
    if found.status is not Status.UNKNOWN:
        return found
    gaps = [g for g in (found.gap, nearest(question, limits)) if g is not None]
    return replace(found, gap=min(gaps, default=None))


def decide_within(question: Question, seconds: float, limits: Limits | None = None) -> Answer:
    """The same in a child process with a hard stop: a crash or a time-out is `UNKNOWN` with its reason."""
    outcome = guarded(decide, question, limits or Limits(), seconds=seconds)
    if isinstance(outcome.value, Answer):
        return outcome.value
    return Answer(Status.UNKNOWN, "none", outcome.failure)


def proved(question: Question, limits: Limits) -> bool:
    """Whether one of the first three steps proves it."""
    for step in (corner, linear, lemmas):
        found = step(question, limits)
        if found is not None and found.status is Status.PROVED:
            return True
    return False


def nearest(question: Question, limits: Limits) -> Fraction | None:
    """For a goal `f - c`: a threshold above `c` at which it is proved, the smallest found by bisection; None without one."""
    try:
        with precision(limits.ball_bits):
            worst = rational(enclosure(question.goal, ranges_of(question.box)).high, up=True)
    except (UndefinedError, ArithmeticError):
        return None
    low, high = Fraction(0), worst * (1 + Fraction(1, 2**20))
    if worst <= 0 or not proved(with_threshold(question, high), limits):
        return None
    for _ in range(limits.gap_steps):
        middle = (low + high) / 2
        if proved(with_threshold(question, middle), limits):
            high = middle
        else:
            low = middle
    return threshold_of(question) + high
