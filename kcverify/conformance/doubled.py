"""Sums of products in doubled float64: what an exact result has beyond the one that plain float64 gives.

Transformations without error: a sum and a product of two doubles as two doubles (Knuth; Dekker with Veltkamp's split). Their use
for dot products, and the bound, are Ogita, Rump and Oishi's: Accurate sum and dot product, SIAM J. Sci. Comput. 26 (2005), Dot2.
"""

from __future__ import annotations

from torch import Tensor

_SPLIT = 2.0**27 + 1


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`a + b` rounded, and what the rounding left out, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two doubles of 26 bits each whose sum is `x`; below 2^996 in size."""
    moved = x * _SPLIT
    high = moved - (moved - x)
    return high, x - high


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`a * b` rounded, and what the rounding left out: exactly, where no part of it underflows."""
    product = a * b
    (high_a, low_a), (high_b, low_b) = _halves(a), _halves(b)
    return product, low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)


def beyond(a: Tensor, b: Tensor) -> Tensor:
    """`a b - y`, float64 `[m, n]`, of `[m, k]` and `[k, n]`, y the product as float64 gives it.

    Off by at most `u |a b - y| + gamma(k + 1)^2 (|a||b| + |y|)`, u = 2^-53: y is one more term of a doubled sum.
    """
    high, low = -(a @ b), a.new_zeros(a.shape[0], b.shape[1])
    for i in range(a.shape[1]):
        product, rest = two_product(a[:, i : i + 1], b[i])
        high, lost = two_sum(high, product)
        low = low + (lost + rest)
    return high + low
