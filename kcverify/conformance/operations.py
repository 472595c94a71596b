"""Table of operations: shapes, float64 oracle, the magnitude that errors are measured against, and the derived tolerance.

A row's tolerance `t` and magnitude `D >= |y|` say `|kernel - y| <= t D + underflow` for every element, for any order of
evaluation with the declared accumulator and one rounding of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Declared, Derivation, exact
from kcverify.conformance.probes import DTYPES, Shape
from kcverify.measure.kernels import GROUP, KERNELS, Kernel

Dims = Mapping[str, int]
EPSILON = 1e-5
"""Of the norms."""


@dataclass(frozen=True)
class Operation:
    """One operation. `dims` are the names of a scope's dimensions; functions take float64 operands.

    `reduced` names the dimension that is summed over; `unfused` is the operation as steps of its own, in the operands'
    format; `rowwise` says that rows of the first operand are independent; `bilinear`, that a
    power of two in the first operand comes out as it is.
    """

    name: str
    dims: tuple[str, ...]
    shapes: Callable[[Dims], tuple[Shape, ...]]
    oracle: Callable[..., Tensor]
    magnitude: Callable[..., Tensor]
    tolerance: Callable[[list[Tensor], Declared], Derivation]
    reduced: str = ""
    unfused: Callable[..., Tensor] | None = None
    rowwise: bool = True
    bilinear: bool = False


def _up(value: float | Tensor) -> Fraction:
    """A double from a float64 computation as a fraction, moved up by more than its rounding."""
    found = exact(value)
    return Fraction(2**1023) if found is None else found * (1 + Fraction(1, 2**30))


def _product(args: list[Tensor], d: Declared) -> Derivation:
    return t.rounded_to(t.gamma(args[0].shape[-1], d.accumulator), d.output)


def _sum(args: list[Tensor], d: Declared) -> Derivation:
    return t.rounded_to(t.gamma(args[0].shape[-1] - 1, d.accumulator), d.output)


def _rounding(args: list[Tensor], d: Declared) -> Derivation:
    u = t.unit_roundoff(d.output)
    return t.constant(u, f"one rounding to {d.output}")


def _range(x: Tensor) -> Fraction:
    return _up((x.amax(-1) - x.amin(-1)).max())


def _softmax_at(span: Fraction, shift: Fraction, n: int, d: Declared) -> Derivation:
    """Relative error of a row of n terms: exponents off by `shift` and by one rounding of at most `span`."""
    u = t.unit_roundoff(d.accumulator)
    total = t.gamma(n - 1, d.accumulator)
    if total.value is None:
        return total
    exponent = 2 * (shift + span * u)  # e^a - 1 <= 2 a for a <= 1/2
    one = exponent + (t.FUNCTION_ROUNDOFFS + 2) * u * (1 + exponent)
    lines = (
        *total.lines,
        f"exponent off by {t.shown(exponent / 2)}, function of {t.FUNCTION_ROUNDOFFS} u and a quotient: {t.shown(one)}",
    )
    if exponent > 1:
        return Derivation(None, (*lines, "says nothing: exponents are off by more than 1/2"))
    return t.quotient(one, one + total.value + one * total.value, "term over sum, relative", lines)


def _softmax(args: list[Tensor], d: Declared) -> Derivation:
    x = args[0]
    return t.rounded_to(_softmax_at(_range(x), Fraction(0), x.shape[-1], d), d.output)


def _logsumexp(args: list[Tensor], d: Declared) -> Derivation:
    inner = _softmax_at(_range(args[0]), Fraction(0), args[0].shape[-1], d)
    u = t.unit_roundoff(d.accumulator)
    logarithm = t.times(2, inner, "logarithm of a sum off by r is off by at most 2 r")
    steps = t.constant((t.FUNCTION_ROUNDOFFS + 1) * u, "logarithm and sum")
    return t.rounded_to(t.plus(logarithm, steps, "log-sum-exp against 1 + max|x| + ln n"), d.output)


def _condition(x: Tensor) -> Fraction:
    centred = x - x.mean(-1, keepdim=True)
    ratio = (x.square().sum(-1) / centred.square().sum(-1).clamp_min(1e-300)).sqrt().max()
    return _up(ratio)


def _variance(args: list[Tensor], d: Declared) -> Derivation:
    """Two passes or Welford's updates: n u kappa to first order (Chan, Golub and LeVeque 1983), doubled."""
    one = t.gamma(args[0].shape[-1] + 4, d.accumulator)
    if one.value is None:
        return one
    kappa = _condition(args[0])
    value = 2 * one.value * kappa
    lines = (
        *one.lines,
        f"variance by two passes or updates: 2 gamma kappa, kappa = {t.shown(kappa)}: {t.shown(value)}",
    )
    return t.rounded_to(Derivation(value, lines), d.output)


