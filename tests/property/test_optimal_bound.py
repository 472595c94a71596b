"""Properties of the optimal sequence bound over random spans and horizons."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.bounds.optimal import attained, closed_form, span_budget, upper
from kcverify.bounds.optimal_table import table_upper

HORIZONS = st.integers(1, 96) | st.sampled_from([768, 769, 1000, 1537])
SCALES = st.floats(1e-5, 14).map(Fraction)


def span(scale: Fraction, horizon: int) -> Fraction:
    """A span with `s sqrt(horizon)` near `scale`, where the bound is neither zero nor vacuous."""
    return (scale / Fraction(horizon**0.5)).limit_denominator(10**9) + Fraction(1, 10**9)


@settings(max_examples=25, deadline=None)
@given(SCALES, HORIZONS)
def test_between_the_witness_and_the_affinity(scale: Fraction, horizon: int) -> None:
    s = span(scale, horizon)
    above, below = upper(s, horizon), attained(s, horizon)
    assert below <= above <= min(closed_form(s, horizon), 1)
    assert above * Fraction(99, 100) < below, "a bound smaller by 1 % is refuted by the witness"
    assert above <= below * Fraction(1005, 1000)
    assert above <= table_upper(s, horizon) * (1 + Fraction(1, 10**3))


@settings(max_examples=15, deadline=None)
@given(SCALES, HORIZONS, st.floats(0, 1).map(Fraction), st.integers(0, 40))
def test_monotone_in_span_and_horizon(scale: Fraction, horizon: int, more: Fraction, longer: int) -> None:
    s = span(scale, horizon)
    assert attained(s, horizon) <= upper(s * (1 + more), horizon + longer)
    assert table_upper(s, horizon) <= table_upper(s * (1 + more), horizon + longer) * (1 + Fraction(1, 2**38))
    assert closed_form(s, horizon) <= closed_form(s * (1 + more), horizon + longer) * (1 + Fraction(1, 2**38))


@settings(max_examples=12, deadline=None)
@given(st.floats(1e-6, 0.999).map(Fraction), st.integers(1, 64))
def test_budget_is_verified_and_near(tv: Fraction, horizon: int) -> None:
    s = span_budget(tv, horizon)
    assert upper(s, horizon) <= tv
    assert attained(s * Fraction(103, 100), horizon) > tv or tv > Fraction(99, 100)
