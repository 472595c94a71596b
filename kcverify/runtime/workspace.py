"""Buffers of one tile of rows, kept from call to call."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

_SERIES = tuple(1.0 / math.factorial(k) for k in range(8, 1, -1))
_BUFFERS = 6


class Workspace:
    """Preallocated buffers of one tile, kept from call to call. Extra memory: 6 buffers, at most 13 MiB on the CPU."""

    def __init__(self) -> None:
        self._key: tuple[int, torch.dtype, torch.device] | None = None
        self.buffers: list[torch.Tensor] = []
        self.series: list[torch.Tensor] = []

    @staticmethod
    def elements(device: torch.device) -> int:
        """Elements of one buffer: what the second-level cache holds on the CPU, what amortises a launch elsewhere."""
        return 131_072 if device.type == "cpu" else 1_048_576

    def prepared(self, reference: torch.Tensor, candidate: torch.Tensor) -> Workspace:
        """Itself, with buffers for this width, device and precision."""
        wide = torch.float64 in (reference.dtype, candidate.dtype)
        dtype = torch.float64 if wide else torch.float32
        size = max(reference.shape[1], self.elements(reference.device))
        key = (size, dtype, reference.device)
        if key != self._key:
            with torch.inference_mode(False):  # they outlive the caller's mode
                self.buffers = [torch.empty(size, dtype=dtype, device=reference.device) for _ in range(_BUFFERS)]
                self.series = [torch.tensor(c, dtype=dtype, device=reference.device) for c in _SERIES]
            self._key = key
        return self

    def views(self, rows: int, width: int) -> list[torch.Tensor]:
        """The buffers as `[rows, width]`."""
        return [buffer[: rows * width].view(rows, width) for buffer in self.buffers]


def tiles(count: int, width: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Row ranges that fit the cache (CPU) or amortise a launch (elsewhere)."""
    step = max(1, Workspace.elements(device) // width)
    for start in range(0, count, step):
        yield start, min(start + step, count)
