"""Table of kernel formats: how a weight matrix is packed and which of torch's own kernels multiplies with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kcverify.diagnostics import input_error

GROUP = 32
"""Inputs that share one scale and zero of the int4 format."""

_TINY = 1e-30  # an all-zero row gets this scale: its codes are zero and nothing divides by zero
_E4M3_MAX = 448.0


@dataclass(frozen=True)
class Packed:
    """A weight `[rows, columns]` as its kernel wants it: codes and scales, zero-padded to the kernel's multiples."""

    rows: int
    columns: int
    codes: Tensor
    scales: Tensor


@dataclass(frozen=True)
class Kernel:
    """One format. `pack(weight[N, K] float32)`, then `apply(x[M, K], packed) -> [M, N]` in the dtype of `x`.

    `operators` names the torch operator of each device type; `note` says what is quantised and how. `weights` and
    `inputs` are the format alone, without the kernel: the float32 matrix `[N, K]` that the codes and scales of a weight
    stand for, and the float32 input `[M, K]` that the kernel multiplies with it. `largest_product` is the largest
    |product| of two codes where the kernel adds them up as integers.
    """

    name: str
    title: str
    operators: Mapping[str, str]
    pack: Callable[[Tensor], Packed]
    apply: Callable[[Tensor, Packed], Tensor]
    note: str
    weights: Callable[[Tensor], Tensor]
    inputs: Callable[[Tensor], Tensor]
    largest_product: int | None = None
    aliases: tuple[str, ...] = ()


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 in [-127, 127] and scales `[rows, 1]` float32 with `x ≈ codes * scales`: symmetric, per row."""
    scales = x.abs().amax(1, keepdim=True).clamp_min(_TINY) / 127
    return (x / scales).round().clamp(-127, 127).to(torch.int8), scales


def quantise_rows_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes float8_e4m3fn and scales `[rows, 1]` float32 with `x ≈ codes * scales`; a row's peak maps to 448."""
    scales = x.abs().amax(1, keepdim=True).clamp_min(_TINY) / _E4M3_MAX
    return (x / scales).to(torch.float8_e4m3fn), scales


def quantise_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int32 `[N, K]` in 0..15 and scales-and-zeros `[K / 32, N, 2]` with `weight ≈ (code - 8) * scale + zero`."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // GROUP, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = (high - low).clamp_min(_TINY) / 15
    codes = ((groups - low) / scales).round().clamp(0, 15).to(torch.int32).reshape(rows, columns)
    return codes, torch.cat((scales, low + 8 * scales), -1).transpose(0, 1).contiguous()


def _padded(x: Tensor, rows: int, columns: int) -> Tensor:
    """`x` followed by zero rows and columns up to at least the given numbers."""
    missing = (0, max(0, columns - x.shape[1]), 0, max(0, rows - x.shape[0]))
    return F.pad(x, missing) if any(missing) else x.contiguous()


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _least_rows(x: Tensor) -> int:
    """cuBLAS refuses int8 products of 16 rows or fewer; zero rows are exact and are cut off again."""
    return 32 if x.is_cuda else 0


def _packed(weight: Tensor, codes: Tensor, scales: Tensor) -> Packed:
    return Packed(weight.shape[0], weight.shape[1], codes, scales)


def _pack_float32(weight: Tensor) -> Packed:
    return _packed(weight, weight, weight.new_ones(()))


def _apply_dense(x: Tensor, packed: Packed) -> Tensor:
    return F.linear(x.to(packed.codes.dtype), packed.codes).to(x.dtype)


def _pack_bfloat16(weight: Tensor) -> Packed:
    return _packed(weight, weight.bfloat16(), weight.new_ones(()))


def _pack_int8(weight: Tensor) -> Packed:
    """Padded because torch 2.13's CPU kernel reads out of bounds in bfloat16 when K is no multiple of its vectors."""
    padded = _padded(weight, _round_up(weight.shape[0], 16), _round_up(weight.shape[1], 32))
    codes, scales = quantise_rows(padded)
    return _packed(weight, codes.contiguous(), scales[:, 0].contiguous())


def _apply_int8(x: Tensor, packed: Packed) -> Tensor:
    wide = _padded(x, 0, packed.codes.shape[1])
    return torch._weight_int8pack_mm(wide, packed.codes, packed.scales.to(x.dtype))[:, : packed.rows]


def _pack_w8a8(weight: Tensor) -> Packed:
    codes, scales = quantise_rows(weight)
    padded = _padded(codes, _round_up(weight.shape[0], 16), _round_up(weight.shape[1], 16))
    return _packed(weight, padded, scales[:, 0].contiguous())


