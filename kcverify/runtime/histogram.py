"""Log-spaced histograms of non-negative values with a guaranteed interval around every order statistic.

A bin is the exponent and six mantissa bits of the value's binary pattern, found by an integer shift. The pattern of the
double is used, not of its rounding to float32, so no value crosses a bin edge before it is counted.
"""

from __future__ import annotations

import math

import torch

MANTISSA_BITS = 6
LOWEST, HIGHEST = -40, 24
_SHIFT = 52 - MANTISSA_BITS
_BASE = (LOWEST + 1023) << MANTISSA_BITS
BINS = ((HIGHEST - LOWEST) << MANTISSA_BITS) + 2
NAN, INFINITE = BINS, BINS + 1
SIZE = BINS + 2


def bin_index(values: torch.Tensor) -> torch.Tensor:
    """Bin of each value, int64: 0 below 2^-40 (and at 0), log bins, `BINS-1` from 2^24, then `NAN`, `INFINITE`."""
    x = values.double().contiguous()
    index = ((x.view(torch.int64) >> _SHIFT) - (_BASE - 1)).clamp(0, BINS - 1)
    index = torch.where(x <= 0, 0, index)
    index = torch.where(torch.isnan(x), NAN, index)
    return torch.where(x == torch.inf, INFINITE, index)


def count_into(counts: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Add the values `[N]` (those where `mask` holds) to `counts` int64 `[SIZE]` in place; no host synchronisation."""
    weight = torch.ones_like(values, dtype=torch.int64) if mask is None else mask.to(torch.int64)
    counts.scatter_add_(0, bin_index(values), weight)


def edge(index: int) -> float:
    """Lower edge of bin `index` (0 for the first)."""
    if index <= 0:
        return 0.0
    whole, part = divmod(index - 1, 1 << MANTISSA_BITS)
    return math.ldexp(1.0 + part / (1 << MANTISSA_BITS), LOWEST + whole)


def quantile(counts: torch.Tensor, share: float) -> tuple[float, float] | None:
    """Interval `[low, high]` that holds the order statistic of rank `ceil(share * n)`; None without values.

    Infinite values rank last and give `(inf, inf)`; a NaN ranks with them, since it is no evidence of a small value.
    """
    cumulative = counts[:BINS].cumsum(0)
    total = int(counts.sum())
    if total == 0:
        return None
    rank = max(1, math.ceil(share * total))
    index = int((cumulative < rank).sum())
    if index >= BINS:
        return math.inf, math.inf
    return edge(index), edge(index + 1) if index < BINS - 1 else math.inf


def trimmed(counts: torch.Tensor) -> dict[str, list[float] | list[int]]:
    """Edges and counts of the non-empty range: `len(edges) == len(counts) + 1`; both empty without finite values."""
    filled = counts[:BINS].nonzero()[:, 0].tolist()
    if not filled:
        return {"edges": [], "counts": []}
    first, last = filled[0], filled[-1]
    edges = [edge(i) for i in range(first, last + 1)]
    edges.append(edge(last + 1) if last < BINS - 1 else math.inf)
    return {"edges": edges, "counts": [int(c) for c in counts[first : last + 1].tolist()]}
