"""What a format costs a module: bytes of its weights as the kernel keeps them, or the time of its product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from kcverify.measure.kernels import Kernel, Packed, multiply
from kcverify.measure.layers import Unit
from kcverify.measure.sides import Basis

_REPEATS = 7

_SHORT_SCALES = ("int8_bf16", "int4_bf16")
"""Formats whose kernel gets its scales in bfloat16."""


@dataclass(frozen=True)
class Cost:
    """One way to count: `of(kernel, packed)` in `unit`, and whether two runs give the same number."""

    name: str
    unit: str
    about: str
    repeatable: bool
    of: Callable[[Kernel, Packed], float]


def weight_bytes(kernel: Kernel, packed: Packed) -> float:
    """Codes and scales of one matrix, padding of its kernel included."""
    scales = packed.scales.numel() * (2 if kernel.name in _SHORT_SCALES else packed.scales.element_size())
    return float(packed.codes.numel() * packed.codes.element_size() + (scales if packed.scales.ndim else 0))


def product_time(kernel: Kernel, packed: Packed) -> float:
    """Microseconds of the product of one token with the matrix: median of several calls."""
    x = torch.ones(1, packed.columns, device=packed.codes.device)
    found = []
    with torch.no_grad():
        for _ in range(_REPEATS + 1):
            start = time.perf_counter()
            multiply(kernel, x, packed)
            if x.is_cuda:
                torch.cuda.synchronize(x.device)
            found.append(1e6 * (time.perf_counter() - start))
    return statistics.median(found[1:])


COSTS: Mapping[str, Cost] = {
    row.name: row
    for row in (
        Cost("bytes", "B", "bytes of the weights as their kernels keep them, scales included", True, weight_bytes),
        Cost("time", "us", "time of the products of one token, measured here: another run gives another number", False, product_time),
    )
}  # fmt: skip
"""By the name of `--cost`."""


def table_of(cost: Cost, bases: Mapping[str, Basis], units: Sequence[Unit]) -> dict[tuple[str, str], float]:
    """Cost of every unit in every format. Matrices of one shape are timed once."""
    seen: dict[tuple[str, int, int], float] = {}

    def one(form: str, matrix: str) -> float:
        basis = bases[form]
        packed = basis.packed[matrix]
        key = form, packed.rows, packed.columns
        if key not in seen:
            seen[key] = cost.of(basis.kernel, packed)
        return seen[key]

    return {(unit.name, form): sum(one(form, matrix) for matrix in unit.matrices) for unit in units for form in bases}
