"""Step 4: branch and prune. The box is cut until every part holds the goal or breaks a clause, under a hard budget."""

from __future__ import annotations

import heapq
from fractions import Fraction
from itertools import count

import sympy as sp
from flint import arb

from kcverify.enclosure import precision, rational
from kcverify.prove.question.corner import ranges_of
from kcverify.prove.question.intervals import Interval, Ranges, UndefinedError, enclosure, slopes
from kcverify.prove.question.model import Answer, Question, refutes, threshold_of
from kcverify.prove.verdict import Limits, Status

Box = dict[sp.Symbol, tuple[Fraction, Fraction]]


def _excluded(question: Question, ranges: Ranges) -> bool:
    """Whether some clause has no atom that can hold on the box."""
    for clause in question.hypotheses:
        try:
            if all(enclosure(atom, ranges).low > 0 for atom in clause):
                return True
        except UndefinedError:
            continue
    return False


def _upper(question: Question, box: Box, ranges: dict[sp.Symbol, Interval]) -> tuple[arb, dict[sp.Symbol, Fraction]]:
    """An upper bound of the goal on the box, and the point at which it may be largest.

    Where the goal is monotone in a symbol, only that end of its range counts.
    """
    about = tuple(question.goal.free_symbols)
    point = {s: (low + high) / 2 for s, (low, high) in box.items()}
    try:
        value, gradient = slopes(question.goal, ranges, about)
    except UndefinedError:
        return arb("inf"), point
    narrow = dict(ranges)
    for s, slope in gradient.items():
        if slope.low >= 0 or slope.high <= 0:
            end = 1 if slope.low >= 0 else 0
            point[s] = box[s][end]
            narrow[s] = ranges_of({s: (point[s], point[s])})[s]
    try:
        better = enclosure(question.goal, narrow)
    except UndefinedError:
        return value.high, point
    return (better.high if better.high < value.high else value.high), point


def _spent(question: Question, limits: Limits, left: list[arb]) -> Answer:
    """The answer when the budget is spent: the gap is what the boxes that are left still allow."""
    reason = f"the paving needs more than {limits.boxes} boxes"
    worst = left[0]
    for high in left[1:]:
        worst = high if high > worst else worst
    gap = threshold_of(question) + rational(worst, up=True) if worst.is_finite() else None
    return Answer(Status.UNKNOWN, "paving", reason, gap=gap)


def paving(question: Question, limits: Limits) -> Answer:
    """Proved by a finite paving, refuted by a point that was re-evaluated, else unknown when the budget is spent."""
    start: Box = dict(question.box)
    widths = {s: high - low for s, (low, high) in start.items()}
    order = count()
    heap: list[tuple[float, int, arb, Box]] = [(0.0, next(order), arb("inf"), start)]
    spent = 0
    with precision(limits.ball_bits):
        while heap:
            if spent >= limits.boxes:
                return _spent(question, limits, [high for _, _, high, _ in heap])
            _, _, _, box = heapq.heappop(heap)
            spent += 1
            ranges = ranges_of(box)
            if _excluded(question, ranges):
                continue
            high, point = _upper(question, box, ranges)
            if high <= 0:
                continue
            middle = {s: (low + top) / 2 for s, (low, top) in box.items()}
            for candidate in (point, middle):
                if refutes(question, candidate):
                    return Answer(Status.REFUTED, "paving", witness=candidate)
            widest = max(
                box, key=lambda s: (box[s][1] - box[s][0]) / widths[s] if widths[s] else Fraction(0), default=None
            )
            if widest is None or box[widest][0] == box[widest][1]:
                return Answer(Status.UNKNOWN, "paving", "a single point is not decided at this precision")
            rank = -float(high.mid()) if high.is_finite() else -1e300
            low, top = box[widest]
            for part in ((low, middle[widest]), (middle[widest], top)):
                heapq.heappush(heap, (rank, next(order), high, {**box, widest: part}))
    return Answer(Status.PROVED, "paving")
