"""Every kernel format against the float64 product of the very matrix that its codes and scales stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kcverify.diagnostics import InputError
from kcverify.measure.kernels import (
    BY_NAME,
    GROUP,
    KERNELS,
    multiply,
    quantise_groups,
    quantise_rows,
    quantise_rows_e4m3,
    require,
)

CPU = torch.device("cpu")


def by_rows(x: Tensor) -> Tensor:
    codes, scales = quantise_rows(x)
    return codes.double() * scales.double()


def by_rows_e4m3(x: Tensor) -> Tensor:
    codes, scales = quantise_rows_e4m3(x)
    return codes.double() * scales.double()


def by_groups(weight: Tensor) -> Tensor:
    rows, columns = weight.shape
    codes, scales = quantise_groups(torch.nn.functional.pad(weight, (0, -columns % GROUP)))
    scale, zero = (scales.double()[..., i].t()[:, :, None] for i in (0, 1))
    groups = codes.double().reshape(rows, -1, GROUP)
    return ((groups - 8) * scale + zero).reshape(rows, -1)[:, :columns]


def same(x: Tensor) -> Tensor:
    return x.double()


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


# format: what the weight becomes, what the input becomes, relative unit roundoff of the product's output
EXPECTED = {
    "float32": (same, same, 2**-24),
    "bfloat16": (bf16, bf16, 2**-8),
    "int8": (by_rows, same, 2**-24),
    "w8a8": (by_rows, by_rows, 2**-24),
    "fp8": (by_rows_e4m3, by_rows_e4m3, 2**-8),
    "int4": (by_groups, same, 2**-24),
    "int8_bf16": (by_rows, bf16, 2**-8),
    "int4_bf16": (by_groups, bf16, 2**-8),
}
SHAPES = [(1, 16, 32), (7, 48, 64), (33, 128, 384), (64, 192, 576)]
ODD = [(5, 33, 37), (1, 1, 1), (17, 20, 100)]


def draw(m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m + 100 * n + 10_000 * k)
    return torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator) / k**0.5


def test_every_format_has_an_expectation() -> None:
    assert [kernel.name for kernel in KERNELS] == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_product_is_that_of_the_dequantised_matrix(name: str, shape: tuple[int, int, int]) -> None:
    x, weight = draw(*shape)
    of_weight, of_input, unit = EXPECTED[name]
    kernel = BY_NAME[name]
    got = multiply(kernel, x, kernel.pack(weight))
    assert got.shape == (shape[0], shape[1])
    assert got.dtype == x.dtype
    exact = of_input(x) @ of_weight(weight).t()
    # rounding of the output, of the scales in the kernel's dtype, and of a sum of K terms in float32
    magnitude = of_input(x).abs() @ of_weight(weight).abs().t()
    allowed = 2 * unit * (exact.abs() + magnitude) + (shape[2] + 4) * 2**-24 * magnitude
    assert bool(((got.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_leading_dimensions_are_kept(kernel) -> None:
    x, weight = draw(12, 32, 64)
    packed = kernel.pack(weight)
    assert torch.equal(multiply(kernel, x.view(3, 4, 64), packed).reshape(12, 32), multiply(kernel, x, packed))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_zero_rows_and_inputs_give_zero(kernel) -> None:
    x, weight = draw(8, 32, 64)
    weight[3], x[2] = 0, 0
    got = multiply(kernel, x, kernel.pack(weight))
    assert bool((got[:, 3] == 0).all())
    assert bool((got[2] == 0).all())
    assert bool(got.isfinite().all())


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_nan_input_never_becomes_a_finite_row(kernel) -> None:
    x, weight = draw(8, 32, 64)
    x[5, 7] = float("nan")
    got = multiply(kernel, x, kernel.pack(weight))
    assert not bool(got[5].isfinite().any())
    assert bool(got[[0, 1, 2, 3, 4, 6, 7]].isfinite().all())


@pytest.mark.parametrize("name", ["int8", "w8a8", "fp8", "int4"])
def test_quantised_formats_do_lose_bits(name: str) -> None:
    x, weight = draw(16, 64, 128)
    kernel = BY_NAME[name]
    error = (multiply(kernel, x, kernel.pack(weight)) - x @ weight.t()).norm() / (x @ weight.t()).norm()
    assert 1e-3 < float(error) < 0.2


def test_aliases_name_the_same_row() -> None:
    assert BY_NAME["bf16"] is BY_NAME["bfloat16"]
    assert BY_NAME["fp32"] is BY_NAME["float32"]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_this_build_has_every_kernel(kernel) -> None:
    require(kernel, CPU)


def test_a_missing_operator_is_named() -> None:
    kernel = replace(BY_NAME["int8"], operators={"cpu": "_no_such_operator"})
    with pytest.raises(
        InputError, match=r"torch\._no_such_operator\) does not run on cpu with torch .*does not have it"
    ):
        require(kernel, CPU)


def test_an_unknown_device_type_is_refused() -> None:
    with pytest.raises(InputError, match="no operator for device type meta"):
        require(BY_NAME["int4"], torch.device("meta"))


def test_torchs_own_refusal_is_passed_on() -> None:
    def refuse(x: Tensor, packed: object) -> Tensor:
        raise RuntimeError("needs sm89\nstack")

    with pytest.raises(InputError, match=r"does not run on cpu .*: needs sm89$"):
        require(replace(BY_NAME["fp8"], apply=refuse), CPU)
