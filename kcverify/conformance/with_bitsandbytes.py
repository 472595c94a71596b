"""bitsandbytes' 4-bit and 8-bit formats as kernels of one product on a processor, read back by its own functions."""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import torch
from bitsandbytes import functional as BF
from torch import Tensor


def _four(name: str, w: Tensor) -> tuple[Tensor, Any]:
    codes, state = BF.quantize_4bit(w.contiguous(), quant_type=name, blocksize=64)
    return codes, state


_WHOLE = ("int8", "linear8", "linear8_outliers")
"""Formats with int8 codes on both sides."""
THRESHOLD = 6.0
"""From this size on a number takes its column out of the codes: the usual choice of those who load models with this layer."""


def _layer(x: Tensor, w: Tensor, threshold: float) -> Tensor:
    """`nn.Linear8bitLt`; 0 keeps no outliers apart. Its weight is quantised when it moves to its device."""
    layer = bnb.nn.Linear8bitLt(w.shape[1], w.shape[0], bias=False, has_fp16_weights=False, threshold=threshold)
    layer.weight = bnb.nn.Int8Params(w.clone(), requires_grad=False, has_fp16_weights=False)
    with torch.no_grad():
        out: Tensor = layer.to(x.device).eval()(x)  # in training it multiplies a weight that is expanded
    return out


def _eight(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 and the largest size of every row."""
    codes, peaks, _ = BF.int8_vectorwise_quant(x.half())
    return codes, peaks


def weights(name: str, w: Tensor) -> Tensor:
    """What the codes and scales stand for, `[N, K]`."""
    if name in _WHOLE:
        codes, peaks = _eight(w)
        return codes.double() * peaks.double()[:, None] / 127
    codes, state = _four(name, w)
    found: Tensor = BF.dequantize_4bit(codes, state)
    return found


def inputs(name: str, x: Tensor) -> Tensor:
    """What the kernel multiplies with the weight."""
    if name == "linear8_outliers":
        return _apart(x)
    if name in _WHOLE:
        codes, peaks = _eight(x)
        return codes.double() * peaks.double()[:, None] / 127
    return x


def _apart(x: Tensor) -> Tensor:
    """Columns in which any row has an outlier as they are; codes of the others, whose scales do not see the outliers."""
    codes, peaks, columns = BF.int8_vectorwise_quant(x.half(), threshold=THRESHOLD)
    found = codes.double() * peaks.double()[:, None] / 127
    found[:, columns] = x[:, columns].double()
    return found


def eager(name: str, x: Tensor, w: Tensor) -> Tensor:
    """The product: int8 codes on both sides by functions or by the layer, or a 4-bit weight that is expanded first."""
    if name.startswith("linear8"):
        return _layer(x, w, THRESHOLD if name == "linear8_outliers" else 0.0)
    if name == "int8":
        (a, row_peaks), (b, column_peaks) = _eight(x), _eight(w)
        product = BF.int8_linear_matmul(a, b)
        out: Tensor = BF.int8_mm_dequant(product, row_peaks, column_peaks)
        return out.to(x.dtype)
    codes, state = _four(name, w)
    with torch.no_grad():
        found: Tensor = bnb.matmul_4bit(x, codes.t(), quant_state=state)
    return found
