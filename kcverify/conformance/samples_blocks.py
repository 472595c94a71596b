"""Kernels that work block by block: softmaxes that rescale their sum, moments merged as trees; right ones and their faults.

Operands of narrow formats are widened to float32 first, and the result is rounded once, but for `variance_raw`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 16
"""Terms of a block."""
LANES = 4
"""Interleaved sums of `variance_cascade`."""
_LOG2_E = 1.4426950408889634


def _blocks(x: Tensor) -> list[Tensor]:
    return list(x.split(BLOCK, -1))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _online(x: Tensor, power: Callable[[Tensor], Tensor], factor: bool = True, narrow: bool = False) -> Tensor:
    """The largest number so far and the sum against it, block by block; then a quotient for each term."""
    y = _wide(x)
    top = torch.full_like(y[..., :1], float("-inf"))
    total = torch.zeros_like(top)
    for part in _blocks(y):
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        total = total * power(top - new) if factor else total
        total, top = total + power(part - new).sum(-1, keepdim=True), new
        total = total.bfloat16().to(y.dtype) if narrow else total
    return (power(y - top) / total).to(x.dtype)


def softmax_online(x: Tensor) -> Tensor:
    """The sum so far is rescaled when the largest number rises."""
    return _online(x, torch.exp)


def softmax_online_stale(x: Tensor) -> Tensor:
    """Without the factor of earlier sums: right where the largest number is in the first block."""
    return _online(x, torch.exp, factor=False)


def softmax_online_narrow(x: Tensor) -> Tensor:
    """The running sum is kept in bfloat16."""
    return _online(x, torch.exp, narrow=True)


def softmax_base2(x: Tensor) -> Tensor:
    """Logits times log2(e) first, then exponentials of base 2, block by block."""
    return _online(_wide(x) * _LOG2_E, torch.exp2).to(x.dtype)


def softmax_base2_coarse(x: Tensor) -> Tensor:
    """Its log2(e) has 8 bits: every exponent is off by a share of its span."""
    return _online(_wide(x) * 1.4453125, torch.exp2).to(x.dtype)


def softmax_base2_mixed(x: Tensor) -> Tensor:
    """Sums are rescaled by natural exponentials of logits that were scaled for base 2."""
    y = _wide(x) * _LOG2_E
    top = torch.full_like(y[..., :1], float("-inf"))
    total = torch.zeros_like(top)
    for part in _blocks(y):
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        total, top = total * torch.exp(top - new) + torch.exp2(part - new).sum(-1, keepdim=True), new
    return (torch.exp2(y - top) / total).to(x.dtype)


Moments = tuple[int, Tensor, Tensor]


def _into(a: Moments, b: Moments) -> Moments:
    """Count, mean and sum of squared deviations of two parts, the second one merged into the first."""
    (n, mean, squares), (m, other, more) = a, b
    apart = other - mean
    share = m / (n + m)
    return n + m, mean + apart * share, squares + more + apart * apart * (share * n)


def _merge(a: Moments, b: Moments) -> Moments:
    """The smaller one into the larger one."""
    return _into(a, b) if a[0] >= b[0] else _into(b, a)


def _moments(part: Tensor) -> Moments:
    mean = part.mean(-1)
    return part.shape[-1], mean, (part - mean[..., None]).square().sum(-1)


def variance_tree(x: Tensor) -> Tensor:
    """Population variance: two passes over blocks, moments merged as a balanced tree."""
    parts = [_moments(part) for part in _blocks(_wide(x))]
    while len(parts) > 1:
        pairs = [_merge(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) // 2 * 2 :]
    count, _, squares = parts[0]
    return (squares / count).to(x.dtype)


def _counter(x: Tensor) -> Moments:
    """Blocks merged like the digits of a binary counter; what is left is merged from the smallest up: larger into smaller."""
    digits: list[Moments | None] = []
    for part in _blocks(x):
        carry, at = _moments(part), 0
        while at < len(digits) and (digit := digits[at]) is not None:
            carry, digits[at], at = _into(digit, carry), None, at + 1
        digits[at : at + 1] = [carry]
    kept = [digit for digit in digits if digit is not None]
    out = kept[0]
    for digit in kept[1:]:
        out = _into(out, digit)
    return out


def variance_cascade(x: Tensor) -> Tensor:
    """Population variance as vector kernels have it: a counter a lane, lanes merged into what the lanes left over."""
    y = _wide(x)
    each = y.shape[-1] // LANES
    left = y[..., each * LANES :]
    out = _moments(left) if left.shape[-1] else None
    for lane in y[..., : each * LANES].unflatten(-1, (each, LANES)).unbind(-1) if each else ():
        out = _counter(lane) if out is None else _into(out, _counter(lane))
    assert out is not None
    return (out[2] / out[0]).to(x.dtype)


def variance_cascade_unweighted(x: Tensor) -> Tensor:
    """Lanes are merged as if all parts had the same size: right where nothing is left over and no counter carries."""
    y = _wide(x)
    parts = [_moments(part) for part in _blocks(y)]
    count, mean, squares = parts[0]
    for n, other, more in parts[1:]:
        apart = other - mean
        count, mean, squares = count + n, (mean + other) / 2, squares + more + apart.square() * n / 2
    return (squares / count).to(x.dtype)


def variance_raw(x: Tensor) -> Tensor:
    """The mean of the squares less the square of the mean, in the operands' format: right while the mean is small."""
    return (x * x).mean(-1) - x.mean(-1).square()
