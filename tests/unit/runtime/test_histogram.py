"""Log histograms hold every order statistic and add up exactly."""

from __future__ import annotations

import math

import pytest
import torch

from kcverify.runtime.histogram import BINS, INFINITE, NAN, SIZE, bin_index, count_into, edge, quantile, trimmed


def counts_of(values: torch.Tensor) -> torch.Tensor:
    counts = torch.zeros(SIZE, dtype=torch.int64)
    count_into(counts, values)
    return counts


def test_bins_hold_their_values() -> None:
    x = (torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 9).exp()
    for value, index in zip(x.tolist(), bin_index(x).tolist(), strict=True):
        assert edge(index) <= value
        assert index == BINS - 1 or value < edge(index + 1)


def test_edges_belong_to_the_bin_above_and_their_predecessor_to_the_one_below() -> None:
    for index in (1, 2, 64, 65, 1000, BINS - 1):
        at = torch.tensor([edge(index)], dtype=torch.float64)
        assert bin_index(at).item() == index
        assert bin_index(torch.nextafter(at, torch.zeros_like(at))).item() == index - 1


def test_special_values() -> None:
    x = torch.tensor([0.0, -0.0, 1e-300, -1.0, math.inf, math.nan, 1e300], dtype=torch.float64)
    assert bin_index(x).tolist() == [0, 0, 0, 0, INFINITE, NAN, BINS - 1]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999, 1.0])
def test_quantile_interval_holds_the_order_statistic(share: float) -> None:
    x = (torch.randn(5000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 7).exp()
    low, high = quantile(counts_of(x), share) or (math.nan, math.nan)
    exact = x.sort().values[math.ceil(share * 5000) - 1].item()
    assert low <= exact < high <= low * 1.02


def test_infinite_values_rank_last() -> None:
    counts = counts_of(torch.tensor([1.0, 1.0, math.inf, math.nan], dtype=torch.float64))
    assert quantile(counts, 0.5) == (1.0, 1.015625)
    assert quantile(counts, 0.99) == (math.inf, math.inf)
    assert quantile(torch.zeros(SIZE, dtype=torch.int64), 0.5) is None


def test_merge_is_addition_and_masks_count_nothing() -> None:
    x = torch.rand(1000, generator=torch.Generator().manual_seed(2))
    assert torch.equal(counts_of(x[:300]) + counts_of(x[300:]), counts_of(x))
    masked = torch.zeros(SIZE, dtype=torch.int64)
    count_into(masked, x, x > 0.5)
    assert torch.equal(masked, counts_of(x[x > 0.5]))


def test_trimmed_range() -> None:
    shown = trimmed(counts_of(torch.tensor([1.0, 1.0, 1.04])))
    assert shown["counts"] == [2, 0, 1]
    assert shown["edges"] == [1.0, 1.015625, 1.03125, 1.046875]
    assert trimmed(torch.zeros(SIZE, dtype=torch.int64)) == {"edges": [], "counts": []}