def _apply_w8a8(x: Tensor, packed: Packed) -> Tensor:
    codes, scales = quantise_rows(x.float())
    product = torch._int_mm(_padded(codes, _least_rows(x), packed.codes.shape[1]), packed.codes.t())
    return (product[: x.shape[0], : packed.rows].float() * scales * packed.scales).to(x.dtype)


def _pack_fp8(weight: Tensor) -> Packed:
    padded = _padded(weight, _round_up(weight.shape[0], 16), _round_up(weight.shape[1], 16))
    codes, scales = quantise_rows_e4m3(padded)
    return _packed(weight, codes.contiguous(), scales.t().contiguous())


def _apply_fp8(x: Tensor, packed: Packed) -> Tensor:
    codes, scales = quantise_rows_e4m3(_padded(x.float(), _least_rows(x), packed.codes.shape[1]))
    product = torch._scaled_mm(
        codes, packed.codes.t(), scale_a=scales.contiguous(), scale_b=packed.scales, out_dtype=torch.bfloat16
    )
    return product[: x.shape[0], : packed.rows].to(x.dtype)


def _pack_int4(weight: Tensor) -> Packed:
    rows, columns = weight.shape
    codes, scales = quantise_groups(_padded(weight, _round_up(rows, 16), _round_up(columns, GROUP)))
    if not weight.is_cuda:
        return _packed(weight, torch._convert_weight_to_int4pack_for_cpu(codes, 1), scales)
    pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8).contiguous()
    tiles = next(tiles for tiles in (8, 4, 2) if codes.shape[1] % (16 * tiles) == 0)
    return _packed(weight, torch._convert_weight_to_int4pack(pairs, tiles), scales.bfloat16())


def _apply_int4(x: Tensor, packed: Packed) -> Tensor:
    wide = _padded(x, 0, packed.scales.shape[0] * GROUP)
    if x.is_cuda:
        product = torch._weight_int4pack_mm(wide.bfloat16(), packed.codes, GROUP, packed.scales)
    else:
        product = torch._weight_int4pack_mm_for_cpu(wide, packed.codes, GROUP, packed.scales.to(x.dtype))
    return product[:, : packed.rows].to(x.dtype)


def _as_is(x: Tensor) -> Tensor:
    return x


def _through_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _rows_int8(x: Tensor) -> Tensor:
    """Rows `[rows, columns]` float32 as their int8 codes and scales stand for them."""
    codes, scales = quantise_rows(x.float())
    return codes.float() * scales


def _rows_int8_bf16(x: Tensor) -> Tensor:
    """As `_rows_int8` with the scales in bfloat16, in which the kernel gets them."""
    codes, scales = quantise_rows(x.float())
    return codes.float() * scales.bfloat16().float()


def _rows_e4m3(x: Tensor) -> Tensor:
    codes, scales = quantise_rows_e4m3(x.float())
    return codes.float() * scales


def _groups_of(weight: Tensor, scale_dtype: torch.dtype) -> Tensor:
    """A weight `[N, K]` as 4-bit codes, with scales and zeros in `scale_dtype`, stand for it; K padded as it is packed."""
    rows, columns = weight.shape
    codes, scales = quantise_groups(_padded(weight, 0, _round_up(columns, GROUP)))
    scale, zero = (scales.to(scale_dtype).float()[..., i].t()[:, :, None] for i in (0, 1))
    groups = codes.float().reshape(rows, -1, GROUP)
    return ((groups - 8) * scale + zero).reshape(rows, -1)[:, :columns]


def _groups_int4(weight: Tensor) -> Tensor:
    return _groups_of(weight, torch.bfloat16 if weight.is_cuda else torch.float32)


def _groups_int4_bf16(weight: Tensor) -> Tensor:
    return _groups_of(weight, torch.bfloat16)


def _inputs_int4(x: Tensor) -> Tensor:
    return _through_bfloat16(x) if x.is_cuda else x


def _in_bfloat16(apply: Callable[[Tensor, Packed], Tensor]) -> Callable[[Tensor, Packed], Tensor]:
    """The same kernel with bfloat16 activations in and out."""
    return lambda x, packed: apply(x.bfloat16(), packed).to(x.dtype)


def _both(operator: str) -> dict[str, str]:
    return {"cpu": operator, "cuda": operator}


KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "float32", "float32", _both("linear"), _pack_float32, _apply_dense,
        "the reference: float32 weights, activations and accumulation", _as_is, _as_is, aliases=("fp32", "f32"),
    ),
    Kernel(
        "bfloat16", "bfloat16", _both("linear"), _pack_bfloat16, _apply_dense,
        "weights, inputs and outputs of every product in bfloat16", _through_bfloat16, _through_bfloat16,
        aliases=("bf16",),
    ),
    Kernel(
        "int8", "int8 weight", _both("_weight_int8pack_mm"), _pack_int8, _apply_int8,
        "int8 weights with one scale a row, float32 activations", _rows_int8, _as_is,
    ),
    Kernel(
        "w8a8", "W8A8 dynamic int8", _both("_int_mm"), _pack_w8a8, _apply_w8a8,
        "int8 weights with one scale a row, int8 activations with one scale a token, exact int32 accumulation",
        _rows_int8, _rows_int8, largest_product=127 * 127,
    ),
    Kernel(
        "fp8", "float8 e4m3", _both("_scaled_mm"), _pack_fp8, _apply_fp8,
        "e4m3 weights and activations with one scale a row and a token, bfloat16 output; CUDA needs sm89 or newer",
        _rows_e4m3, _rows_e4m3, aliases=("fp8_e4m3", "float8_e4m3fn"),
    ),
    Kernel(
        "int4", "int4 weight", {"cpu": "_weight_int4pack_mm_for_cpu", "cuda": "_weight_int4pack_mm"},
        _pack_int4, _apply_int4,
        "4-bit weights with one scale and zero for 32 inputs; activations float32 on CPU, bfloat16 on CUDA",
        _groups_int4, _inputs_int4,
    ),
    Kernel(
        "int8_bf16", "int8 weight, bfloat16", _both("_weight_int8pack_mm"), _pack_int8, _in_bfloat16(_apply_int8),
        "as int8 with bfloat16 activations, for which torch has a vectorised CPU kernel (10 to 20 times faster)",
        _rows_int8_bf16, _through_bfloat16,
    ),
    Kernel(
        "int4_bf16", "int4 weight, bfloat16", {"cpu": "_weight_int4pack_mm_for_cpu", "cuda": "_weight_int4pack_mm"},
        _pack_int4, _in_bfloat16(_apply_int4),
        "as int4 with bfloat16 activations, for which torch has a vectorised CPU kernel (20 to 50 times faster)",
        _groups_int4_bf16, _through_bfloat16,
    ),
)  # fmt: skip

BY_NAME: dict[str, Kernel] = {name: kernel for kernel in KERNELS for name in (kernel.name, *kernel.aliases)}


def format_only(kernel: Kernel) -> Kernel:
    """The row's counterpart without its kernel: what the format stores, multiplied as the float32 reference multiplies.

    What it leaves to the kernel: the order of the sum, and every rounding inside it and of its output. The float32
    matrix rounds each `code * scale` once, by at most 2^-24 of it; nothing is rounded where scales are powers of two.
    """

    def pack(weight: Tensor) -> Packed:
        return _pack_float32(kernel.weights(weight).contiguous())

    def apply(x: Tensor, packed: Packed) -> Tensor:
        return _apply_dense(kernel.inputs(x), packed)

    note = f"the format of {kernel.title} in float32 arithmetic"
    return Kernel(
        f"{kernel.name} format",
        f"{kernel.title}, format only",
        _both("linear"),
        pack,
        apply,
        note,
        kernel.weights,
        kernel.inputs,
    )


def multiply(kernel: Kernel, x: Tensor, packed: Packed) -> Tensor:
    """`x[..., K]` times the packed weight transposed: `[..., N]` in the dtype of `x`."""
    return kernel.apply(x.reshape(-1, x.shape[-1]), packed).reshape(*x.shape[:-1], packed.rows)


def require(kernel: Kernel, device: torch.device) -> None:
    """Return when this build of torch runs the kernel on the device, shown by one small product.

    Raises InputError (`kernel_missing`) that names the operator and torch's own reason.
    """
    operator = kernel.operators.get(device.type, "")
    try:
        if not operator:
            raise RuntimeError(f"no operator for device type {device.type}")
        if not hasattr(F if operator == "linear" else torch, operator):
            raise RuntimeError("this build does not have it")
        weight = torch.linspace(-1, 1, 64 * 64, device=device).reshape(64, 64)
        multiply(kernel, weight, kernel.pack(weight))
    except (AttributeError, AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise input_error(
            "kernel_missing", kernel=f"{kernel.title} (torch.{operator or '?'})", device=device,
            version=torch.__version__, reason=reason,
        ) from error  # fmt: skip
