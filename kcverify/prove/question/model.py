"""A question and its answer: a box, hypotheses in clauses, a goal, all over exact rationals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy as sp

from kcverify.enclosure import EnclosureError, enclose, precision, value_down, value_up
from kcverify.prove.verdict import Status

Box = Mapping[sp.Symbol, tuple[Fraction, Fraction]]
Point = Mapping[sp.Symbol, Fraction]
Clauses = tuple[tuple[sp.Expr, ...], ...]

WITNESS_BITS = 400


@dataclass(frozen=True)
class Question:
    """Whether `goal <= 0` on every point of `box` at which every clause has an atom `<= 0`.

    Expressions are built from rationals and the box's symbols by rational operations, `exp`, `log`, `tanh`, `sqrt`,
    integer and symbolic powers, `Abs` and `KLSpan`. No floating-point number may occur in them.
    """

    box: Box
    goal: sp.Expr
    hypotheses: Clauses = ()
    name: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a float, a symbol without a range, or a range upside down."""
        for expr in (self.goal, *(atom for clause in self.hypotheses for atom in clause)):
            if expr.atoms(sp.Float):
                raise ValueError(f"a floating-point number in {expr}: write a fraction")
            if not expr.free_symbols <= set(self.box):
                raise ValueError(f"no range for {sorted(map(str, expr.free_symbols - set(self.box)))}")
        if any(low > high for low, high in self.box.values()):
            raise ValueError("a range upside down")


@dataclass(frozen=True)
class Answer:
    """`step` decided; `lemmas` are those that were used; `witness` refutes; `gap` is the least threshold proved instead."""

    status: Status
    step: str
    reason: str = ""
    lemmas: tuple[str, ...] = ()
    witness: Point | None = None
    gap: Fraction | None = None


def holds(atom: sp.Expr, point: Point) -> bool:
    """Whether `atom <= 0` at an exact point, for certain."""
    try:
        if value_up(atom, point) <= 0:
            return True
        with precision(WITNESS_BITS):
            return bool(enclose(atom, point, WITNESS_BITS).upper() <= 0)
    except (EnclosureError, ZeroDivisionError):
        return False


def fails(atom: sp.Expr, point: Point) -> bool:
    """Whether `atom > 0` at an exact point, for certain."""
    try:
        return value_down(atom, point) > 0
    except (EnclosureError, ZeroDivisionError):
        return False


def refutes(question: Question, point: Point) -> bool:
    """Whether an exact point lies in the box, meets every clause and breaks the goal, re-evaluated at 400 bits or more."""
    inside = all(low <= point[s] <= high for s, (low, high) in question.box.items())
    return (
        inside
        and fails(question.goal, point)
        and all(any(holds(atom, point) for atom in clause) for clause in question.hypotheses)
    )


def threshold_of(question: Question) -> Fraction:
    """`c` of a goal `f - c`."""
    constant, _ = question.goal.as_coeff_Add(rational=True)
    return -Fraction(int(constant.p), int(constant.q))