def _layer_norm(args: list[Tensor], d: Declared) -> Derivation:
    x = args[0]
    mean, var = t.gamma(x.shape[-1], d.accumulator), _variance(args, Declared(accumulator=d.accumulator, output="int8"))
    u = t.unit_roundoff(d.accumulator)
    rest = t.constant((t.FUNCTION_ROUNDOFFS + 4) * u, "difference, root and quotient")
    return t.rounded_to(t.plus(t.plus(mean, var, "mean and variance"), rest, "layer norm"), d.output)


def _rms_norm(args: list[Tensor], d: Declared) -> Derivation:
    squares = t.gamma(args[0].shape[-1] + 2, d.accumulator)
    rest = t.constant((t.FUNCTION_ROUNDOFFS + 4) * t.unit_roundoff(d.accumulator), "root, quotient and product")
    return t.rounded_to(t.plus(squares, rest, "root mean square norm"), d.output)


def _attention(args: list[Tensor], d: Declared) -> Derivation:
    """Scores by dot products, softmax, weights rounded to the operands' format, a product with the values."""
    q, k, _ = args
    scores = _up((q.abs() @ k.abs().mT).max() / q.shape[-1] ** 0.5)
    dot, mix = t.gamma(q.shape[-1] + 2, d.accumulator), t.gamma(k.shape[-2], d.accumulator)
    if dot.value is None or mix.value is None:
        return Derivation(None, (*dot.lines, *mix.lines))
    weights = t.rounded_to(_softmax_at(2 * scores, 2 * dot.value * scores, k.shape[-2], d), d.inputs)
    return t.rounded_to(t.plus(t.plus(weights, mix, "weights and mixture"), mix, "second order"), d.output)


def _centred(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    root = (x.var(-1, correction=0, keepdim=True) + EPSILON).sqrt()
    return ((x - mean).abs() + x.abs().mean(-1, keepdim=True)) / root


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)


def _layer_norm_steps(x: Tensor) -> Tensor:
    y = x.float()
    centred = y - y.mean(-1, keepdim=True)
    return (centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()).to(x.dtype)


def _rms_norm_of(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()


def _softmax_steps(x: Tensor) -> Tensor:
    powers = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def _rows(dims: Dims) -> tuple[Shape, ...]:
    return ((dims["m"], dims["n"]),)


def _product_shapes(dims: Dims) -> tuple[Shape, ...]:
    return (dims["m"], dims["k"]), (dims["k"], dims["n"])


def _attention_shapes(dims: Dims) -> tuple[Shape, ...]:
    return (dims["m"], dims["k"]), (dims["n"], dims["k"]), (dims["n"], dims["k"])


def _linear_shapes(dims: Dims) -> tuple[Shape, ...]:
    return (dims["m"], dims["k"]), (dims["n"], dims["k"])


ROWS: tuple[Operation, ...] = (
    Operation(
        "matmul", ("m", "n", "k"), _product_shapes, lambda a, b: a @ b, lambda a, b: a.abs() @ b.abs(), _product, "k",
        lambda a, b: (a.float()[:, :, None] * b.float()[None]).sum(1).to(a.dtype), bilinear=True,
    ),
    Operation(
        "linear", ("m", "n", "k"), _linear_shapes, lambda x, w: x @ w.mT,
        lambda x, w: x.abs() @ w.abs().mT, _product, "k", lambda x, w: (x.float() @ w.float().mT).to(x.dtype),
        bilinear=True,
    ),
    Operation(
        "sum", ("n",), lambda s: ((s["n"],),), lambda x: x.sum(-1), lambda x: x.abs().sum(-1), _sum, "n", rowwise=False, bilinear=True,
    ),
    Operation(
        "softmax", ("m", "n"), _rows, lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, -1), _softmax, "n",
        _softmax_steps,
    ),
    Operation(
        "logsumexp", ("m", "n"), _rows, lambda x: torch.logsumexp(x, -1),
        lambda x: 1 + x.abs().amax(-1) + torch.tensor(float(x.shape[-1])).log(), _logsumexp, "n",
    ),
    Operation(
        "variance", ("m", "n"), _rows, lambda x: x.var(-1, correction=0), lambda x: x.var(-1, correction=0), _variance, "n",
    ),
    Operation(
        "layer_norm", ("m", "n"), _rows, lambda x: F.layer_norm(x, x.shape[-1:], eps=EPSILON), _centred, _layer_norm, "n",
        _layer_norm_steps,
    ),
    Operation(
        "rms_norm", ("m", "n"), _rows, _rms_norm_of, lambda x: _rms_norm_of(x).abs(), _rms_norm, "n",
        lambda x: _rms_norm_of(x.float()).to(x.dtype),
    ),
    Operation(
        "attention", ("m", "n", "k"), _attention_shapes, lambda q, k, v: _weights(q, k) @ v,
        lambda q, k, v: _weights(q, k) @ v.abs(), _attention, "n",
        lambda q, k, v: (_weights(q.float(), k.float()) @ v.float()).to(q.dtype),
    ),
    Operation("relu", ("m", "n"), _rows, torch.relu, lambda x: x.abs(), _rounding, bilinear=True),
    Operation("cast", ("m", "n"), _rows, lambda x: x, lambda x: x.abs(), _rounding, bilinear=True),
    Operation(
        "multiply", ("m", "n"), lambda s: ((s["m"], s["n"]), (s["m"], s["n"])), torch.mul, lambda a, b: (a * b).abs(), _rounding,
        bilinear=True,
    ),
)  # fmt: skip
"""`embedding`, `all_reduce` have classes of their own and no row: their results are exact or come from processes."""


