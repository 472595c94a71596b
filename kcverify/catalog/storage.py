"""Floors of storage formats: how far rounding alone moves a logit, one row a format."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kcverify.catalog.model import Evidence

STATEMENT = "a logit of size up to M, rounded to nearest, moves by up to half the distance of its neighbours at M; two neighbours differ by all of it"
ARGUMENT = (
    "on [2^e, 2^(e+1)) a format of p significant bits holds the multiples of 2^(e-p+1); a number between two of them moves by at "
    "most half of that, one half-way by exactly that, and two stored numbers that differ at all there differ by at least one step"
)
SOURCE = "IEEE 754-2019; Open Compute Project, 8-bit floating point, 2023"
EVIDENCE = Evidence.PROVED


@dataclass(frozen=True)
class Format:
    """A binary format: bits of the significand, the hidden one included, and the smallest normal exponent."""

    name: str
    bits: int
    smallest: int

    @property
    def roundoff(self) -> Fraction:
        """Unit roundoff `2^-bits`: the largest relative error of rounding to nearest."""
        return Fraction(1, 2**self.bits)

    def exponent(self, largest: Fraction) -> int:
        """Exponent of the last binade `[2^e, 2^(e+1))` below numbers of size up to `largest > 0`."""
        e = self.smallest
        while Fraction(2) ** (e + 1) < largest:
            e += 1
        return e

    def half(self, largest: Fraction) -> Fraction:
        """How far rounding to nearest moves a number of size up to `largest`: attained half-way between two neighbours."""
        return Fraction(2) ** (self.exponent(largest) - self.bits)


ROWS: tuple[Format, ...] = (
    Format("float64", 53, -1022),
    Format("float32", 24, -126),
    Format("float16", 11, -14),
    Format("bfloat16", 8, -126),
    Format("float8_e4m3fn", 4, -6),
    Format("float8_e5m2", 3, -14),
)
BY_NAME: dict[str, Format] = {row.name: row for row in ROWS}
