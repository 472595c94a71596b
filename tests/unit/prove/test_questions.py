"""The question engine on the 35 questions, and each of its steps on its own."""

from __future__ import annotations

import time
from dataclasses import fields
from fractions import Fraction as F

import pytest
import sympy as sp
from questions import KL, QUESTIONS, TV, T, a, b, d, q, s, tv

from kcverify.enclosure import KLSpan, ball, enclose, precision
from kcverify.prove.guard import guarded
from kcverify.prove.question import Question, decide, decide_within
from kcverify.prove.question.corner import corner
from kcverify.prove.question.intervals import UndefinedError, enclosure, hull, signs
from kcverify.prove.question.lemmas import RULES, lemmas
from kcverify.prove.question.linear import eliminate, linear
from kcverify.prove.question.model import refutes
from kcverify.prove.question.paving import paving
from kcverify.prove.question.peel import span_of_kl
from kcverify.prove.verdict import Limits, Status

TRUTH = {Status.PROVED: True, Status.REFUTED: False}


@pytest.fixture(scope="module")
def answers():
    return {k.question.name: decide(k.question) for k in QUESTIONS}


def test_there_are_35():
    assert len(QUESTIONS) == len({k.question.name for k in QUESTIONS}) == 35


@pytest.mark.parametrize("known", QUESTIONS, ids=lambda k: k.question.name)
def test_none_is_wrong_and_every_witness_counts(known, answers):
    answer = answers[known.question.name]
    assert TRUTH[answer.status] is known.truth
    if answer.status is Status.REFUTED:
        point = {k: ball(v) for k, v in answer.witness.items()}
        with precision(600):
            value = (
                known.question.goal if known.question.goal == 1 else enclose(known.question.goal, answer.witness, 400)
            )
            assert value > 0
        assert refutes(known.question, answer.witness)
        assert set(point) == set(known.question.box)
    if answer.step == "lemmas":
        assert answer.lemmas


def test_at_least_thirty_need_no_lemma_and_no_paving(answers):
    assert sum(a.step in ("corner", "linear") for a in answers.values()) >= 30
    assert {a.step for a in answers.values()} == {"corner", "linear", "lemmas", "paving"}


@pytest.mark.parametrize("step", [corner, linear, lemmas])
def test_no_step_alone_is_wrong(step):
    for known in QUESTIONS:
        answer = step(known.question, Limits())
        if answer is not None and answer.status in TRUTH:
            assert TRUTH[answer.status] is known.truth, known.question.name


@pytest.mark.parametrize("bits", [6, 8, 12])
def test_few_bits_are_never_wrong(bits):
    for known in QUESTIONS:
        answer = linear(known.question, Limits(constant_bits=bits, doublings=0))
        if answer is not None:
            assert TRUTH[answer.status] is known.truth, known.question.name


def test_paving_is_never_wrong_and_keeps_its_budget():
    for known in QUESTIONS:
        answer = paving(known.question, Limits(boxes=60))
        if answer.status in TRUTH:
            assert TRUTH[answer.status] is known.truth, known.question.name
        else:
            assert "60 boxes" in answer.reason or "single point" in answer.reason


def test_unknown_states_the_gap():
    x, y = sp.symbols("x y", real=True)
    box = {x: (F(0), F(1)), y: (F(0), F(1))}
    question = Question(box, x * y * (1 - x) * (1 - y) - sp.Rational(1, 16))
    answer = decide(question, Limits(boxes=20))
    assert answer.status is Status.UNKNOWN
    assert answer.reason == "the paving needs more than 20 boxes"
    assert F(1, 16) < answer.gap < F(1, 4)
    assert (
        decide(
            Question(box, x * y * (1 - x) * (1 - y) - sp.Rational(answer.gap.numerator, answer.gap.denominator))
        ).status
        is Status.PROVED
    )


def test_floats_and_unknown_symbols_are_refused():
    with pytest.raises(ValueError, match="floating-point"):
        Question({d: (F(0), F(1))}, d - 0.1)
    with pytest.raises(ValueError, match="no range"):
        Question({d: (F(0), F(1))}, d - T)
    with pytest.raises(ValueError, match="upside down"):
        Question({d: (F(1), F(0))}, d)


def test_elimination_takes_the_end_that_helps_a_counterexample():
    box = {d: (F(0), F(1)), T: (F(1, 2), F(2))}
    assert eliminate(Question(box, TV - 1)) == {d: 1, T: F(1, 2)}
    assert eliminate(Question(box, 1 - TV)) == {d: 0, T: 2}
    assert eliminate(Question(box, TV - 1, ((d - T / 20,),))) == {}
    assert eliminate(Question(box, TV - 1, ((T - 1,),))) == {T: F(1, 2), d: 1}


