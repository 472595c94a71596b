"""The drawn table of counts against the test that decides."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.emit.live import Boundary, plane, shares, spark, thinned
from kcverify.gateway.boundaries import boundary, curve
from kcverify.gateway.shown import percent, span
from kcverify.runtime.sequential import judge_binary

LEVEL = math.log(1 / (1.0 - 0.95))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.sampled_from([0.001, 0.01, 0.1, 0.2, 0.5, 0.9]))
def test_counts_are_those_that_the_test_decides_by(n: int, limit: float) -> None:
    found = boundary(n, limit, LEVEL, LEVEL)
    for count in range(n + 1):
        expected = judge_binary(count, n, limit, 0.95).verdict
        fails = found.fails is not None and count >= found.fails
        passes = found.passes is not None and count <= found.passes
        assert expected == ("fail" if fails else "pass" if passes else "inconclusive")


@given(st.integers(0, 10**9), st.none() | st.integers(1, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_curve_covers_what_is_seen_and_what_is_needed(n: int, needed: int | None) -> None:
    found = curve(n, needed, 0.01, LEVEL, LEVEL)
    assert found[-1].n >= 1.09 * max(n, needed or 0) and len(found) == 20
    assert "nan" not in plane("x", n, min(n, 3), found, "t").lower()


@given(st.lists(st.none() | st.floats(0, 1), max_size=700))
def test_a_dip_stays_seen(values: list[float | None]) -> None:
    shown, known = thinned(values), [v for v in values if v is not None]
    assert len(shown) <= 120 and min((v for v in shown if v is not None), default=2) == min(known, default=2)
    drawn: Any = spark("x", values, "t", "d", (0.5,))
    assert ("<circle" in drawn) == bool(known)


def test_small_texts() -> None:
    assert span(90_061_000) == "1 d 1 h" and span(61_000) == "1 min 1 s" and span(None) == span(-5) == "0 s"
    assert str(percent("1/3")) == '<data value="1/3">33.3333 %</data>'
    assert "nothing serves" in shares("x", {}, "t") and "safe 100 %" in shares("x", {"safe": 1.0}, "t")
    assert plane("x", 0, 0, [Boundary(1, None, None)], "t").count("<polygon") == 0
