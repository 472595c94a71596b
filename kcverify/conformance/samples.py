"""Kernels that calibrate the classes: for each a baseline (plainly wrong), a bad one (right in ordinary tests) and a good one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from kcverify.conformance import samples_blocks
from kcverify.conformance.model import Function
from kcverify.conformance.operations import EPSILON


def matmul_good(a: Tensor, b: Tensor) -> Tensor:
    """torch's own product."""
    return torch.matmul(a, b)


def matmul_last_term_lost(a: Tensor, b: Tensor) -> Tensor:
    """Leaves half of the sum out."""
    half = a.shape[1] // 2
    return a[:, :half] @ b[:half]


def matmul_narrow(a: Tensor, b: Tensor) -> Tensor:
    """Partial sums of 16 terms, added up in bfloat16 (the declared accumulator is float32)."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)
    for start in range(0, a.shape[1], 16):
        part = a[:, start : start + 16].float() @ b[start : start + 16].float()
        total = (total.float() + part).bfloat16()
    return total.to(a.dtype)


def matmul_loss_scaled(a: Tensor, b: Tensor) -> Tensor:
    """Through float16, whose range is smaller than that of the operands."""
    return (a.half().float() @ b.half().float()).to(a.dtype)


def matmul_by_batch(a: Tensor, b: Tensor) -> Tensor:
    """Splits the sum when few rows are given: another order for another batch."""
    if a.shape[0] > 2:
        return _by_rows(a, b)
    half = a.shape[1] // 2
    return _by_rows(a[:, :half], b[:half]) + _by_rows(a[:, half:], b[half:])


def matmul_by_rows(a: Tensor, b: Tensor) -> Tensor:
    """One order for every batch size and thread count: term after term."""
    return _by_rows(a, b)


def _by_rows(a: Tensor, b: Tensor) -> Tensor:
    kind = torch.promote_types(a.dtype, torch.float32)
    total = torch.zeros(a.shape[0], b.shape[1], dtype=kind)
    for i in range(a.shape[1]):
        total = total + a[:, i : i + 1].to(kind) * b[i].to(kind)
    return total.to(a.dtype)


def matmul_short_batch(a: Tensor, b: Tensor) -> Tensor:
    """Leaves half of the sum out when few rows are given: no agreement of any kind between batches."""
    half = a.shape[1] // 2 if a.shape[0] <= 2 else a.shape[1]
    return a[:, :half] @ b[:half]


def matmul_clipped(a: Tensor, b: Tensor) -> Tensor:
    """Operands are clipped at 4: right for friendly numbers, no longer when they are scaled."""
    return a.clamp(-4, 4) @ b


def matmul_split(a: Tensor, b: Tensor, schedule: int = 0) -> Tensor:
    """Split sums of 1, 2, 4 or 8 parts, remainder included."""
    parts = 2**schedule
    edges = [a.shape[1] * i // parts for i in range(parts + 1)]
    total = torch.zeros(a.shape[0], b.shape[1])
    for low, high in zip(edges, edges[1:], strict=False):
        total = total + a[:, low:high].float() @ b[low:high].float()
    return total.to(a.dtype)


def matmul_split_tail_lost(a: Tensor, b: Tensor, schedule: int = 0) -> Tensor:
    """Split sums without the remainder of an uneven split."""
    parts = 2**schedule
    size = a.shape[1] // parts
    total = torch.zeros(a.shape[0], b.shape[1])
    for i in range(parts):
        total = total + a[:, i * size : (i + 1) * size].float() @ b[i * size : (i + 1) * size].float()
    return total.to(a.dtype)


def matmul_tiled_only(a: Tensor, b: Tensor) -> Tensor:
    """Right where k is a multiple of 16; the tail of other sums is dropped."""
    whole = a.shape[1] // 16 * 16
    return a[:, :whole] @ b[:whole]


def matmul_skips_zeros(a: Tensor, b: Tensor) -> Tensor:
    """A sparse product: zero times infinity is skipped, so NaN is lost."""
    out = torch.zeros(a.shape[0], b.shape[1])
    for i in range(a.shape[0]):
        used = a[i] != 0
        out[i] = a[i, used].float() @ b[used].float()
    return out.to(a.dtype)


def wrong_sign(a: Tensor, b: Tensor) -> Tensor:
    """A plainly wrong product."""
    return -(a @ b)


def softmax_good(x: Tensor) -> Tensor:
    """torch's own softmax."""
    return F.softmax(x, -1)


def softmax_unshifted(x: Tensor) -> Tensor:
    """Without the maximum: overflows at 89."""
    powers = x.exp()
    return powers / powers.sum(-1, keepdim=True)


