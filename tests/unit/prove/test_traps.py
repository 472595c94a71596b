"""Every trap of the solvers and number libraries that we met: what goes wrong there, and that our answer is right."""

from __future__ import annotations

import re
from fractions import Fraction as F
from pathlib import Path

import mpmath
import pytest
import sympy as sp
import z3
from flint import arb
from questions import TV, T, d, q, s, tv

import kcverify.prove
from kcverify.driver import load_source
from kcverify.enclosure import EnclosureError, ball, enclose, precision, rational, root_down, value_down, value_up
from kcverify.exact import monitor_float_down, monitor_float_up
from kcverify.prove.linear import z
from kcverify.prove.prover import prove
from kcverify.prove.question import Question, decide
from kcverify.prove.question.linear import linear
from kcverify.prove.verdict import Limits, Status
from kcverify.source import Source

x = sp.Symbol("x", nonnegative=True)


def _dyadic(value):
    sign, mantissa, exponent, _ = value
    return (-1 if sign else 1) * F(int(mantissa)) * F(2) ** int(exponent)


@pytest.mark.parametrize(
    ("point", "bits"),
    [(F(3893924827815215, 2**50), 53), (F(1381846513289487, 2**46), 113)],
    ids=["double", "quadruple"],
)
def test_mpmath_intervals_need_not_enclose_and_ours_do(point, bits):
    iv = mpmath.iv
    before = iv.prec
    try:
        iv.prec = bits
        low, high = (_dyadic(end) for end in iv.exp(iv.mpf(point.numerator) / point.denominator)._mpi_)
    finally:
        iv.prec = before
    with precision(400):
        truth = ball(point).exp()
        assert not ball(low) <= truth <= ball(high), "mpmath has mended this: the trap can go"
        assert ball(value_down(sp.exp(x), {x: point})) <= truth <= ball(value_up(sp.exp(x), {x: point}))


def test_sympy_finds_roots_of_rootless_functions_and_roots_past_the_root():
    t = sp.Symbol("t", positive=True)
    assert abs(sp.nsolve(sp.Abs(t - 1) + sp.Rational(1, 10**16), t, 1.3) - 1) < 1e-12
    found = F(str(sp.nsolve(sp.tanh(t / 2) - sp.Rational(1, 100), t, 0.02)))
    root = root_down(sp.tanh(x / 2), x, F(1, 100), {})
    assert value_up(sp.tanh(x / 2), {x: root}) <= F(1, 100)
    assert abs(found - root) < F(1, 10**12)
    assert root_down(sp.Abs(x - 1) + sp.Rational(1, 10**16), x, F(0), {}) == 0


def test_z3_reads_a_float_as_its_shortest_decimal_and_ours_are_exact():
    exact = F(0.1)
    assert z3.simplify(z3.RealVal(0.1) == z3.RealVal("1/10"))
    assert F(z(exact).numerator_as_long(), z(exact).denominator_as_long()) == exact != F(1, 10)
    with pytest.raises(ValueError, match="floating-point"):
        Question({d: (F(0), F(1))}, d - sp.Float(0.1))


def test_z3_divides_by_zero_and_ours_refuses():
    solver = z3.Solver()
    y = z3.Real("y")
    solver.add(y == 0, 1 / y == 7)
    assert solver.check() == z3.sat
    assert linear(Question({d: (F(0), F(1))}, 1 / d - 7), Limits()) is None
    with pytest.raises((EnclosureError, ZeroDivisionError)):
        value_up(1 / x, {x: F(0)})


def test_no_verdict_rests_on_a_solver_of_transcendentals_or_on_floats():
    words = re.compile(r"mpmath|nsolve|evalf|Optimize|\bsp\.N\(|\bfloat\(|\.exp\(z3|Exponential|as_decimal")
    folder = Path(kcverify.prove.__file__).parent
    deciding = ("corner", "linear", "obligations", "consistency", "prover", "replay", "verdict")
    for path in (*(folder / f"{name}.py" for name in deciding), *sorted((folder / "question").glob("*.py"))):
        hits = [line for line in path.read_text(encoding="utf-8").splitlines() if words.search(line)]
        assert not hits or path.name == "paving.py", (path.name, hits)  # there: the order in which boxes are cut


