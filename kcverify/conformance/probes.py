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
    """A name of a protocol and how a float64 tensor of a shape is drawn; `whole`, how whole numbers up to a size are."""

    name: str
    draw: Callable[[Shape, Generator, torch.dtype], Tensor]
    whole: Callable[[Shape, Generator, int], Tensor]


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
    """A part of the root of the largest number: products fit, naive squares of sums do not.

    Formats of one byte are summed in wider ones: their operands come near the largest number itself.
    """
    largest = float(torch.finfo(dtype).max)
    scale = largest / 4 if dtype.itemsize == 1 else largest**0.5 / 64
    return normal(shape, g, dtype).clamp(-3, 3) * scale


def _structured(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    """Integers that differ in every place of the last two dimensions: a wrong index shows."""
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count) * 7919) % 13 - 6).double().reshape(shape)


def _identical(shape: Shape, g: Generator, dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


def _whole_range(shape: Shape, g: Generator, most: int) -> Tensor:
    """Every whole number of the range alike."""
    return torch.randint(-most, most + 1, shape, generator=g)


def _whole_positive(shape: Shape, g: Generator, most: int) -> Tensor:
    return torch.randint(0, most + 1, shape, generator=g)


def _whole_lognormal(shape: Shape, g: Generator, most: int) -> Tensor:
    """Small numbers for the most part, few of them large."""
    return (8 * torch.exp(torch.randn(shape, generator=g))).round().clamp_max(most)


def _whole_cancellation(shape: Shape, g: Generator, most: int) -> Tensor:
    """The second half of the last dimension undoes the first but for one."""
    x = _whole_range(shape, g, most - 1)
    half = shape[-1] // 2
    if half:
        x[..., half : 2 * half] = -x[..., :half]
        x[..., half] += 1
    return x


def _whole_outliers(shape: Shape, g: Generator, most: int) -> Tensor:
    big = torch.rand(shape, generator=g) < 0.01
    return torch.where(big, most, torch.randint(-2, 3, shape, generator=g))


def _whole_extremes(shape: Shape, g: Generator, most: int) -> Tensor:
    """The largest numbers, of either sign: sums that saturate in between come out wrong."""
    signs = torch.randint(0, 2, shape, generator=g) * 2 - 1
    return signs * (most - torch.randint(0, 4, shape, generator=g))


def _whole(draw: Callable[[Shape, Generator, torch.dtype], Tensor]) -> Callable[[Shape, Generator, int], Tensor]:
    """A draw that gives small whole numbers whatever the format."""
    return lambda shape, g, most: draw(shape, g, torch.float64)


DISTRIBUTIONS: dict[str, Distribution] = {
    row.name: row
    for row in (
        Distribution("normal", normal, _whole_range), Distribution("lognormal", _lognormal, _whole_lognormal),
        Distribution("uniform", _uniform, _whole_positive), Distribution("cancellation", _cancellation, _whole_cancellation),
        Distribution("outliers", _outliers, _whole_outliers), Distribution("zeros", _zeros, _whole(_zeros)),
        Distribution("subnormal", _subnormal, _whole_range), Distribution("near_overflow", _near_overflow, _whole_extremes),
        Distribution("structured", _structured, _whole(_structured)), Distribution("identical", _identical, _whole(_identical)),
    )
}  # fmt: skip

SAMPLED = ("normal", "lognormal", "cancellation", "subnormal", "near_overflow", "structured")
"""What kernels of narrow formats draw, where it makes sense."""

NARROW = ("float8_e4m3fn", "float8_e5m2", "int8")
"""Formats of one byte."""

_BEYOND = "its sums leave the output's range, which has no infinity"
UNFIT: dict[tuple[str, str, str], str] = {
    ("inputs", "int8", "subnormal"): "whole numbers have no smallest normal one",
    ("output", "float8_e4m3fn", "lognormal"): _BEYOND,
    ("output", "float8_e4m3fn", "near_overflow"): _BEYOND,
    ("output", "float8_e4m3fn", "structured"): _BEYOND,
    (
        "output",
        "float8_e4m3fn",
        "subnormal",
    ): "its results are below the output's smallest normal number: zeros would pass",
}
"""Distributions that make no sense for narrow operands, by the format of the operands or of the results, and why."""


def unfit(name: str, inputs: tuple[str, ...], output: str) -> str:
    """Why operands of these formats are not drawn from a distribution; empty where they are."""
    if not set(inputs) & set(NARROW):
        return ""
    keys = [*(("inputs", kind, name) for kind in inputs), ("output", output, name)]
    return next((UNFIT[key] for key in keys if key in UNFIT), "")


def draw(name: str, shapes: tuple[Shape, ...], formats: str | tuple[str, ...], g: Generator) -> list[Tensor]:
    """Operands of these shapes, in one format or each in its own. Integer formats get whole numbers over their range."""
    names = (formats,) * len(shapes) if isinstance(formats, str) else formats
    return [_drawn(name, shape, DTYPES[kind], g) for shape, kind in zip(shapes, names, strict=True)]


def _drawn(name: str, shape: Shape, dtype: torch.dtype, g: Generator) -> Tensor:
    if not dtype.is_floating_point:
        return DISTRIBUTIONS[name].whole(shape, g, 127 if dtype is torch.int8 else 1000).to(dtype)
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
