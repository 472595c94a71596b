"""Seeded inputs: distributions, NaN and infinity masks, indices out of range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2, "int8": torch.int8, "int32": torch.int32,
}  # fmt: skip
"""Formats that torch has."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Distribution:
    """A name of a protocol and how a float64 tensor of a shape is drawn; `limit` is the format's largest number."""

    name: str
    draw: Callable[[Shape, Generator, torch.dtype], Tensor]


def generator(seed: int, *parts: int) -> Generator:
    """A generator of its own for every trial."""
    mixed = seed
    for part in parts:
        mixed = (mixed * 1_000_003 + part + 1) % (2**63 - 1)
    return torch.Generator().manual_seed(mixed)


def normal(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    """Standard normal, float64."""
    return torch.randn(shape, generator=g, dtype=torch.float64)


def _lognormal(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    return torch.exp(normal(shape, g, dtype))


def _uniform(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    return torch.rand(shape, generator=g, dtype=torch.float64)


def _cancellation(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    """The second half of the last dimension undoes the first but for a small rest."""
    x = normal(shape, g, dtype)
    half = shape[-1] // 2
    if half:
        x[..., half : 2 * half] = -x[..., :half] * (1 + 2.0**-10)
    return x


def _outliers(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    big = torch.rand(shape, generator=g) < 0.01
    return torch.where(big, 64.0, 1.0) * normal(shape, g, dtype)


def _zeros(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def _subnormal(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    """Whole multiples of the smallest number, all below the smallest normal one."""
    info = torch.finfo(dtype)
    steps = torch.randint(-7, 8, shape, generator=g).double()
    return steps * float(info.smallest_normal) / 8


def _near_overflow(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    """A quarter of the root of the largest number: products fit, naive squares of sums do not."""
    return normal(shape, g, dtype).clamp(-3, 3) * float(torch.finfo(dtype).max) ** 0.5 / 64


def _structured(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    """Integers that differ in every place of the last two dimensions: a wrong index shows."""
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count) * 7919) % 13 - 6).double().reshape(shape)


def _identical(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


DISTRIBUTIONS: dict[str, Distribution] = {
    row.name: row
    for row in (
        Distribution("normal", normal), Distribution("lognormal", _lognormal), Distribution("uniform", _uniform),
        Distribution("cancellation", _cancellation), Distribution("outliers", _outliers), Distribution("zeros", _zeros),
        Distribution("subnormal", _subnormal), Distribution("near_overflow", _near_overflow),
        Distribution("structured", _structured), Distribution("identical", _identical),
    )
}  # fmt: skip


def draw(name: str, shapes: tuple[Shape, ...], formats: str | tuple[str, ...], g: Generator) -> list[Tensor]:
    """Operands of these shapes, in one format or each in its own. Integer formats get whole numbers over their range."""
    names = (formats,) * len(shapes) if isinstance(formats, str) else formats
    return [_drawn(name, shape, DTYPES[kind], g) for shape, kind in zip(shapes, names, strict=True)]


def _drawn(name: str, shape: Shape, dtype: torch.dtype, g: Generator) -> Tensor:
    if not dtype.is_floating_point:
        low, high = (-127, 128) if dtype is torch.int8 else (-1000, 1000)
        return torch.randint(low, high, shape, generator=g).to(dtype)
    return DISTRIBUTIONS[name].draw(shape, g, dtype).to(dtype)


def with_exceptions(x: Tensor, g: Generator) -> list[tuple[str, Tensor]]:
    """Copies of `x` with one NaN, +inf or -inf in about one row of three, and with all of them."""
    found = []
    for name, values in _EXCEPTIONAL.items():
        y = x.clone()
        rows = y.reshape(-1, y.shape[-1])
        for i in range(0, rows.shape[0], 3):
            for j, value in enumerate(values):
                rows[
                    i, int(torch.randint(rows.shape[1], (1,), generator=g)) if len(values) == 1 else j % rows.shape[1]
                ] = value
        found.append((name, y))
    return found


_INF = float("inf")
_EXCEPTIONAL = {"nan": (float("nan"),), "+inf": (_INF,), "-inf": (-_INF,), "mixed": (float("nan"), _INF, -_INF)}


def indices(count: int, bound: int, g: Generator, outside: bool) -> Tensor:
    """`count` whole numbers in [0, bound), or `count` outside it, next to it and far from it on both sides."""
    if not outside:
        return torch.randint(0, bound, (count,), generator=g)
    near = torch.arange(count) // 2
    far = torch.where(near > 10, near * 1009, near)
    return torch.where(torch.arange(count) % 2 == 0, bound + far, -1 - far)
