"""Kernels that work block by block: a softmax that rescales its sum, moments merged as a tree; right ones and their faults."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 16
"""Terms of a block."""


def _blocks(x: Tensor) -> list[Tensor]:
    return list(x.split(BLOCK, -1))


def softmax_online(x: Tensor) -> Tensor:
    """The largest number so far and the sum against it, block by block; then a quotient for each term."""
    top = torch.full_like(x[..., :1], float("-inf"))
    total = torch.zeros_like(top)
    for part in _blocks(x):
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        total = total * (top - new).exp() + (part - new).exp().sum(-1, keepdim=True)
        top = new
    return (x - top).exp() / total


def softmax_online_stale(x: Tensor) -> Tensor:
    """Without the factor of earlier sums: right where the largest number is in the first block."""
    top = torch.full_like(x[..., :1], float("-inf"))
    total = torch.zeros_like(top)
    for part in _blocks(x):
        top = torch.maximum(top, part.amax(-1, keepdim=True))
        total = total + (part - top).exp().sum(-1, keepdim=True)
    return (x - top).exp() / total


def softmax_online_narrow(x: Tensor) -> Tensor:
    """The running sum is kept in bfloat16."""
    top = torch.full_like(x[..., :1], float("-inf"))
    total = torch.zeros_like(top)
    for part in _blocks(x):
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        total = total * (top - new).exp() + (part - new).exp().sum(-1, keepdim=True)
        total, top = total.bfloat16().to(x.dtype), new
    return (x - top).exp() / total


Moments = tuple[int, Tensor, Tensor]


def _merge(a: Moments, b: Moments) -> Moments:
    """Count, mean and sum of squared deviations of two parts, the smaller one into the larger one."""
    (n, mean, squares), (m, other, more) = (a, b) if a[0] >= b[0] else (b, a)
    apart = other - mean
    share = m / (n + m)
    return n + m, mean + apart * share, squares + more + apart * apart * (share * n)


def variance_tree(x: Tensor) -> Tensor:
    """Population variance: two passes over blocks, moments merged as a balanced tree."""
    parts: list[Moments] = []
    for part in _blocks(x):
        mean = part.mean(-1)
        parts.append((part.shape[-1], mean, (part - mean[..., None]).square().sum(-1)))
    while len(parts) > 1:
        pairs = [_merge(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) // 2 * 2 :]
    count, _, squares = parts[0]
    return squares / count


def variance_raw(x: Tensor) -> Tensor:
    """The mean of the squares less the square of the mean: right while the mean is small."""
    return (x * x).mean(-1) - x.mean(-1).square()
