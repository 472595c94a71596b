"""Budgets: the largest limit that is proved, to the safe side, and why there is none."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import ASSUME, contract

from kcverify.exact import decimal_exact
from kcverify.prove.budget import _last_digit, derive, fill, hole_of, short_dyadic
from kcverify.prove.prover import prove

MANY = ASSUME.replace("horizon <= 1", "horizon <= 64") + "; advantage in [-2, 2]; score_norm <= 1"


@given(st.fractions(min_value=F(1, 10**12), max_value=10**9), st.integers(4, 64))
def test_short_dyadics_keep_their_side(x, bits):
    low, high = short_dyadic(x, up=False, bits=bits), short_dyadic(x, up=True, bits=bits)
    assert low <= x <= high
    assert high - low <= x * F(4, 2**bits)
    assert bin(low.numerator).count("1") <= bits + 1


def test_the_last_digit_of_six():
    assert _last_digit(F("0.123456")) == F("0.000001")
    assert _last_digit(F("123.456")) == F("0.001")


HOLES = [
    ("logit_span <= ?", "g: tv <= 0.03", ASSUME),
    ("logit_drift <= ?", "g: tv <= 0.03", ASSUME),
    ("logit_span <= ? except 0.1%", "g: mean tv <= 0.03", ASSUME),
    ("tv <= ?", "g: reward_drift <= 0.2\nh: pg_bias <= 0.7", MANY),
    ("kl(candidate || reference) <= ? nats", "g: reward_drift <= 0.2", MANY),
    ("mean tv <= ?", "g: reward_drift <= 0.2", MANY),
    ("log_ratio <= ?", "g: tv <= 0.03", ASSUME),
    ("logit_span <= ?", "g: ess >= 0.9", MANY),
    ("logit_span <= ?", "g: tv <= 0.05 * temperature", ASSUME),
]


@pytest.mark.parametrize(("hole", "claims", "assume"), HOLES)
def test_the_largest_limit_that_is_proved(hole, claims, assume):
    c = contract(f"c: {hole} -> L1", claims, assume=assume)
    (b,), failed = derive(c)
    assert not failed
    assert F(b.decimal) <= b.value and F(b.monitor) <= b.value
    assert b.value - F(b.decimal) <= b.value / 10**5
    assert b.breach > 0
    assert {v.status.value for v in prove(fill(c, [b]))} == {"PROVED"}
    number = F(b.decimal) + _last_digit(F(b.decimal)) * 2
    wider = contract(f"c: {hole.replace('?', decimal_exact(number))} -> L1", claims, assume=assume)
    assert any(v.status.value != "PROVED" for v in prove(wider))


def test_the_binding_guarantee_is_the_tightest():
    (b,), _ = derive(contract("c: tv <= ? -> L1", "g: reward_drift <= 0.2\nh: reward_drift <= 0.1", assume=ASSUME))
    assert b.binding.claim.name == "h"
    assert b.decimal == "0.1"
    assert len(b.demands) == 2


def test_two_holes_share_the_tolerance():
    filled, failed = derive(contract("c: tv <= ? -> L1\nd: logit_span <= ? -> L1", "g: reward_drift <= 0.1"))
    assert not failed and [b.share for b in filled] == [F(1, 2), F(1, 2)]
    assert filled[0].value == F(1, 20)


def test_why_there_is_no_budget():
    for hole, claim, assume, words in (
        ("logit_span <= ? except 1%", "g: tv <= 0.1", ASSUME, "allows an exception of 1%"),
        ("logit_span <= ? except 1%", "g: reward_drift <= 0.2", MANY, "expect 0.64 exceedances a response"),
        ("logit_span <= ?", "g: tv <= 0", ASSUME, "any drift at all gives more"),
    ):
        filled, failed = derive(contract(f"c: {hole} -> L1", claim, assume=assume))
        ((clause, demands),) = failed
        assert not filled and clause.name == "c"
        assert words in demands[0].blocked, demands[0].blocked


def test_a_hole_that_no_guarantee_uses():
    filled, failed = derive(contract("c: tv <= ? on a -> L1", "g: tv <= 0.1"))
    assert not filled and failed[0][1] == ()
    assert hole_of(contract("c: tv <= ? except 2% -> L1", "g: tv <= 0.1").clauses[0]).node.rho == F(1, 50)


def test_bands_take_the_tightest_piece():
    c = contract("c: logit_span <= ? -> L1\nd: tv <= 0.9 when temperature in [0.6, 0.8) -> L1", "g: tv <= 0.03")
    (b,), _ = derive(c)
    (whole,), _ = derive(contract("c: logit_span <= ? -> L1", "g: tv <= 0.03"))
    assert b.value == whole.value


@pytest.mark.parametrize(
    ("side", "worse", "claim"),
    [("<=", 1, "tv <= 0.01"), (">=", -1, "importance_ratio >= 0.9"), (">=", -1, "mean importance_ratio >= 0.9")],
)
def test_a_hole_of_a_ratio_is_filled_on_its_own_side(side, worse, claim):
    c = contract(f"c: importance_ratio {side} ? -> L1", f"g: {claim}", assume=ASSUME)
    (b,), failed = derive(c)
    assert not failed
    assert b.upper is (side == "<=")
    filled = fill(c, [b])
    limit = filled.clauses[0].limit
    assert (limit.lower is None) is b.upper and (limit.upper is None) is not b.upper
    assert {v.status.value for v in prove(filled)} == {"PROVED"}
    assert worse * (F(b.decimal) - 1) > 0 and worse * (F(b.monitor) - b.value) <= 0
    assert worse * (F(b.decimal) - b.value) <= 0
    further = F(b.decimal) + worse * abs(F(b.decimal) - 1) / 1000
    wider = contract(f"c: importance_ratio {side} {decimal_exact(further)} -> L1", f"g: {claim}", assume=ASSUME)
    assert any(v.status.value != "PROVED" for v in prove(wider))


@pytest.mark.parametrize(
    ("hole", "claim"),
    [("(mass = 0.99) <= ?", "g: reward_drift <= 0.2"), ("(mass = 0.9) <= ? except 1%", "g: mean tv <= 0.2")],
)
def test_a_hole_of_a_trimmed_span_keeps_its_tail(hole, claim):
    c = contract(f"c: logit_span{hole} -> L1", claim, assume=MANY.replace("<= 64", "<= 4"))
    (b,), failed = derive(c)
    assert not failed and b.value > 0 and b.breach > 0
    assert {v.status.value for v in prove(fill(c, [b]))} == {"PROVED"}


def test_a_hole_is_asked_for_its_own_band_and_for_the_claims():
    low, high = (
        derive(contract(f"c: logit_span <= ? when temperature in {band} -> L1", "g: tv <= 0.03"))[0][0].value
        for band in ("[0.6, 0.8)", "[0.8, 1]")
    )
    assert low * F(8, 6) == pytest.approx(high, rel=1e-9)
    (claimed,), _ = derive(contract("c: logit_span <= ? -> L1", "g: tv <= 0.03 when temperature in [0.8, 1]"))
    assert claimed.value == high
    filled, failed = derive(
        contract(
            "c: logit_span <= ? when temperature in [0.6, 0.7] -> L1", "g: tv <= 0.03 when temperature in [0.8, 1]"
        )
    )
    assert not filled and failed[0][1] == ()
