"""torchao's weight formats as kernels of one product: quantised on the spot, multiplied by torchao, read back exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    PerRow,
    quantize_,
)
from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
    _apply_int8_act_asym_per_token_quant_dequant,
)

from kcverify.conformance.adapters import int16_pairs

_CONFIGS: dict[str, Callable[[], Any]] = {
    "int8": Int8WeightOnlyConfig,
    "w8a8": Int8DynamicActivationInt8WeightConfig,
    "w8a8_narrow": lambda: Int8DynamicActivationInt8WeightConfig(reduce_range=True),
    "fp8": Float8WeightOnlyConfig,
    "int4": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "a8int4": lambda: Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
}


def _layer(name: str, w: Tensor) -> nn.Linear:
    """A linear layer without bias whose weight `[N, K]` is in the format."""
    layer = nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=w.dtype)
    layer.weight = nn.Parameter(w.clone(), requires_grad=False)
    quantize_(layer, _CONFIGS[name]())
    return layer.eval()


def weights(name: str, w: Tensor) -> Tensor:
    """What the codes and scales stand for, `[N, K]`: exact in float64 for int8, dequantised in float32 for the rest."""
    stored: Any = _layer(name, w).weight
    if isinstance(stored, Int8Tensor):
        return stored.qdata.double() * stored.scale.double()
    found: Tensor = stored.dequantize()
    return found


def inputs(name: str, x: Tensor) -> Tensor:
    """What the kernel multiplies with the weight: the input, or its codes times their scales."""
    if name in ("w8a8", "w8a8_narrow"):
        codes = Int8Tensor.from_hp(x, PerRow(), reduce_range=name == "w8a8_narrow")
        return codes.qdata.double() * codes.scale.double()
    if name == "a8int4":
        found: Tensor = _apply_int8_act_asym_per_token_quant_dequant(x)
        return found
    return x


def eager(name: str, x: Tensor, w: Tensor) -> Tensor:
    """The product as torchao runs it without compilation."""
    with torch.no_grad():
        return F.linear(x, _layer(name, w).weight)


def frozen(name: str, x: Tensor, w: Tensor) -> Tensor:
    """The same layer compiled with freezing, where inductor chooses another int8 kernel."""
    layer = _layer(name, w)
    torch._dynamo.reset()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        out: Tensor = torch.compile(layer)(x)
    return out


def saturating(name: str, x: Tensor, w: Tensor) -> Tensor:
    """What the compiled layer computes without VNNI, on any processor: its codes, pairs of products saturated at int16, its scales."""
    stored: Any = _layer(name, w).weight
    codes = Int8Tensor.from_hp(x, PerRow(), reduce_range=name == "w8a8_narrow")
    sums = int16_pairs(codes.qdata, stored.qdata.T)
    return (sums.double() * codes.scale.double() * stored.scale.double().T).to(x.dtype)
