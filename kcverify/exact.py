"""Exact numbers: text to fractions, and fractions to decimals and doubles that are rounded to a stated side."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class NumberLimits:
    """What a number may cost: characters of its text, decimal exponent, bits of a numerator or denominator."""

    characters: int = 400
    exponent: int = 1_000
    bits: int = 16_384


LIMITS = NumberLimits()

_DECIMAL = re.compile(r"([0-9](?:_?[0-9])*)(?:\.([0-9](?:_?[0-9])*))?(?:[eE]([+-]?[0-9]+))?")
_POWER = re.compile(r"(-?)([0-9._eE]+)\^(-?[0-9]+)")


class NumberError(ValueError):
    """The text is no number, or a number beyond the limits; the message says which."""


def parse_decimal(text: str, limits: NumberLimits = LIMITS) -> Fraction:
    """Fraction of an unsigned decimal such as `20_000`, `0.1` or `1e-5`. Raises NumberError."""
    if len(text) > limits.characters:
        raise NumberError(f"a number may have {limits.characters} characters, this one has {len(text)}")
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise NumberError(f"`{text}` is not a number")
    whole, fraction, exponent = (part.replace("_", "") if part else "" for part in match.groups())
    if len(exponent.lstrip("+-").lstrip("0")) > 6 or abs(int(exponent or 0)) > limits.exponent:
        raise NumberError(f"the exponent of `{text}` is beyond {limits.exponent}")
    digits = int(whole + fraction)
    scale = int(exponent or 0) - len(fraction)
    return Fraction(digits * 10**scale) if scale >= 0 else Fraction(digits, 10**-scale)


def parse_number(text: str, limits: NumberLimits = LIMITS) -> Fraction:
    """Fraction of a signed number, a power of one (`2^-8`) or a percentage (`0.1%`). Raises NumberError."""
    body = text.strip()
    if body.endswith("%"):
        return parse_number(body[:-1], limits) / 100
    power_match = _POWER.fullmatch(body)
    if power_match:
        sign, base, exponent = power_match.groups()
        if len(exponent) > 7:
            raise NumberError(f"the exponent of `{text}` is too large")
        value = power(parse_decimal(base, limits), Fraction(int(exponent)), limits)
        return -value if sign else value
    if body[:1] in ("-", "+"):
        return parse_decimal(body[1:], limits) * (-1 if body[0] == "-" else 1)
    return parse_decimal(body, limits)


def bounded(value: Fraction, limits: NumberLimits = LIMITS) -> Fraction:
    """`value` itself. Raises NumberError when it has more bits than the limits allow."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > limits.bits:
        raise NumberError(f"a number needs more than {limits.bits} bits")
    return value


def power(base: Fraction, exponent: Fraction, limits: NumberLimits = LIMITS) -> Fraction:
    """`base ** exponent` for a whole exponent. Raises NumberError before a result too large is computed."""
    if exponent.denominator != 1:
        raise NumberError("the exponent of `^` must be a whole number")
    if base == 0 and exponent < 0:
        raise NumberError("zero has no negative power")
    size = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
    if size * abs(exponent.numerator) > limits.bits and abs(base) not in (0, 1):
        raise NumberError(f"the power needs more than {limits.bits} bits")
    if abs(base) in (0, 1):
        exponent = Fraction(abs(exponent.numerator) % 2 + 2 * (exponent != 0))
    return Fraction(base) ** exponent.numerator


def _exponent_of(x: Fraction) -> int:
    """Largest `e` with `10**e <= x`, for `x > 0`, without turning a large integer into text."""
    guess = math.floor((x.numerator.bit_length() - x.denominator.bit_length()) * math.log10(2))
    while Fraction(10) ** guess > x:
        guess -= 1
    while Fraction(10) ** (guess + 1) <= x:
        guess += 1
    return guess


def _layout(sign: str, digits: str, exponent: int) -> str:
    """Text of `0.d1d2d3… * 10**(exponent + 1)`: plain near 1, with an exponent elsewhere."""
    digits = digits.rstrip("0") or "0"
    if -6 <= exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    if 0 <= exponent <= 16:
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        rest = digits[exponent + 1 :]
        return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{sign}{mantissa}e{exponent}"


def _decimal(x: Fraction, digits: int, side: str) -> str:
    if digits < 1:
        raise ValueError("at least one digit")
    if x == 0:
        return "0"
    size, sign = abs(x), "-" if x < 0 else ""
    exponent = _exponent_of(size)
    scaled = size * Fraction(10) ** (digits - 1 - exponent)
    away = (side == "up") == (x > 0)
    if side == "near":
        units = round(scaled)
    else:
        units = math.ceil(scaled) if away else math.floor(scaled)
    if units == 10**digits:
        units, exponent = units // 10, exponent + 1
    return _layout(sign, str(units), exponent)


def decimal_down(x: Fraction, digits: int) -> str:
    """Largest decimal of `digits` significant digits that is at most `x`."""
    return _decimal(x, digits, "down")


def decimal_up(x: Fraction, digits: int) -> str:
    """Smallest decimal of `digits` significant digits that is at least `x`."""
    return _decimal(x, digits, "up")


def decimal_near(x: Fraction, digits: int) -> str:
    """Decimal of `digits` significant digits nearest to `x` (ties to even)."""
    return _decimal(x, digits, "near")


def outward(x: float, upper: bool, digits: int = 4) -> str:
    """A bound for reading: no decimal below an upper one, none above a lower one; `inf` and `nan` as they are."""
    if not math.isfinite(x):
        return str(x)
    return (decimal_up if upper else decimal_down)(Fraction(x), digits)


def decimal_exact(x: Fraction) -> str:
    """`x` as the language writes it: a finite decimal where there is a short one, else `numerator / denominator`."""
    near = decimal_near(x, 30)
    if parse_number(near, NumberLimits(exponent=1_000_000)) == x:
        return near
    return f"{x.numerator} / {x.denominator}"


def monitor_float_down(x: Fraction) -> float:
    """Largest double that is at most `x` (minus infinity below the range of doubles)."""
    try:
        near = x.numerator / x.denominator
    except OverflowError:
        return math.nextafter(math.inf, 0) if x > 0 else -math.inf
    return near + 0.0 if Fraction(near) <= x else math.nextafter(near, -math.inf)


def monitor_float_up(x: Fraction) -> float:
    """Smallest double that is at least `x` (infinity above the range of doubles)."""
    return 0.0 - monitor_float_down(-x)
