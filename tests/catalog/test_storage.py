"""Floors of storage formats against the formats themselves."""

from __future__ import annotations

import math
import struct
from fractions import Fraction as F

import pytest

from kcverify.catalog.storage import ARGUMENT, BY_NAME, ROWS, SOURCE, STATEMENT

LARGEST = (F(1, 3), F(1), F(9), F(16), F(17), F(30), F(100))
UNPACK = {"float16": ("<H", "<e"), "float32": ("<I", "<f"), "float64": ("<Q", "<d")}


def above(name: str, x: float) -> float:
    """The next stored number."""
    whole, real = UNPACK[name]
    (bits,) = struct.unpack(whole, struct.pack(real, x))
    return struct.unpack(real, struct.pack(whole, bits + 1))[0]


@pytest.mark.parametrize("name", UNPACK)
@pytest.mark.parametrize("largest", LARGEST, ids=str)
def test_half_a_step_of_the_last_binade(name: str, largest: F) -> None:
    start = 2.0 ** (math.ceil(math.log2(float(largest))) - 1)
    assert 2 * BY_NAME[name].half(largest) == F(above(name, start)) - F(start)


def test_reference_points() -> None:
    half = BY_NAME["bfloat16"].half
    assert [half(F(x)) for x in (16, 32, 64)] == [F(1, 32), F(1, 16), F(1, 8)]
    assert {r.name: r.roundoff for r in ROWS} == {
        "float64": F(1, 2**53), "float32": F(1, 2**24), "float16": F(1, 2**11), "bfloat16": F(1, 2**8),
        "float8_e4m3fn": F(1, 2**4), "float8_e5m2": F(1, 2**3),
    }  # fmt: skip
    assert STATEMENT and ARGUMENT and SOURCE


def test_numbers_below_the_normal_ones_keep_their_step() -> None:
    assert BY_NAME["float8_e4m3fn"].half(F(1, 2**20)) == F(1, 2**10)