@pytest.mark.parametrize("n", [128, 4096])
def test_long_powers_are_decided_at_once(n):
    with precision(400):
        truth = 1 - (1 - ball(F(1, 10**4))) ** n
        above, below = rational(truth, up=True, bits=60), rational(truth, up=False, bits=60)
    box = {tv: (F(0), F(1, 10**4))}
    goal = 1 - (1 - tv) ** n
    assert decide(Question(box, goal - sp.Rational(above.numerator, above.denominator))).status is Status.PROVED
    assert decide(Question(box, goal - sp.Rational(below.numerator, below.denominator))).status is Status.REFUTED
    coupled = Question({tv: (F(0), F(1))}, goal - sp.Rational(above.numerator, above.denominator), ((tv - q("1e-4"),),))
    assert linear(coupled, Limits()).status is Status.PROVED


def test_closed_bands_leave_a_hole_at_their_edge():
    box = {d: (F(0), F(1)), T: (F(3, 5), F(6, 5))}
    bands = ((q("0.8") - T, d - q("0.02")), (T - q("0.8"), d - q("0.03")))
    answer = decide(Question(box, TV - q("0.0188"), bands))
    assert answer.status is Status.REFUTED
    assert answer.witness[T] == F(4, 5)


BANDS = """contract bands
assume {{ temperature in [0.6, 1.2]; sampler = full_softmax; horizon <= 1 tokens }}
numerical {{
  cold: logit_drift <= 0.02 when temperature in [0.6, {edge}) -> L1
  warm: logit_drift <= 0.03 when temperature in [{warm}, 1.2] -> L1
}}
guarantee {{ safe: tv <= 0.0188 }}
"""


@pytest.mark.parametrize(
    ("edge", "warm", "status"), [("0.8", "0.8", "PROVED"), ("0.8", "0.8001", "REFUTED"), ("0.79", "0.8", "REFUTED")]
)
def test_half_open_bands_meet_and_a_hole_is_seen(edge, warm, status):
    (contract,) = load_source(Source("t", BANDS.format(edge=edge, warm=warm))).contracts
    assert [v.status.value for v in prove(contract)] == [status]


def test_exact_rationals_are_not_rounded():
    third = sp.Rational(1, 3)
    box = {d: (F(0), F(1, 3)), T: (F(1), F(1))}
    for bits in (6, 12, 128):
        effort = Limits(constant_bits=bits, doublings=0)
        assert linear(Question(box, d - third), effort).status is Status.PROVED
        assert linear(Question(box, d - third * T), effort).status is Status.PROVED
        assert linear(Question({**box, T: (F(1, 2), F(1))}, d - third * T), effort).status is Status.REFUTED
    assert value_up(x / 3, {x: F(1)}) == F(1, 3)


def test_an_overlap_is_neither_true_nor_false():
    wide, other = arb(0, 1), arb("0.5", 1)
    assert not wide < other and not wide >= other
    assert rational(wide, up=True) >= 1 and rational(wide, up=False) <= -1


def test_the_middle_of_a_ball_is_no_bound():
    with precision(53):
        value = ball(F(1, 40)).tanh()
    with precision(400):
        truth = ball(F(1, 40)).tanh()
        assert ball(rational(value, up=True, bits=20)) >= truth >= ball(rational(value, up=False, bits=20))
        assert (
            ball(F(monitor_float_down(rational(value, up=False))))
            <= truth
            <= ball(F(monitor_float_up(rational(value, up=True))))
        )


def test_a_double_of_the_exact_value_is_told_from_its_neighbours():
    with precision(400):
        truth = enclose(sp.tanh(x), {x: F(1, 40)}, 400)
        near = monitor_float_down(rational(truth, up=False, bits=300))
    for number, status in ((F(near), Status.REFUTED), (F(monitor_float_up(F(near) + F(1, 10**30))), Status.PROVED)):
        goal = sp.tanh(s) - sp.Rational(number.numerator, number.denominator)
        assert decide(Question({s: (F(0), F(1, 40))}, goal)).status is status
