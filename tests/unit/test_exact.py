"""Exact numbers: parsing, limits, decimals and doubles rounded to a stated side."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcverify import exact

RATIONALS = st.fractions() | st.builds(
    lambda m, e: Fraction(m) * Fraction(10) ** e, st.integers(-(10**20), 10**20), st.integers(-340, 320)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Fraction(1, 10)),
        ("1e-5", Fraction(1, 100_000)),
        ("1E+2", Fraction(100)),
        ("2^-8", Fraction(1, 256)),
        ("-2^3", Fraction(-8)),
        ("20_000", Fraction(20_000)),
        ("0.1%", Fraction(1, 1000)),
        ("-5", Fraction(-5)),
        ("1e400", Fraction(10**400)),
        ("0e999", Fraction(0)),
    ],
)
def test_parse_number(text: str, value: Fraction) -> None:
    assert exact.parse_number(text) == value


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "1__0", "_1", "1_", "1.", ".5", "0x10", "1e", "--1", "1 2", "%", "2^0.5", "²", "٣"]
)
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(exact.NumberError):
        exact.parse_number(text)


@pytest.mark.parametrize(
    "text",
    ["1e999999999", "1e-999999999", "1e99999999999999999999", "9" * 100_000, "2^9999999", "10^100000", "0.5^-99999"],
)
def test_numbers_beyond_the_limits_are_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(exact.NumberError):
        exact.parse_number(text)
    assert time.perf_counter() - start < 0.5


def test_powers_of_one_and_zero_are_never_too_large() -> None:
    assert exact.power(Fraction(-1), Fraction(10**12 + 1)) == -1
    assert exact.power(Fraction(1), Fraction(-(10**12))) == 1
    assert exact.power(Fraction(0), Fraction(10**12)) == 0
    assert exact.power(Fraction(0), Fraction(0)) == 1
    with pytest.raises(exact.NumberError):
        exact.power(Fraction(0), Fraction(-1))
    with pytest.raises(exact.NumberError):
        exact.power(Fraction(2), Fraction(1, 2))


@given(RATIONALS, st.integers(1, 12))
def test_decimals_enclose_and_differ_by_one_unit(x: Fraction, digits: int) -> None:
    wide = exact.NumberLimits(exponent=100_000)
    down, near, up = (
        exact.parse_number(text, wide)
        for text in (exact.decimal_down(x, digits), exact.decimal_near(x, digits), exact.decimal_up(x, digits))
    )
    assert down <= x <= up
    assert near in (down, up)
    assert abs(near - x) * 2 <= up - down
    if x:
        assert up - down <= abs(x) * Fraction(10) ** (1 - digits)


@pytest.mark.parametrize(
    ("value", "digits", "down", "up"),
    [
        (Fraction(1, 3), 5, "0.33333", "0.33334"),
        (Fraction(-1, 3), 3, "-0.334", "-0.333"),
        (Fraction(99_999, 100_000), 3, "0.999", "1"),
        (Fraction(12_345), 3, "12300", "12400"),
        (Fraction(10**20) + 1, 3, "1e20", "1.01e20"),
        (Fraction(1, 10**9), 3, "1e-9", "1e-9"),
        (Fraction(0), 3, "0", "0"),
    ],
)
def test_decimals(value: Fraction, digits: int, down: str, up: str) -> None:
    assert exact.decimal_down(value, digits) == down
    assert exact.decimal_up(value, digits) == up


def test_decimals_need_a_digit() -> None:
    with pytest.raises(ValueError, match="digit"):
        exact.decimal_near(Fraction(1), 0)


@given(RATIONALS)
def test_monitor_floats_are_the_nearest_doubles_on_their_side(x: Fraction) -> None:
    down, up = exact.monitor_float_down(x), exact.monitor_float_up(x)
    assert down == -math.inf or Fraction(down) <= x
    assert up == math.inf or Fraction(up) >= x
    if math.isfinite(down) and math.isfinite(up):
        assert up in (down, math.nextafter(down, math.inf))


@pytest.mark.parametrize("x", [0.1, 1e-310, 5e-324, 1.7976931348623157e308, 0.0, -2.5])
def test_a_double_is_its_own_monitor_float(x: float) -> None:
    assert exact.monitor_float_down(Fraction(x)) == x == exact.monitor_float_up(Fraction(x))


def test_monitor_floats_beyond_the_range_of_doubles() -> None:
    assert exact.monitor_float_down(Fraction(10**400)) == 1.7976931348623157e308
    assert exact.monitor_float_up(Fraction(10**400)) == math.inf
    assert exact.monitor_float_down(Fraction(-(10**400))) == -math.inf
    assert exact.monitor_float_up(Fraction(1, 10**400)) == 5e-324
    assert exact.monitor_float_down(Fraction(1, 10**400)) == 0.0
    assert math.copysign(1, exact.monitor_float_up(Fraction(-1, 10**400))) == 1


@given(st.fractions())
def test_decimal_exact_is_exact(x: Fraction) -> None:
    text = exact.decimal_exact(x)
    top, _, bottom = text.partition(" / ")
    assert exact.parse_number(top) / exact.parse_number(bottom or "1") == x
