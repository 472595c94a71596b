"""The trust-region family at the reference parameters, and its rows against plain sums."""

from __future__ import annotations

from fractions import Fraction as F
from math import cosh, sqrt

import pytest

from kcverify.bounds.trust_region import REFERENCE, ROWS, Region, adaptive, applies, coupled, published, tight, unified

PUBLISHED = {
    "classical": 838.7,
    "coupling": 79.9,
    "pinsker_marginal_kl": 34.95,
    "pinsker_marginal_tv": 24.7,
    "mixed_kl": 8.19,
    "mixed_tv": 4.10,
}
BY_NAME = {row.name: row for row in ROWS}


@pytest.mark.parametrize("name", PUBLISHED)
def test_reference_row(name):
    row = BY_NAME[name]
    assert float(published(row, REFERENCE)) == pytest.approx(PUBLISHED[name], rel=2e-3)
    assert tight(row, REFERENCE) == pytest.approx(published(row, REFERENCE) / 2, rel=1e-12)


def test_unified_is_the_smallest():
    assert unified(REFERENCE) == ("mixed_tv", tight(BY_NAME["mixed_tv"], REFERENCE))
    assert unified(Region(8)) is None


@pytest.mark.parametrize("length", [1, 2, 7, 500])
@pytest.mark.parametrize("tv", [F(0), F(1, 1000), F(1, 7), F(1), F(3)])
def test_coupled_sum(length, tv):
    assert coupled(length, tv) == sum(min(F(1), t * tv) for t in range(length))


@pytest.mark.parametrize("length", [1, 3, 200])
def test_bodies_against_plain_sums(length):
    region = Region(length, F(1, 50), F(1, 500), F(1, 10), F(1, 5), F(1, 10))
    k, s = 1 / 500, 1 / 10
    roots = sum(min(1, sqrt(t * k / 2)) for t in range(length))
    prefixes = sum(sqrt(1 - cosh(s / 4) ** (-2 * t)) for t in range(length))
    expected = {
        "pinsker_marginal_kl": 2 * sqrt(k / 2) * roots,
        "pinsker_marginal_tv": 2 / 50 * roots,
        "hellinger": 2 / 50 * prefixes,
    }
    for name, value in expected.items():
        assert applies(BY_NAME[name], region)
        assert float(tight(BY_NAME[name], region)) == pytest.approx(value, rel=1e-9, abs=1e-30)


def test_two_constant_is_attained_for_two_tokens():
    """At the first token nothing is lost; at the second the prefix differs by eps and the step by eps."""
    eps = F(1, 100)
    region = Region(2, eps, reward_range=F(1))
    gap = eps * eps  # rewards 1 and 0 on the two agreeing corners: |J - J - L| = 2 Rg (eps/...) up to the constant
    assert gap <= tight(BY_NAME["coupling"], region) <= 2 * gap * (1 + F(1, 10**12))


def test_adaptive_uses_what_is_known():
    region = Region(3, F(1, 10), F(1, 1000))
    d = [F(1, 20)] * 3
    expected = 2 * sum(0.05 * min(1, r * 0.1, sqrt(r * 0.001 / 2)) for r in (2, 1, 0))
    assert float(adaptive(region, d)) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="3 tokens"):
        adaptive(region, d[:2])
