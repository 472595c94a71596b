"""torch's grouped products as one product: every group has a weight of its own, and gives its part of the result.

Group g multiplies its rows with the second operand moved on by g columns, and its result is moved back: a group that is given
another one's weight shows as moved columns.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_STRIDE = 8
"""Elements: 16 bytes of bfloat16."""

GROUPS = 3
"""At most: fewer rows have fewer groups."""


def _ends(rows: int, step: int) -> list[int]:
    """Where the groups end: multiples of `step` rows but for the last one."""
    parts = min(GROUPS, max(rows // step, 1))
    return [rows * (i + 1) // parts // step * step for i in range(parts - 1)] + [rows]


def _weights(b: Tensor, groups: int) -> Tensor:
    """`[groups, k, n]` in column order, each moved on by its number."""
    moved = torch.stack([b.roll(g, 1) for g in range(groups)])
    return moved.mT.contiguous().mT


def _back(out: Tensor, ends: list[int]) -> Tensor:
    starts = [0, *ends[:-1]]
    return torch.cat([out[i:j].roll(-g, 1) for g, (i, j) in enumerate(zip(starts, ends, strict=True))])


def grouped_mm(a: Tensor, b: Tensor) -> Tensor:
    """`torch._grouped_mm`: rows in groups, `[m, k]` by a weight a group; zeros up to whole strides of 16 bytes."""
    ends, columns = _ends(a.shape[0], 1), b.shape[1]
    offsets = torch.tensor(ends, dtype=torch.int32, device=a.device)
    k, n = -a.shape[1] % _STRIDE, -columns % _STRIDE
    wide = F.pad(_weights(b, len(ends)), (0, n, 0, k)).mT.contiguous().mT
    return _back(torch._grouped_mm(F.pad(a, (0, k)), wide, offs=offsets)[:, :columns], ends)


def scaled_grouped_mm(a: Tensor, b: Tensor) -> Tensor:
    """`torch._scaled_grouped_mm` of e4m3 operands with bfloat16 output; a scale of one for every row, and column of a weight."""
    ends = _ends(a.shape[0], 16)
    offsets = torch.tensor(ends, dtype=torch.int32, device=a.device)
    rows = torch.ones(a.shape[0], device=a.device)
    columns = torch.ones(len(ends), b.shape[1], device=a.device)
    run: Any = torch._scaled_grouped_mm
    bits = _weights(b.view(torch.uint8), len(ends)).view(b.dtype)
    out: Tensor = run(a, bits, rows, columns, offs=offsets, out_dtype=torch.bfloat16)
    return _back(out, ends)
