"""Step 2: fix what has one polarity, peel the rest, and ask for two linear formulas, one weaker and one stronger."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import sympy as sp
import z3

from kcverify.enclosure import EnclosureError, precision
from kcverify.prove.linear import z
from kcverify.prove.question.corner import ranges_of
from kcverify.prove.question.intervals import UndefinedError, signs
from kcverify.prove.question.model import Answer, Question, refutes
from kcverify.prove.question.peel import Peeler
from kcverify.prove.verdict import Limits, Status


def eliminate(question: Question) -> dict[sp.Symbol, Fraction]:
    """Symbols fixed at the end of their range at which a counterexample is easiest, one after another.

    A symbol is fixed where every atom pulls to the same end: the goal upwards, the hypotheses downwards.
    """
    box = dict(question.box)
    fixed: dict[sp.Symbol, Fraction] = {}
    parts = [(question.goal, 1), *((atom, -1) for clause in question.hypotheses for atom in clause)]
    for s in sorted(box, key=str):
        ranges = ranges_of(box)
        wanted: set[int] = set()
        for expr, side in parts:
            if s in expr.free_symbols:
                sign = signs(expr, ranges).get(s)
                wanted.add(0 if sign is None else side * sign)
        if wanted and wanted <= {1}:
            fixed[s] = box[s][1]
        elif (wanted and wanted <= {-1}) or not wanted or box[s][0] == box[s][1]:
            fixed[s] = box[s][0]
        if s in fixed:
            box[s] = (fixed[s], fixed[s])
    return fixed


def formulas(
    question: Question, fixed: dict[sp.Symbol, Fraction], bits: int, *, weaken: bool
) -> tuple[Peeler, list[z3.BoolRef]]:
    """The box, the clauses and the negated goal over the symbols that are left; linear, on one side of the truth."""
    free = {s: r for s, r in question.box.items() if s not in fixed}
    values = {s: sp.Rational(x.numerator, x.denominator) for s, x in fixed.items()}
    peeler = Peeler(ranges_of(free), bits, weaken)
    out = [z3.Or([peeler.formula(a.xreplace(values), at_most=True) for a in clause]) for clause in question.hypotheses]
    out.append(peeler.formula(question.goal.xreplace(values), at_most=False))
    for s, (low, high) in free.items():
        x = peeler.variable(s)
        out += [x >= z(low), x <= z(high)]
    return peeler, [*out, *peeler.opaque()]


def _point(
    question: Question, fixed: dict[sp.Symbol, Fraction], peeler: Peeler, model: z3.ModelRef
) -> dict[sp.Symbol, Fraction]:
    out = dict(fixed)
    for s, (low, _) in question.box.items():
        if s not in out:
            value = model.eval(peeler.variable(s), model_completion=True)
            known = z3.is_rational_value(value)
            out[s] = Fraction(value.numerator_as_long(), value.denominator_as_long()) if known else low
    return out


def _ask(constraints: list[z3.BoolRef], limits: Limits) -> tuple[z3.CheckSatResult, z3.ModelRef | None]:
    solver = z3.SolverFor("QF_LRA")
    solver.set("timeout", limits.solver_ms)
    solver.add(constraints)
    result = solver.check()
    return result, solver.model() if result == z3.sat else None


def linear(question: Question, limits: Limits) -> Answer | None:
    """Proved where the weakened formula has no model; refuted where a model of the stronger one is a counterexample."""
    bits = limits.constant_bits
    for _ in range(limits.doublings + 1):
        with precision(max(limits.ball_bits, 2 * bits)):
            try:
                fixed = eliminate(question)
                _, weak = formulas(question, fixed, bits, weaken=True)
                result, _ = _ask(weak, limits)
                if result == z3.unsat:
                    return Answer(Status.PROVED, "linear")
                peeler, strong = formulas(question, fixed, bits, weaken=False)
                result, model = _ask(strong, limits)
            except (EnclosureError, UndefinedError, ZeroDivisionError):
                return None
        if model is not None:
            point = _point(question, fixed, peeler, model)
            return Answer(Status.REFUTED, "linear", witness=point) if refutes(question, point) else None
        if result == z3.unknown:
            return None
        bits *= 2
    return None


def smtlib(question: Question, limits: Limits) -> str:
    """The weakened formula as SMT-LIB: `unsat` is a second opinion in favour of the goal."""
    with precision(max(limits.ball_bits, 2 * limits.constant_bits)):
        _, weak = formulas(question, eliminate(question), limits.constant_bits, weaken=True)
    solver = z3.SolverFor("QF_LRA")
    solver.add(weak)
    return "(set-logic QF_LRA)\n" + str(solver.to_smt2())


def with_threshold(question: Question, shift: Fraction) -> Question:
    """The question with its goal `f <= c` loosened to `f <= c + shift`."""
    return replace(question, goal=question.goal - sp.Rational(shift.numerator, shift.denominator))
