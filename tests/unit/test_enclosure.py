"""Ball arithmetic: directions, domain edges, the powers and roots that lemmas use."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.enclosure import (
    BinomialTV,
    EnclosureError,
    KLSpan,
    approximate_root,
    ball,
    enclose,
    evaluate,
    precision,
    rational,
    root_down,
    value_down,
    value_up,
)

x = sp.Symbol("x", nonnegative=True)
positive = st.fractions(min_value=F(1, 10**9), max_value=50, max_denominator=10**9)


@given(positive)
def test_directed_values_enclose_and_are_close(value):
    for expr in (sp.tanh(x), KLSpan(x), sp.exp(-x), sp.sqrt(1 - sp.cosh(x) ** -8), sp.sinh(x / 2) ** 2):
        low, high = value_down(expr, {x: value}), value_up(expr, {x: value})
        assert low <= high
        assert high - low <= abs(high) * F(1, 2**70)


@given(positive, st.integers(2, 60))
def test_rational_keeps_its_side_at_any_width(value, bits):
    with precision(256):
        middle = ball(value).exp()
        assert ball(rational(middle, up=True, bits=bits)) >= middle.lower()
        assert rational(middle, up=False, bits=bits) <= rational(middle, up=True, bits=bits)
        assert not ball(rational(middle, up=True, bits=bits)) < middle
        assert not ball(rational(middle, up=False, bits=bits)) > middle


def test_exact_rationals_are_never_widened():
    assert value_up(x / 3 + 1, {x: F(1, 7)}) == value_down(x / 3 + 1, {x: F(1, 7)}) == F(22, 21)
    assert value_up(x - x, {x: F(1)}) == 0


def test_zero_is_exact():
    assert value_up(KLSpan(x), {x: F(0)}) == 0
    assert value_up(sp.sqrt(1 - sp.cosh(x) ** -2), {x: F(0)}) <= F(1, 2**1000)


def test_tiny_arguments_keep_relative_accuracy():
    tiny = F(1, 10**40)
    high = value_up(KLSpan(x), {x: tiny})
    assert abs(high / (tiny * tiny / 8) - 1) < F(1, 10**20)


def test_huge_values_are_an_error_upward_and_clamped_downward():
    assert value_down(sp.exp(x), {x: F(10**6)}) == 2**8192
    with pytest.raises(EnclosureError):
        value_up(sp.exp(x), {x: F(10**6)})
    assert value_down(sp.exp(-x), {x: F(10**6)}) == 0
    assert value_up(sp.exp(-x), {x: F(10**6)}) == F(1, 2**8192)


def test_outside_the_domain_is_an_error():
    with pytest.raises(EnclosureError):
        enclose(sp.atanh(x), {x: F(2)})


@given(st.fractions(min_value=F(1, 10**6), max_value=F(99, 100), max_denominator=10**6))
def test_root_is_on_the_safe_side_and_tight(target):
    root = root_down(sp.tanh(x / 4), x, target, {})
    assert value_up(sp.tanh(x / 4), {x: root}) <= target
    assert value_up(sp.tanh(x / 4), {x: root * F(1000001, 1000000)}) > target
    guess = approximate_root(sp.tanh(x / 4), x, target, {}, F(4096))
    assert abs(guess - root) <= root * F(1, 10**12)


def test_binomial_total_variation():
    lam = sp.Symbol("lam", nonnegative=True)
    assert abs(
        value_up(BinomialTV(lam, sp.Integer(1)), {lam: F(1, 2)}) - value_up(sp.tanh(lam / 2), {lam: F(1, 2)})
    ) < F(1, 10**20)
    even, odd = (value_up(BinomialTV(lam, sp.Integer(n)), {lam: F(1, 10)}) for n in (64, 63))
    assert abs(even - odd) < F(1, 10**20)
    assert F(999, 1000) < value_down(BinomialTV(lam, sp.Integer(3)), {lam: F(5000)}) <= 1


@pytest.mark.parametrize("lam", [5, 40, 64, 300])
def test_a_long_response_of_large_ratios_is_within_a_hair_of_one(lam):
    """The incomplete beta function does not end here within minutes."""
    value = value_down(BinomialTV(sp.Symbol("lam"), sp.Integer(1_000_000)), {sp.Symbol("lam"): F(lam)})
    assert 1 - F(1, 2**80) <= value <= 1


@pytest.mark.parametrize("horizon", [1, 2, 3, 8, 63, 64, 501])
def test_binomial_sum_equals_the_tail_formula(horizon):
    from flint import arb

    from kcverify.enclosure import _binomial_tail, binomial_tv

    with precision(300):
        for lam in (F(1, 100), F(1, 2), F(5)):
            a, b = binomial_tv(ball(lam), arb(horizon)), _binomial_tail(ball(lam), horizon)
            assert a.overlaps(b)
            assert abs(a - b) < arb(2) ** -200


@settings(max_examples=12, deadline=None)
@given(st.fractions(F(1, 10_000), F(8)), st.integers(20_001, 30_000))
def test_a_cut_sum_holds_the_whole_sum(lam, horizon):
    from flint import arb

    from kcverify.enclosure import _binomial_cut, binomial_tv

    with precision(160):
        half = ball(lam) / 2
        x = 1 / (2 * half.cosh() ** 2)
        term = total = arb(1)
        for j in range(1, (horizon + 1) // 2):
            term = term * x * (2 * j - 1) / j
            total = total + term
        cut = _binomial_cut(ball(lam), horizon)
        assert cut.overlaps(half.tanh() * total)
        assert cut.rad() < arb(2) ** -120
        assert binomial_tv(ball(lam), arb(horizon)).overlaps(cut)


@pytest.mark.parametrize("lam", [F(1, 5), F(1), F(39, 10)])
def test_a_long_sum_ends_where_its_terms_no_longer_count(lam, monkeypatch):
    """The incomplete beta function is not asked here."""
    from flint import arb

    monkeypatch.setattr("kcverify.enclosure._binomial_tail", lambda *_: pytest.fail("the slow way"))
    with precision(160):
        value = BinomialTV(sp.Symbol("lam"), sp.Integer(10**9))
        found = evaluate(value, {sp.Symbol("lam"): ball(lam)})
        assert found > 1 - arb(2) ** -100 and found.rad() < arb(2) ** -100
