"""Triton kernels of one product and one cast, on a GPU or in Triton's interpreter (TRITON_INTERPRET=1, a process of its own)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

TILE = 16
STEP = 32


@triton.jit  # type: ignore[untyped-decorator]
def _product(a, b, c, M, N, K, TILE: tl.constexpr, STEP: tl.constexpr, WIDE: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One tile of `a[M, K] @ b[K, N]`, all three padded to whole tiles."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    if WHOLE:
        total = tl.zeros((TILE, TILE), dtype=tl.int32)
    else:
        total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, STEP):
        inner = start + tl.arange(0, STEP)
        x = tl.load(a + rows[:, None] * K + inner[None, :])
        y = tl.load(b + inner[:, None] * N + columns[None, :])
        if WIDE:
            total += tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
        elif WHOLE:
            total += tl.dot(x, y, out_dtype=tl.int32)
        else:
            total += tl.dot(x, y, input_precision="ieee")
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit  # type: ignore[untyped-decorator]
def _cast(a, c, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 to e4m3, one block."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + place, tl.load(a + place).to(tl.float8e4nv))


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _multiplied(a: Tensor, b: Tensor, wide: bool, tile: int = TILE, step: int = STEP) -> Tensor:
    (m, k), n = a.shape, b.shape[1]
    rows, columns, inner = _up(m, tile), _up(n, tile), _up(k, step)
    left = F.pad(a.float(), (0, inner - k, 0, rows - m)).to(a.dtype).contiguous()
    right = F.pad(b.float(), (0, columns - n, 0, inner - k)).to(b.dtype).contiguous()
    whole = not a.dtype.is_floating_point
    out = torch.zeros(rows, columns, dtype=torch.int32 if whole else torch.float32, device=a.device)
    _product[(rows // tile, columns // tile)](left, right, out, rows, columns, inner, tile, step, wide, whole)
    return out[:m, :n].contiguous()


def dot(a: Tensor, b: Tensor) -> Tensor:
    """`tl.dot` of the operands as they are, float32 or int32 out."""
    return _multiplied(a, b, False)


def dot_widened(a: Tensor, b: Tensor) -> Tensor:
    """`tl.dot` of operands that are cast to float32 first."""
    return _multiplied(a, b, True)


def dot_tiled(a: Tensor, b: Tensor, schedule: str = "16x32") -> Tensor:
    """`tl.dot` with the tile and the step that an autotuner may choose, as `tile x step`."""
    tile, step = (int(size) for size in schedule.split("x"))
    return _multiplied(a, b, False, tile, step)


def cast(x: Tensor) -> Tensor:
    """float32 to e4m3."""
    flat = F.pad(x.reshape(-1), (0, -x.numel() % 256)).contiguous()
    out = torch.zeros(flat.shape, dtype=torch.float8_e4m3fn, device=x.device)
    _cast[(flat.numel() // 256,)](flat, out, 256)
    return out[: x.numel()].reshape(x.shape).clone()
