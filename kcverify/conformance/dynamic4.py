"""torch's 4-bit weights under inputs quantised a row at a time: `aten._dyn_quant_pack_4bit_weight`, `_dyn_quant_matmul_4bit`.

Weights: codes 0 to 15 stand for `(code - 8) * scale`, a scale for 32 inputs (bfloat16) or for a row (float32). Inputs: int8 codes
with a scale and a zero point a row, whole-number sums of a group, float32 sums of groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROUP = 32
FORMATS = ("groups", "rows")
"""A scale for `GROUP` inputs, or for a whole row."""

_TINY = 1e-30
_LOW, _HIGH = -128.0, 127.0


def _codes(name: str, w: Tensor) -> tuple[Tensor, Tensor, int]:
    """Codes int32 `[N, K]`, scales `[N, K / group]`, and the group: the largest size of a group maps to 7."""
    size = GROUP if name == "groups" else w.shape[1]
    groups = w.float().reshape(w.shape[0], -1, size)
    scales = (groups.abs().amax(-1) / 7).clamp_min(_TINY)
    kept = scales.bfloat16() if name == "groups" else scales
    codes = (groups / kept.float()[..., None]).round().clamp(-8, 7) + 8
    return codes.reshape(w.shape).to(torch.int32), kept, size


def weights(name: str, w: Tensor) -> Tensor:
    """What the codes and scales stand for, `[N, K]`: exact in float64."""
    codes, scales, size = _codes(name, w)
    return (codes.double() - 8) * scales.double().repeat_interleave(size, 1)


def inputs(name: str, x: Tensor) -> Tensor:
    """What the kernel multiplies with the weight, `[M, K]`: int8 codes less the zero point, times the scale of the row."""
    x = x.float()
    low, high = x.amin(1, keepdim=True).clamp_max(0), x.amax(1, keepdim=True).clamp_min(0)
    steps = torch.where(low == high, 1.0, (_HIGH - _LOW) / (high - low))
    ends = _LOW + low * steps + (_HIGH + high * steps)
    zero = torch.where(ends > 0, _LOW - low * steps, _HIGH - high * steps).clamp(_LOW, _HIGH).round()
    scaled = (x * steps).double()
    away = scaled.sign() * (scaled.abs() + 0.5).floor()  # to nearest, ties away from zero
    return ((away + zero).clamp(_LOW, _HIGH) - zero).double() * (1 / steps).double()


def product(name: str, x: Tensor, w: Tensor) -> Tensor:
    """The product `[M, N]` float32, the weight packed on the spot."""
    codes, scales, size = _codes(name, w)
    pairs = (codes[:, 1::2] << 4 | codes[:, ::2]).to(torch.uint8)
    rows, columns = w.shape
    aten: Any = torch.ops.aten
    packed = aten._dyn_quant_pack_4bit_weight(pairs, scales, None, size, columns, rows)
    out: Tensor = aten._dyn_quant_matmul_4bit(x, packed, size, columns, rows)
    return out
