"""torch's own kernels as the classes call them: plain functions of operands, on whatever device the operands are."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kcverify.conformance import samples
from kcverify.conformance.model import Function
from kcverify.conformance.operations import EPSILON
from kcverify.measure.kernels import BY_NAME as FORMATS
from kcverify.measure.kernels import multiply


def _one(x: Tensor, value: float = 1.0) -> Tensor:
    return torch.full((), value, device=x.device)


def _columns(b: Tensor) -> Tensor:
    """The second operand in column order."""
    return b.t().contiguous().t()


def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """int8 product with int32 sums."""
    return torch._int_mm(a, b)


def int_mm_strided(a: Tensor, b: Tensor) -> Tensor:
    """int8 product of rows that are expanded from one dimension (stride 0 along the single row), and columns in order."""
    return torch.cat([torch._int_mm(row.reshape(-1).as_strided((1, a.shape[1]), (0, 1)), _columns(b)) for row in a])


def int_mm_transposed(a: Tensor, b: Tensor) -> Tensor:
    """int8 product of operands in column order and with gaps between rows."""
    wide = torch.cat((a, a), 1)[:, : a.shape[1]]
    return torch._int_mm(wide, _columns(b))


def plain_matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`."""
    return a @ b


def scaled_mm(a: Tensor, b: Tensor) -> Tensor:
    """float8 product with bfloat16 output and unit scales."""
    one = _one(a)
    return torch._scaled_mm(a, _columns(b), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def scaled_mm_fast(a: Tensor, b: Tensor) -> Tensor:
    """The same with fast accumulation."""
    one = _one(a)
    return torch._scaled_mm(a, _columns(b), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def scaled_mm_rowwise(a: Tensor, b: Tensor) -> Tensor:
    """The same with a scale of one for every row and every column."""
    rows, columns = torch.ones(a.shape[0], 1, device=a.device), torch.ones(1, b.shape[1], device=a.device)
    return torch._scaled_mm(a, _columns(b), scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)


def scaled_mm_default(a: Tensor, b: Tensor) -> Tensor:
    """e4m3 product without `out_dtype`: the result is e4m3."""
    one = _one(a)
    return torch._scaled_mm(a, _columns(b), scale_a=one, scale_b=one)


def scaled_mm_e4m3(a: Tensor, b: Tensor) -> Tensor:
    """e4m3 product with e4m3 output, asked for."""
    one = _one(a)
    return torch._scaled_mm(a, _columns(b), scale_a=one, scale_b=one, out_dtype=torch.float8_e4m3fn)


def scaled_mm_result(a: Tensor, b: Tensor) -> Tensor:
    """e4m3 product whose result is scaled by 2, and back: a `scale_result` that is ignored or divides leaves less of it."""
    one, two = _one(a), _one(a, 2.0)
    out = torch._scaled_mm(a, _columns(b), scale_a=one, scale_b=one, scale_result=two, out_dtype=torch.float8_e4m3fn)
    return (out.float() / 2).to(torch.float8_e4m3fn)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's attention of one head."""
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]


def attention_of(backend: SDPBackend) -> Function:
    """Attention by one of torch's backends."""

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return attention(q, k, v)

    return kernel


def attention_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Four query heads on two heads of keys and values; the last one is returned."""
    many = q.expand(1, 4, *q.shape)
    keys, values = (x.expand(1, 2, *x.shape) for x in (k, v))
    return F.scaled_dot_product_attention(many, keys, values, enable_gqa=True)[0, 3].clone()


def attention_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With a mask that leaves everything in."""
    mask = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool, device=q.device)
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], attn_mask=mask)[0, 0]


def attention_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Row i attends to the first i + 1 keys."""
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], is_causal=True)[0, 0]


def compiled(function: Function) -> Function:
    """A function through `torch.compile`, which fuses it anew; compiled at its first call."""
    kept: list[Function] = []

    def kernel(*args: Tensor) -> Tensor:
        if not kept:
            kept.append(torch.compile(function))
        out: Tensor = kept[0](*args)
        return out

    return kernel


def rms_norm(x: Tensor) -> Tensor:
    """torch's own norm."""
    return F.rms_norm(x, x.shape[-1:], eps=EPSILON)


