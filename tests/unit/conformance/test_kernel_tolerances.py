"""Tolerances are exact, derived, and hold for every order of conforming arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.conformance import tolerances as t
from kcverify.elaborate.words import Apply, Binary, Constant, Symbol

torch = pytest.importorskip("torch")

from kcverify.conformance import order  # noqa: E402


@pytest.mark.parametrize(
    ("name", "power"),
    [("float8_e4m3fn", 4), ("float8_e5m2", 3), ("bfloat16", 8), ("float16", 11), ("tfloat32", 11), ("float32", 24)],
)
def test_unit_roundoffs_of_rounding_to_nearest(name, power):
    assert t.unit_roundoff(name) == Fraction(1, 2**power)


def test_integers_round_nothing():
    assert t.unit_roundoff("int8") == 0
    assert t.gamma(10**6, "int32").value == 0


def test_gamma_is_exact_and_says_how():
    found = t.gamma(16, "bfloat16")
    assert found.value == Fraction(16, 256) / (1 - Fraction(16, 256)) == Fraction(1, 15)
    assert found.lines == ("gamma(16, bfloat16) = 16 u / (1 - 16 u), u = 2^-8: 0.0667",)


def test_gamma_fails_closed_from_one_half_on():
    assert t.gamma(127, "bfloat16").value is not None
    closed = t.gamma(128, "bfloat16")
    assert closed.value is None
    assert "says nothing" in closed.lines[0]


@pytest.mark.parametrize("summation", ["sequential", "pairwise"])
def test_a_spread_fails_closed_too(summation):
    assert t.spread(1024, "bfloat16", summation).value is None
    assert t.spread(64, "bfloat16", summation).value is not None


def test_the_published_bound_is_false():
    """1,024 ones in bfloat16: 256 one after another, 1,024 as a tree; the bound says at most 8 apart."""
    ones = torch.ones(1024)
    one, tree = order.tree_sum(ones, 1, "bfloat16"), order.tree_sum(ones, 2, "bfloat16")
    assert (float(one), float(tree)) == (256.0, 1024.0)
    assert t.published_spread(1024, "bfloat16") == 8
    assert float(tree) - float(one) > 8
    assert t.spread(1024, "bfloat16").value is None


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 100), st.integers(0, 10**6), st.sampled_from(["bfloat16", "float16"]))
def test_conforming_sums_stay_within_the_derived_spread(count, seed, name):
    x = torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, name)).double()
    sums = [float(order.tree_sum(y, fanout, name)) for y in (x, x.flip(0), x.sort().values) for fanout in (1, 2)]
    limit = t.spread(count, name).value
    assert limit is not None
    assert Fraction(max(sums)) - Fraction(min(sums)) <= limit * sum(Fraction(float(v)).__abs__() for v in x)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100), st.integers(0, 10**6))
def test_trees_stay_within_the_pairwise_depth(count, seed):
    x = torch.rand(count, generator=torch.Generator().manual_seed(seed)).bfloat16()
    depth = t.ceil_log2(count)
    limit = t.gamma(depth, "bfloat16").value
    exact = sum(Fraction(float(v)) for v in x)
    assert abs(Fraction(float(order.tree_sum(x, 2, "bfloat16"))) - exact) <= limit * exact


@given(st.integers(1, 10**9))
def test_ceil_log2(count):
    depth = t.ceil_log2(count)
    assert 2**depth >= count
    assert depth == 0 or 2 ** (depth - 1) < count


def test_a_contracts_formula_is_evaluated_exactly():
    term = Binary("+", Apply("gamma", (Symbol("k"), Symbol("float32"))), Apply("unit_roundoff", (Symbol("bfloat16"),)))
    found = t.evaluate(term, {"k": 64})
    assert found.value == Fraction(64, 2**24) / (1 - Fraction(64, 2**24)) + Fraction(1, 256)
    assert len(found.lines) == 3


@pytest.mark.parametrize(
    ("term", "value"),
    [
        (Binary("^", Constant(Fraction(2)), Constant(Fraction(-8))), Fraction(1, 256)),
        (Binary("/", Constant(Fraction(1)), Constant(Fraction(0))), None),
        (Binary("^", Constant(Fraction(0)), Constant(Fraction(-1))), None),
        (Binary("^", Constant(Fraction(2)), Constant(Fraction(10**9))), None),
        (Apply("log2", (Constant(Fraction(5)),)), Fraction(3)),
        (Apply("log2", (Constant(Fraction(0)),)), None),
        (Apply("max", (Constant(Fraction(5)), Symbol("k"))), Fraction(64)),
        (Apply("gamma", (Constant(Fraction(200)), Symbol("bfloat16"))), None),
        (Apply("norm", (Symbol("k"),)), None),
        (Symbol("unknown"), None),
    ],
)
def test_formulas_without_a_value_say_nothing(term, value):
    assert t.evaluate(term, {"k": 64}).value == value


@given(st.fractions(0, 1000))
def test_a_root_is_rounded_up(value):
    root = t.evaluate(Apply("sqrt", (Constant(value),)), {}).value
    assert root is not None
    assert root**2 >= value
    assert math.isclose(float(root), math.sqrt(value), abs_tol=1e-9)


@pytest.mark.parametrize(
    ("passed", "count", "expected"),
    [(64, 64, True), (59, 59, True), (58, 58, None), (64, 66, None), (40, 64, False), (0, 4, False)],
)
def test_a_pass_rate_is_decided_by_exact_tails(passed, count, expected):
    assert t.rate_decision(passed, count, Fraction(95, 100), Fraction(95, 100)) is expected


def test_a_rounding_after_a_sum():
    inner = t.gamma(8, "float32")
    found = t.rounded_to(inner, "bfloat16")
    assert found.value == inner.value + Fraction(1, 256) * (1 + inner.value)
    assert t.rounded_to(inner, "int32") == inner
