"""Ranks, margins, flips, confidence and trimmed spans against plain Python, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.runtime.order import (
    GIVEN_STATISTICS,
    ORDER_STATISTICS,
    is_order_statistic,
    k3,
    order_statistics,
    trimmed_mass,
    trimmed_name,
)
from kcverify.runtime.order_oracle import oracle_order

torch.set_num_threads(1)
INF, NAN = math.inf, math.nan
ALL = [*ORDER_STATISTICS, *(trimmed_name(m) for m in (0.5, 0.9, 0.999, 1.0))]


def check(z: torch.Tensor, w: torch.Tensor, ids: torch.Tensor | None = None, scale: float = 1.0) -> None:
    got = order_statistics(z, w, ALL, ids, scale=scale)
    for row in range(len(z)):
        token = None if ids is None else int(ids[row])
        want = oracle_order(z[row].tolist(), w[row].tolist(), ALL, token, scale=scale)
        assert set(got) == set(want)
        for name, value in want.items():
            assert got[name].dtype == torch.float64
            assert float(got[name][row]) == pytest.approx(value, rel=1e-11, abs=1e-12, nan_ok=True), (name, row)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 2, 3, 17, 40])
def test_random_rows(dtype: torch.dtype, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    z = (torch.randn(12, width, generator=generator) * 2).to(dtype)
    w = (z.float() + 0.3 * torch.randn(12, width, generator=generator)).to(dtype)
    check(z, w, torch.randint(width, (12,), generator=generator), 1.25)


ENTRY = st.one_of(st.sampled_from([-INF, 0.0, 1.0, 2.0, 2.5, -3.0]), st.floats(-20, 20))


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.lists(ENTRY, min_size=n, max_size=n), st.lists(ENTRY, min_size=n, max_size=n), st.integers(0, n - 1))))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_ties_and_banned_tokens(row: tuple[list[float], list[float], int]) -> None:
    z, w, token = row
    check(torch.tensor([z], dtype=torch.float64), torch.tensor([w], dtype=torch.float64), torch.tensor([token]))


@pytest.mark.parametrize("bad", [[NAN, 0.0], [INF, 0.0], [-INF, -INF]])
@pytest.mark.parametrize("side", [0, 1])
def test_an_invalid_row_is_nan_throughout_and_harms_no_other(bad: list[float], side: int) -> None:
    good = torch.tensor([0.0, 1.0], dtype=torch.float64)
    pair = [torch.stack((good, good)), torch.stack((good, good))]
    pair[side][0] = torch.tensor(bad, dtype=torch.float64)
    got = order_statistics(*pair, ALL, torch.tensor([1, 1]))
    assert all(math.isnan(float(column[0])) for column in got.values())
    check(*pair, torch.tensor([1, 1]))


def test_a_flip_at_a_tie_is_none_and_one_below_the_margin_is_small() -> None:
    z = torch.tensor([[2.0, 2.0, 0.0], [2.0, 1.5, 0.0], [2.0, 1.5, 0.0]])
    w = torch.tensor([[1.0, 3.0, 0.0], [1.0, 3.0, 0.0], [2.0, 2.0, 0.0]])
    got = order_statistics(z, w, ["flip", "flip_margin", "rank", "margin"])
    assert got["flip"].tolist() == [0.0, 1.0, 0.0]
    assert got["flip_margin"].tolist() == [0.0, 0.5, 0.0]
    assert got["rank"].tolist() == [1.0, 2.0, 1.0]
    assert got["margin"].tolist() == [0.0, 0.5, 0.5]


def test_a_trimmed_span_leaves_out_what_has_no_mass() -> None:
    z = torch.zeros(1, 1001, dtype=torch.float64)
    z[0, 0] = 30.0
    w = z.clone()
    w[0, 5] += 0.7
    name = trimmed_name(0.999)
    assert float(order_statistics(z, w, [name])[name]) == 0.0
    assert float(order_statistics(z, w, [trimmed_name(1.0)])[trimmed_name(1.0)]) == pytest.approx(0.7)


def test_a_trimmed_span_needs_the_mass_on_both_sides() -> None:
    """The set {0} holds the mass of the reference alone, so token 1, which the candidate prefers, belongs to it."""
    z = torch.tensor([[10.0, 0.0, -9.0]], dtype=torch.float64)
    w = torch.tensor([[0.0, 10.0, -9.0]], dtype=torch.float64)
    name = trimmed_name(0.99)
    assert float(order_statistics(z, w, [name])[name]) == 20.0


def test_names() -> None:
    assert trimmed_mass(trimmed_name(0.999)) == 0.999 and is_order_statistic("trimmed_span:0.5")
    assert not any(is_order_statistic(n) for n in ("tv", "trimmed_span:", "trimmed_span:2", "trimmed_span:nan", "x"))
    assert all(is_order_statistic(n) for n in ALL)


def test_without_the_given_token_what_needs_it_is_left_out() -> None:
    z = torch.zeros(2, 3)
    assert not set(order_statistics(z, z, ALL)) & GIVEN_STATISTICS


def test_no_synchronisation() -> None:
    """On a device without data every reading of a value raises."""
    z = torch.empty(4, 9, device="meta")
    got = order_statistics(z, z, ALL, torch.empty(4, dtype=torch.int64, device="meta"))
    assert all(column.shape == (4,) for column in got.values())


@pytest.mark.parametrize("x", [0.0, 1e-9, -1e-6, 0.01, -3.0, 40.0, -700.0])
def test_k3(x: float) -> None:
    from fractions import Fraction

    from mpmath import expm1, mpf, workdps

    with workdps(60):
        want = float(expm1(-mpf(Fraction(x).numerator) / Fraction(x).denominator) + mpf(x))
    assert float(k3(torch.tensor([x], dtype=torch.float64))) == pytest.approx(want, rel=1e-6, abs=1e-24)


@pytest.mark.parametrize("x", [INF, -INF])
def test_k3_of_a_token_that_one_side_bans(x: float) -> None:
    assert float(k3(torch.tensor([x], dtype=torch.float64))) == INF