def logsumexp(x: Tensor) -> Tensor:
    """torch's own log-sum-exp."""
    return torch.logsumexp(x, -1)


def variance(x: Tensor) -> Tensor:
    """torch's own population variance."""
    return x.var(-1, correction=0)


def relu(x: Tensor) -> Tensor:
    """torch's own relu."""
    return torch.relu(x)


def multiply_flushed(a: Tensor, b: Tensor) -> Tensor:
    """torch's product with `torch.set_flush_denormal(True)`, put back afterwards."""
    torch.set_flush_denormal(True)
    try:
        return a * b
    finally:
        torch.set_flush_denormal(False)


def kl_rows(a: Tensor, b: Tensor) -> Tensor:
    """`F.kl_div` of the rows' softmaxes, target given as probabilities, summed over the vocabulary."""
    return F.kl_div(torch.log_softmax(b, -1), torch.softmax(a, -1), reduction="none").sum(-1)


def kl_log_target(a: Tensor, b: Tensor) -> Tensor:
    """The same with the target given as logarithms."""
    logs = torch.log_softmax(b, -1), torch.log_softmax(a, -1)
    return F.kl_div(*logs, reduction="none", log_target=True).sum(-1)


def kl_mean(a: Tensor, b: Tensor) -> Tensor:
    """`reduction="mean"` of one row at a time: the documented trap, it divides by the vocabulary too."""
    rows = zip(a, b, strict=True)
    logs = [(torch.log_softmax(q, -1)[None], torch.softmax(p, -1)[None]) for p, q in rows]
    return torch.stack([F.kl_div(q, p, reduction="mean") for q, p in logs])


def kl_batchmean(a: Tensor, b: Tensor) -> Tensor:
    """`reduction="batchmean"` of one row at a time."""
    rows = zip(a, b, strict=True)
    logs = [(torch.log_softmax(q, -1)[None], torch.softmax(p, -1)[None]) for p, q in rows]
    return torch.stack([F.kl_div(q, p, reduction="batchmean") for q, p in logs])


def cast_e4m3(x: Tensor) -> Tensor:
    """Cast to float8_e4m3fn."""
    return x.to(torch.float8_e4m3fn)


def cast_e5m2(x: Tensor) -> Tensor:
    """Cast to float8_e5m2."""
    return x.to(torch.float8_e5m2)


def lookup(index: Tensor, table: Tensor) -> Tensor:
    """Indexing with a tensor."""
    return table[index]


def index_select(index: Tensor, table: Tensor) -> Tensor:
    """`index_select`."""
    return table.index_select(0, index)


def gather(index: Tensor, table: Tensor) -> Tensor:
    """`gather` of whole rows."""
    return table.gather(0, index[:, None].expand(-1, table.shape[1]))


