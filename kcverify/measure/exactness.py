"""What can be said of a kernel's rounding without running it: where its arithmetic is exact."""

from __future__ import annotations

import torch
from torch import Tensor

from kcverify.measure.kernels import Kernel
from kcverify.measure.sides import Basis

FLOAT32_INTEGERS = 1 << 24
"""Every integer of smaller magnitude is a float32."""


def exactness(basis: Basis) -> list[str]:
    """Sentences about a side's accumulators, scales and inputs."""
    return [*_accumulators(basis), *_scales(basis), *_inputs(basis.kernel)]


def power_of_two(scales: Tensor) -> Tensor:
    """Whether each is a power of two: then a product with it rounds nothing, short of over- and underflow."""
    return scales.float().frexp().mantissa.abs() == 0.5


def _accumulators(basis: Basis) -> list[str]:
    largest = basis.kernel.largest_product
    if largest is None:
        return []
    longest = (FLOAT32_INTEGERS - 1) // largest
    within = [name for name, packed in basis.packed.items() if packed.columns <= longest]
    count = len(basis.packed)
    text = f"sums of integer codes are exact, also as float32, for {len(within)} of {count} matrices"
    text += f" (up to {longest:,} inputs keep them below 2^24)"
    return [text if len(within) == count else f"{text}; those of the others are rounded once"]


def _scales(basis: Basis) -> list[str]:
    """Formats with one scale a row; a zero point is added, which rounds as well, and a format without scales has nothing."""
    scales = [packed.scales.flatten() for packed in basis.packed.values() if packed.scales.dim() in (1, 2)]
    if not scales:
        return []
    found = power_of_two(torch.cat(scales))
    exact, count = int(found.sum()), len(found)
    if exact == count:
        return ["all scales are powers of two: codes times scales round nothing, and both orders are bitwise equal"]
    return [f"{exact:,} of {count:,} scales are powers of two; a product with another one is rounded"]


def _inputs(kernel: Kernel) -> list[str]:
    probe = torch.tensor([[1.0, 1 / 3, 1e-3]])
    if torch.equal(kernel.inputs(probe), probe):
        return []
    return [
        "inputs are rounded to the format at every product, so a rounding error upstream can move one by a whole step: "
        "kernel error counts these steps too"
    ]
