"""Table of operations: shapes, float64 oracle, the magnitude that errors are measured against, and the derived tolerance.

A row's tolerance `t` and magnitude `D >= |y|` say `|kernel - y| <= t D + underflow` for every element, for any order of
evaluation with the declared accumulator and one rounding of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kcverify.conformance import doubled, dynamic4, errors
from kcverify.conformance import tolerances as t
from kcverify.conformance.later import Later
from kcverify.conformance.model import Declared, Derivation
from kcverify.conformance.probes import DTYPES, Shape
from kcverify.measure.kernels import GROUP, KERNELS, Kernel

Dims = Mapping[str, int]
EPSILON = errors.EPSILON
"""Of the norms."""


@dataclass(frozen=True)
class Operation:
    """One operation. `dims` are the names of a scope's dimensions; functions take float64 operands.

    `reduced` names the dimension that is summed over; `unfused` is the operation as steps of its own, in the operands'
    format; `rowwise` says that rows of the first operand are independent; `bilinear`, that a
    power of two in the first operand comes out as it is. `beyond` is what the exact result has beyond the oracle's, for kernels
    that are as fine as the oracle.
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
    beyond: Callable[..., Tensor] | None = None


def _centred(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    root = (x.var(-1, correction=0, keepdim=True) + EPSILON).sqrt()
    return ((x - mean).abs() + x.abs().mean(-1, keepdim=True)) / root


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)


def _causal(q: Tensor, k: Tensor) -> Tensor:
    """Row i attends to the first i + 1 keys."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)


def _divergence(a: Tensor, b: Tensor) -> Tensor:
    """KL of the rows' softmaxes: a term of no mass is 0, mass where the second has none is infinite."""
    p, logs = torch.softmax(a, -1), (torch.log_softmax(a, -1), torch.log_softmax(b, -1))
    terms = torch.where(p == 0, torch.zeros_like(p), p * (logs[0] - logs[1]))
    return terms.sum(-1)


def _divergence_size(a: Tensor, b: Tensor) -> Tensor:
    peaks = [x.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1) for x in (a, b)]
    return 2 * (1 + peaks[0] + peaks[1] + torch.tensor(float(a.shape[-1])).log())