def scatter_add(index: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """`scatter_add` of whole rows."""
    return table.scatter_add(0, index[:, None].expand_as(rows), rows)


def index_add(index: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """`index_add`."""
    return table.index_add(0, index, rows)


def index_put(index: Tensor, rows: Tensor, table: Tensor) -> Tensor:
    """`index_put` with accumulation: negative indices count from the end."""
    return table.index_put((index,), rows, accumulate=True)


def int8_weight_unpadded(x: Tensor, w: Tensor) -> Tensor:
    """`_weight_int8pack_mm` on operands as they are: torch 2.13 reads out of bounds in bfloat16 unless k is a multiple of 32."""
    packed = FORMATS["int8"].pack(w.float())
    codes = packed.codes[: w.shape[0], : w.shape[1]].contiguous()
    return torch._weight_int8pack_mm(x, codes, packed.scales[: w.shape[0]].to(x.dtype).contiguous())


def u8s8(engine: str) -> Function:
    """u8 x s8 product of an engine: `a + 128` times a weight, less what the shift adds. One sum of k products each."""

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        right = 128 * w.float().sum(1)
        shifted = (x.to(torch.int16) + 128).to(torch.uint8)
        return U8S8[engine](shifted, w) - right

    kernel.__name__ = f"u8s8_{engine}"
    return kernel


def _onednn(x: Tensor, w: Tensor) -> Tensor:
    weight = torch.ops.onednn.qlinear_prepack(w.contiguous(), list(x.shape))
    scales, zeros = torch.ones(w.shape[0]), torch.zeros(w.shape[0], dtype=torch.int32)
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out


def _dynamic(engine: str) -> Callable[[Tensor, Tensor], Tensor]:
    """`quantized.linear_dynamic` without a reduced range; two columns more fix its scale at 1 and its zero at 0."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = engine
        try:
            ends = torch.tensor([[255.0, 0.0]]).expand(x.shape[0], 2)
            wide = torch.cat((w.float(), torch.zeros(w.shape[0], 2)), 1)
            stored = torch.quantize_per_tensor(wide, 1.0, 0, torch.qint8)
            weight = torch.ops.quantized.linear_prepack(stored, None)
            out: Tensor = torch.ops.quantized.linear_dynamic(torch.cat((x.float(), ends), 1), weight, False)
            return out
        finally:
            torch.backends.quantized.engine = before

    return product


U8S8: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "onednn": _onednn, **{engine: _dynamic(engine) for engine in ("x86", "fbgemm", "qnnpack")},
}  # fmt: skip
"""Engines of u8 x s8 products: without VNNI all but qnnpack add pairs of products at int16 and saturate."""


def int16_pairs(a: Tensor, b: Tensor) -> Tensor:
    """What u8 x s8 products do without VNNI: sums of two products saturate at int16 before they are added up in int32."""
    left, right = a.to(torch.int32) + 128, b.to(torch.int32)
    products = left[:, :, None] * right[None]
    if products.shape[1] % 2:
        products = F.pad(products, (0, 0, 0, 1))
    pairs = (products[:, ::2] + products[:, 1::2]).clamp(-(2**15), 2**15 - 1)
    return (pairs.sum(1) - 128 * right.sum(0)).to(torch.int32)


def half_sums(a: Tensor, b: Tensor) -> Tensor:
    """Sums in float16, float32 out: 128 terms of 600 overflow."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for i in range(a.shape[1]):
        total = total + a[:, i : i + 1].half() * b[i].half()
    return total.float()


def wide_sums(a: Tensor, b: Tensor) -> Tensor:
    """Sums in float32, float32 out."""
    return a.float() @ b.float()


def tf32_operands(a: Tensor, b: Tensor) -> Tensor:
    """What tensor cores do to float32 operands where tf32 is allowed: 11 bits of them are kept."""
    return _tf32(a) @ _tf32(b)


def _tf32(x: Tensor) -> Tensor:
    """To nearest of 11 significant bits, ties to even."""
    bits = x.contiguous().view(torch.int32).to(torch.int64)
    rounded = bits + 0xFFF + ((bits >> 13) & 1)
    return (rounded & ~0x1FFF).to(torch.int32).view(torch.float32)


def of_format(name: str) -> Function:
    """A product with a weight in one of kcverify's formats, packed on the spot."""

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        return multiply(FORMATS[name], x, FORMATS[name].pack(w.float()))

    return kernel


def softmax_steps(x: Tensor) -> Tensor:
    """A softmax in steps, for compilers to fuse."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def attention_steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in steps, for compilers to fuse."""
    return softmax_steps(q @ k.mT / q.shape[-1] ** 0.5) @ v


COMPILED: dict[str, Function] = {
    "layer_norm": compiled(samples.layer_norm_good), "softmax": compiled(softmax_steps), "rms_norm": compiled(rms_norm),
    "linear": compiled(F.linear), "attention": compiled(attention_steps),
}  # fmt: skip
"""Operations through `torch.compile`."""