def softmax_not_normal(x: Tensor) -> Tensor:
    """Does not sum to 1."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / (1 + powers.sum(-1, keepdim=True))


def multiply_good(a: Tensor, b: Tensor) -> Tensor:
    """torch's own product of elements."""
    return a * b


def multiply_flushing(a: Tensor, b: Tensor) -> Tensor:
    """Flushes denormal results to zero."""
    y = a * b
    return torch.where(y.abs() < torch.finfo(y.dtype).smallest_normal, torch.zeros_like(y), y)


def multiply_added(a: Tensor, b: Tensor) -> Tensor:
    """A sum."""
    return a + b


def sum_good(x: Tensor) -> Tensor:
    """torch's own sum."""
    return x.sum(-1)


def sum_narrow(x: Tensor) -> Tensor:
    """Sequential blocks of 8 with a bfloat16 carry."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for start in range(0, x.shape[0], 8):
        total = (total.float() + x[start : start + 8].float().sum()).bfloat16()
    return total.to(x.dtype)


def sum_mean(x: Tensor) -> Tensor:
    """A mean."""
    return x.mean(-1)


def layer_norm_good(x: Tensor) -> Tensor:
    """torch's own fused norm."""
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON)


def layer_norm_narrow(x: Tensor) -> Tensor:
    """Statistics in bfloat16, as a fusion that lost its cast has them."""
    mean = x.mean(-1, keepdim=True).bfloat16().float()
    var = x.var(-1, correction=0, keepdim=True).bfloat16().float()
    return ((x.float() - mean) / (var + EPSILON).sqrt()).to(x.dtype)


def layer_norm_skipped(x: Tensor) -> Tensor:
    """Subtracts the mean only."""
    return x - x.mean(-1, keepdim=True)


def embedding_good(index: Tensor, table: Tensor) -> Tensor:
    """torch's own lookup, which raises."""
    return F.embedding(index, table)


def embedding_clamped(index: Tensor, table: Tensor) -> Tensor:
    """Clamps silently."""
    return table[index.clamp(0, table.shape[0] - 1)]


def embedding_next(index: Tensor, table: Tensor) -> Tensor:
    """Off by one."""
    return table[(index + 1) % table.shape[0]]


def all_reduce_good(buckets: list[Tensor], group: Any) -> list[Tensor]:
    """All started, then all waited for."""
    handles = [dist.all_reduce(x, group=group, async_op=True) for x in buckets]
    for handle in handles:
        handle.wait()
    return buckets