def _with_zero_points(row: Kernel, w: Tensor) -> Tensor:
    """`|code - 8| scale + |zero|` of a group is at most 2.2 of its largest weight, and the two may cancel."""
    columns = w.shape[1]
    missing = -columns % GROUP
    peaks = F.pad(w.double().abs(), (0, missing)).reshape(w.shape[0], -1, GROUP).amax(-1)
    return row.weights(w).double().abs() + 2.2 * peaks.repeat_interleave(GROUP, 1)[:, :columns]


def _as_stored(row: Kernel, w: Tensor) -> Tensor:
    return row.weights(w).double().abs()


_SIZES = {"int4": _with_zero_points, "int4_bf16": _with_zero_points}


def weight_size(row: Kernel, w: Tensor) -> Tensor:
    """What a format's kernel rounds relative to, `[N, K]` float64: the stored weight, and the parts that it is made of."""
    return _SIZES.get(row.name, _as_stored)(row, w)


def _packed(row: Kernel) -> Operation:
    """A weight in a format, multiplied by its kernel: the oracle multiplies what the codes and scales stand for."""

    def parts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return row.inputs(x.float()).double(), row.weights(w.float()).double()

    def oracle(x: Tensor, w: Tensor) -> Tensor:
        a, b = parts(x, w)
        return a @ b.mT

    def magnitude(x: Tensor, w: Tensor) -> Tensor:
        return row.inputs(x.float()).double().abs() @ weight_size(row, w.float()).mT

    def tolerance(args: list[Tensor], d: Declared) -> Derivation:
        """A zero and a scale for each weight, and a scale for each sum: four roundings more than a sum has."""
        inner = t.gamma(args[0].shape[-1] + 4, d.accumulator)
        return t.rounded_to(inner, d.output)

    return Operation(f"linear:{row.name}", ("m", "n", "k"), _linear_shapes, oracle, magnitude, tolerance, "k")


PACKED: dict[str, Operation] = {f"linear:{row.name}": _packed(row) for row in KERNELS}
"""The kernels of kcverify's own formats: `linear:int8` and so on."""

BY_NAME: dict[str, Operation] = {**{row.name: row for row in ROWS}, **PACKED}
NAMES = (*BY_NAME, "embedding", "all_reduce")


def base(name: str) -> str:
    """`linear` of `linear:int8`."""
    return name.partition(":")[0]


def underflow(operation: Operation, args: list[Tensor], d: Declared) -> float:
    """What numbers below the smallest normal one may add: one such number for every term and for the result."""
    terms = args[0].shape[-1] if operation.reduced else 1
    return float(terms * t.smallest_normal(d.accumulator) + t.smallest_normal(d.output))


def dtype(name: str) -> torch.dtype:
    """torch's name of a format. Raises KeyError."""
    return DTYPES[name]