def _divergence_steps(a: Tensor, b: Tensor) -> Tensor:
    return _divergence(a.float(), b.float()).to(a.dtype)


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
        "matmul", ("m", "n", "k"), _product_shapes, lambda a, b: a @ b, lambda a, b: a.abs() @ b.abs(), errors.product, "k",
        lambda a, b: (a.float()[:, :, None] * b.float()[None]).sum(1).to(a.dtype), bilinear=True, beyond=doubled.beyond,
    ),
    Operation(
        "linear", ("m", "n", "k"), _linear_shapes, lambda x, w: x @ w.mT,
        lambda x, w: x.abs() @ w.abs().mT, errors.product, "k", lambda x, w: (x.float() @ w.float().mT).to(x.dtype),
        bilinear=True, beyond=lambda x, w: doubled.beyond(x, w.mT),
    ),
    Operation(
        "sum", ("n",), lambda s: ((s["n"],),), lambda x: x.sum(-1), lambda x: x.abs().sum(-1), errors.total, "n", rowwise=False, bilinear=True,
    ),
    Operation(
        "softmax", ("m", "n"), _rows, lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, -1), errors.softmax, "n",
        _softmax_steps,
    ),
    Operation(
        "logsumexp", ("m", "n"), _rows, lambda x: torch.logsumexp(x, -1),
        lambda x: 1 + x.abs().amax(-1) + torch.tensor(float(x.shape[-1])).log(), errors.logsumexp, "n",
    ),
    Operation(
        "variance", ("m", "n"), _rows, lambda x: x.var(-1, correction=0), lambda x: x.var(-1, correction=0), errors.variance, "n",
    ),
    Operation(
        "layer_norm", ("m", "n"), _rows, lambda x: F.layer_norm(x, x.shape[-1:], eps=EPSILON), _centred, errors.layer_norm, "n",
        _layer_norm_steps,
    ),
    Operation(
        "rms_norm", ("m", "n"), _rows, _rms_norm_of, lambda x: _rms_norm_of(x).abs(), errors.rms_norm, "n",
        lambda x: _rms_norm_of(x.float()).to(x.dtype),
    ),
    Operation(
        "attention", ("m", "n", "k"), _attention_shapes, lambda q, k, v: _weights(q, k) @ v,
        lambda q, k, v: _weights(q, k) @ v.abs(), errors.attention, "n",
        lambda q, k, v: (_weights(q.float(), k.float()) @ v.float()).to(q.dtype),
    ),
    Operation(
        "causal_attention", ("m", "n", "k"), _attention_shapes, lambda q, k, v: _causal(q, k) @ v,
        lambda q, k, v: _causal(q, k) @ v.abs(), partial(errors.attention, causal=True), "n",
        lambda q, k, v: (_causal(q.float(), k.float()) @ v.float()).to(q.dtype), rowwise=False,
    ),
    Operation(
        "kl", ("m", "n"), lambda s: ((s["m"], s["n"]), (s["m"], s["n"])), _divergence, _divergence_size, errors.divergence, "n",
        _divergence_steps,
    ),
    Operation("relu", ("m", "n"), _rows, torch.relu, lambda x: x.abs(), errors.rounding, bilinear=True),
    Operation("cast", ("m", "n"), _rows, lambda x: x, lambda x: x.abs(), errors.rounding, bilinear=True),
    Operation(
        "multiply", ("m", "n"), lambda s: ((s["m"], s["n"]), (s["m"], s["n"])), torch.mul, lambda a, b: (a * b).abs(), errors.rounding,
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


@dataclass(frozen=True)
class Stored:
    """A weight in a format: the matrices that its kernel multiplies, and what it rounds relative to, `[N, K]` of float32.

    `apart` where columns with an outlier in any row are multiplied apart, in the operands' format: rows depend on each other.
    """

    name: str
    weights: Callable[[Tensor], Tensor]
    inputs: Callable[[Tensor], Tensor]
    size: Callable[[Tensor], Tensor]
    unfused: Callable[[Tensor, Tensor], Tensor] | None = None
    apart: bool = False


def packed(row: Stored) -> Operation:
    """A weight in a format, multiplied by its kernel: the oracle multiplies what the codes and scales stand for."""

    def parts(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return row.inputs(x.float()).double(), row.weights(w.float()).double()

    def oracle(x: Tensor, w: Tensor) -> Tensor:
        a, b = parts(x, w)
        return a @ b.mT

    def magnitude(x: Tensor, w: Tensor) -> Tensor:
        return row.inputs(x.float()).double().abs() @ row.size(w.float()).mT

    def tolerance(args: list[Tensor], d: Declared) -> Derivation:
        """A zero and a scale for each weight, and a scale for each sum: four roundings more than a sum has."""
        inner = t.gamma(args[0].shape[-1] + 4, d.accumulator)
        said = (*inner.lines, "k products and sums, and four roundings of weights, zeros and scales")
        found = errors.rounded(Derivation(inner.value, said), d)
        return (
            errors.rounded(found, d) if row.apart else found
        )  # a part's result, or a weight, is rounded before they are added

    name = f"linear:{row.name}"
    return Operation(
        name, ("m", "n", "k"), _linear_shapes, oracle, magnitude, tolerance, "k", row.unfused, rowwise=not row.apart
    )


def _of_kernel(row: Kernel) -> Stored:
    return Stored(row.name, row.weights, row.inputs, partial(weight_size, row))


def _elsewhere(library: str, name: str, unfused: str = "") -> Stored:
    """A format of a library that is loaded when it is first used."""
    place = f"kcverify.conformance.with_{library}"
    weights, inputs = (Later(place, what, name) for what in ("weights", "inputs"))

    def size(w: Tensor) -> Tensor:
        found: Tensor = weights(w)
        return found.double().abs()

    steps = Later(place, unfused, name) if unfused else None
    return Stored(f"{library}_{name}", weights, inputs, size, steps, name.endswith("_outliers"))


def _dynamic(name: str) -> Stored:
    """torch's 4-bit weights under inputs that are quantised a row at a time."""
    weights, inputs = partial(dynamic4.weights, name), partial(dynamic4.inputs, name)
    return Stored(f"dynamic4_{name}", weights, inputs, lambda w: weights(w).abs())


LIBRARY_FORMATS = (
    *(("torchao", name) for name in ("int8", "w8a8", "w8a8_narrow", "fp8", "int4", "a8int4")),
    *(("bitsandbytes", name) for name in ("nf4", "fp4", "int8", "linear8", "linear8_outliers")),
)
"""Formats of torchao and bitsandbytes, where those are installed."""

PACKED: dict[str, Operation] = {
    f"linear:{row.name}": packed(row)
    for row in (
        *(_of_kernel(row) for row in KERNELS),
        *(_dynamic(name) for name in dynamic4.FORMATS),
        *(_elsewhere(library, name, "eager" if library == "torchao" else "") for library, name in LIBRARY_FORMATS),
    )
}
"""Kernels of weights in formats: `linear:int8` is kcverify's own, `linear:torchao_int8` a library's."""

BY_NAME: dict[str, Operation] = {**{row.name: row for row in ROWS}, **PACKED}
NAMES = (*BY_NAME, "embedding", "scatter", "all_reduce")


def base(name: str) -> str:
    """`linear` of `linear:int8`."""
    return name.partition(":")[0]


def result(operation: Operation) -> tuple[str, ...]:
    """Dimensions of the result by name: rows, then the last dimension of the last operand that is not summed over."""
    if operation.name == "sum":
        return ()
    if operation.name in ("logsumexp", "variance", "kl"):
        return ("m",)
    return ("m", "k") if operation.name.endswith("attention") else ("m", "n")


def underflow(operation: Operation, args: list[Tensor], d: Declared) -> float:
    """What numbers below the smallest normal one may add: as much as each term's roundings there lose, and the result's."""
    terms = args[0].shape[-1] if operation.reduced else 1
    flush = d.denormals == "flush"
    each = t.FUNCTION_ROUNDOFFS * t.lost(d.accumulator, flush)
    return float(terms * each + t.lost(d.output, flush))


def dtype(name: str) -> torch.dtype:
    """torch's name of a format. Raises KeyError."""
    return DTYPES[name]