def test_spans_of_a_kl_enclose_the_truth_at_any_width():
    x = sp.Symbol("x", nonnegative=True)
    for c in (F(1, 10**9), F(1, 300), F(1, 2), F(7)):
        for bits in (6, 12, 64, 128):
            with precision(300):
                low, high = span_of_kl(c, up=False, bits=bits), span_of_kl(c, up=True, bits=bits)
                assert enclose(KLSpan(x), {x: low}, 300) <= ball(c) <= enclose(KLSpan(x), {x: high}, 300)
            assert high - low <= high * (F(4, 2**bits) + F(1, 2**90))


def test_gradients_give_signs_only_where_they_hold():
    with precision(100):
        ranges = {d: hull(F(0), F(1)), T: hull(F(1, 2), F(2)), s: hull(F(-1), F(1)), a: hull(F(1, 10), F(9, 10))}
        assert signs(TV, ranges) == {d: 1, T: -1}
        assert signs(KL, ranges) == {d: 1, T: -1}
        assert signs(s**2, ranges) == {s: None}
        assert signs(sp.Abs(s), ranges) == {s: None}
        assert signs(a**a, ranges)[a] is None
        assert signs(1 / a, ranges) == {a: -1}
        assert signs(sp.log(s), ranges) == {s: None}
        with pytest.raises(UndefinedError):
            enclosure(1 / s, ranges)


def test_every_rewriting_rule_holds_on_samples():
    from random import Random

    rng = Random(3)
    n = sp.Symbol("n", real=True)
    for rule in RULES:
        term, box = {
            "bernoulli": ((1 - tv) ** n, {tv: (F(0), F(1)), n: (F(1), F(50))}),
            "pinsker_two_points": (
                a * sp.log(a / b) + (1 - a) * sp.log((1 - a) / (1 - b)), {a: (F(1, 100), F(99, 100)), b: (F(1, 100), F(99, 100))},
            ),
            "hoeffding": (KLSpan(s), {s: (F(0), F(9))}),
            "joint_tv_kl": (KLSpan(s), {s: (F(0), F(9))}),
            "tangent_exp": (sp.exp(s), {s: (F(-3), F(3))}),
            "tangent_log": (sp.log(s), {s: (F(1, 100), F(9))}),
            "tangent_tanh": (sp.tanh(s), {s: (F(0), F(9))}),
        }[rule.name]  # fmt: skip
        with precision(200):
            bound = rule.match(term, {k: hull(*r) for k, r in box.items()})
            assert bound is not None
            for _ in range(40):
                point = {k: low + (high - low) * F(rng.randint(1, 999), 1000) for k, (low, high) in box.items()}
                gap = enclose(bound - term if rule.up else term - bound, point)
                assert not gap < 0, (rule.name, point)
        assert rule.statement and rule.argument


def test_rules_refuse_what_they_do_not_cover():
    by_name = {r.name: r for r in RULES}
    n = sp.Symbol("n", real=True)
    with precision(100):
        ranges = {s: hull(F(-1), F(1)), n: hull(F(0), F(3)), tv: hull(F(0), F(2))}
        assert by_name["bernoulli"].match((1 - tv) ** 3, ranges) is None
        assert by_name["bernoulli"].match((1 - tv / 4) ** n, ranges) is None
        assert by_name["hoeffding"].match(KLSpan(s), ranges) is None
        assert by_name["tangent_tanh"].match(sp.tanh(s), ranges) is None
        assert by_name["tangent_log"].match(sp.log(s), ranges) is None


def _spin(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"


def _crash() -> None:
    import os

    os._exit(7)


def _raise() -> None:
    raise ValueError("no")


def test_a_hard_stop_is_never_a_success():
    assert guarded(_spin, 0.01, seconds=5).value == "done"
    stopped = guarded(_spin, 60.0, seconds=0.2)
    assert stopped.value is None and stopped.failure == "stopped after 0.2 s"
    assert guarded(_crash, seconds=5).failure == "the solver crashed (exit code 7)"
    assert guarded(_raise, seconds=5).failure == "ValueError: no"


def test_a_question_in_a_child_process():
    known = QUESTIONS[1]
    assert decide_within(known.question, 20).status is Status.PROVED
    slow = Question({a: (F(0), F(1)), b: (F(0), F(1))}, a * b * (1 - a) * (1 - b) - q("0.0625"))
    answer = decide_within(slow, 0.3, Limits(boxes=10**9))
    assert answer.status is Status.UNKNOWN
    assert answer.reason == "stopped after 0.3 s"


def test_one_record_holds_every_limit_of_a_run():
    import kcverify.prove.question as package

    assert not hasattr(package, "Effort")
    assert {f.name for f in fields(Limits)} >= {"solver_ms", "solver_s", "boxes", "constant_bits", "ball_bits", "cache"}


@pytest.mark.needs("cvc5")
def test_a_second_solver_out_of_time_gives_no_opinion():
    from kcverify.prove.second_solver import second_opinion

    assert second_opinion("(check-sat)\n", Limits(solver_s=0.0)).startswith("unknown: stopped")
    assert second_opinion("(set-logic QF_LRA)\n(assert false)\n(check-sat)\n") == "unsat"
    assert second_opinion("nonsense").startswith("unknown:")