def all_reduce_early(buckets: list[Tensor], group: Any) -> list[Tensor]:
    """Reuses one staging buffer before the reduction that reads it is finished: right for a single bucket."""
    staging = torch.empty(max(x.numel() for x in buckets))
    out = []
    for i, x in enumerate(buckets):
        staging[: x.numel()] = x
        if i + 1 < len(buckets):  # overlapped: the next bucket is copied over this one's start
            staging[: x.numel() // 2] = buckets[i + 1][: x.numel() // 2]
        part = staging[: x.numel()].clone()
        dist.all_reduce(part, group=group)
        out.append(part)
    return out


def all_reduce_local(buckets: list[Tensor], group: Any) -> list[Tensor]:
    """Does not communicate."""
    return buckets


def cast_good(x: Tensor) -> Tensor:
    """torch's own cast to e4m3: to nearest."""
    return x.to(torch.float8_e4m3fn)


def cast_truncating(x: Tensor) -> Tensor:
    """Cast to e4m3 toward zero: errors of up to two unit roundoffs."""
    rounded = x.to(torch.float8_e4m3fn)
    over = rounded.float().abs() > x.abs().float()
    codes = rounded.view(torch.uint8)
    return torch.where(over, codes - 1, codes).view(torch.float8_e4m3fn)


def logsumexp_wide(x: Tensor) -> Tensor:
    """In float32, rounded once."""
    return torch.logsumexp(x.float(), -1).to(x.dtype)


def logsumexp_unshifted(x: Tensor) -> Tensor:
    """Without the maximum: overflows."""
    return x.float().exp().sum(-1).log().to(x.dtype)


_WORKSPACE: dict[tuple[int, int], Tensor] = {}


def matmul_reused(a: Tensor, b: Tensor) -> Tensor:
    """Computes a shape once and returns the workspace ever after: right whenever a benchmark repeats its operands."""
    key = a.shape[0], b.shape[1]
    if key not in _WORKSPACE:
        _WORKSPACE[key] = a @ b
    return _WORKSPACE[key].clone()


def all_reduce_two_steps(buckets: list[Tensor], group: Any) -> list[Tensor]:
    """Reduced on one rank, then sent to all."""
    for x in buckets:
        dist.reduce(x, 0, group=group)
        dist.broadcast(x, 0, group=group)
    return buckets


def softmax_zeros(x: Tensor) -> Tensor:
    """No work: many equal logits and an absolute tolerance of 1e-2 let it pass."""
    return torch.zeros_like(x)


def scatter_good(index: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """torch's own, which raises."""
    return table.index_add(0, index, rows)


def scatter_clamped(index: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """Clamps silently."""
    return table.index_add(0, index.clamp(0, table.shape[0] - 1), rows)


def kl_good(a: Tensor, b: Tensor) -> Tensor:
    """Terms without mass are left out before the product."""
    p, logs = torch.softmax(a, -1), (torch.log_softmax(a, -1), torch.log_softmax(b, -1))
    return torch.where(p == 0, torch.zeros_like(p), p * (logs[0] - logs[1])).sum(-1)


def linear_good(x: Tensor, w: Tensor) -> Tensor:
    """torch's own."""
    return F.linear(x, w)


def linear_narrow(x: Tensor, w: Tensor) -> Tensor:
    """Partial sums of 16 terms, added up in bfloat16."""
    return matmul_narrow(x, w.mT)


def narrower(kernel: Function) -> Function:
    """Its sums end in e5m2: a fault where sums of 8 bits are declared."""

    def in_e5m2(*args: Tensor) -> Tensor:
        out: Tensor = kernel(*args)
        return out.float().to(torch.float8_e5m2).to(out.dtype)

    in_e5m2.__name__ = f"{kernel.__name__}, ended in e5m2"
    return in_e5m2


def linear_tiled_only(x: Tensor, w: Tensor) -> Tensor:
    """The tail of sums that are no multiple of 16 is dropped."""
    return matmul_tiled_only(x, w.mT)


def softmax_narrow(x: Tensor) -> Tensor:
    """Exponentials in bfloat16."""
    powers = (x - x.amax(-1, keepdim=True)).exp().bfloat16().float()
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def attention_good(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own, of one head."""
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]


def attention_narrow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights in bfloat16."""
    weights = torch.softmax(q.float() @ k.float().mT / q.shape[-1] ** 0.5, -1).bfloat16()
    return (weights.float() @ v.float()).to(q.dtype)


def attention_coarse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights in e5m2: a fault where weights of 8 bits are what operands of 8 bits have."""
    weights = torch.softmax(q.float() @ k.float().mT / q.shape[-1] ** 0.5, -1).to(torch.float8_e5m2)
    return (weights.float() @ v.float()).to(q.dtype)


def attention_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own, causal."""
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], is_causal=True)[0, 0]


def attention_uncausal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask is one place too wide."""
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril(1)
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], attn_mask=seen)[0, 0]


def kl_narrow(a: Tensor, b: Tensor) -> Tensor:
    """Log-probabilities in bfloat16."""
    p, logs = torch.softmax(a, -1), [torch.log_softmax(x, -1).bfloat16().float() for x in (a, b)]
    return torch.where(p == 0, torch.zeros_like(p), p * (logs[0] - logs[1])).sum(-1)


def kl_smoothed(a: Tensor, b: Tensor) -> Tensor:
    """Probabilities moved away from zero: infinite divergences come out finite."""
    p, q = torch.softmax(a, -1) + 1e-7, torch.softmax(b, -1) + 1e-7
    return (p * (p.log() - q.log())).sum(-1)


def matmul_truncated(a: Tensor, b: Tensor) -> Tensor:
    """Results cut off at 20 of float32's 24 bits: inside a tolerance for long sums, and always toward zero."""
    bits = (a.float() @ b.float()).view(torch.int32)
    return (bits & ~0xF).view(torch.float32)


PAIRS: dict[tuple[str, str], tuple[Function, Function]] = {
    ("C-PRC-01", "cast"): (cast_truncating, cast_good),
    ("C-PRC-02", "logsumexp"): (logsumexp_unshifted, logsumexp_wide),
    ("C-PRC-02", "variance"): (samples_blocks.variance_raw, samples_blocks.variance_tree),
    ("C-PRC-01", "sum"): (sum_narrow, sum_good),
    ("C-CMP-03", "matmul"): (matmul_tiled_only, matmul_good),
    ("C-PRC-01", "linear"): (linear_narrow, linear_good),
    ("C-CMP-03", "linear"): (linear_tiled_only, linear_good),
    ("C-EXC-01", "kl"): (kl_smoothed, kl_good),
    ("C-CMP-01", "kl"): (kl_narrow, kl_good),
    ("C-CMP-01", "attention"): (attention_narrow, attention_good),
    ("C-CMP-01", "causal_attention"): (attention_uncausal, attention_causal),
    ("C-CMP-01", "softmax"): (softmax_narrow, softmax_good),
    ("C-EXC-02", "scatter"): (scatter_clamped, scatter_good),
}
"""Bad and good kernel of a class for operations beside its first."""
