"""Results that are not compared: their sums or own size leave the range of a declared format, or no order of evaluation decides them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kcverify.conformance import weighing
from kcverify.conformance.model import Declared
from kcverify.conformance.operations import Operation, base
from kcverify.conformance.probes import DTYPES

_ROOM = 1 + 2.0**-3
"""Roundings of the sums and of a result, generously: a result that near the end of a range is not compared."""


def largest(name: str) -> float:
    """Largest finite number of a floating format; infinite for whole numbers, whose sums are taken as exact."""
    kind = DTYPES.get("float32" if name == "tfloat32" else name)
    return float(torch.finfo(kind).max) if kind is not None and kind.is_floating_point else float("inf")


def _squares(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True)


def _scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Dot products before they are scaled; sums of values whose weights are not normalised yet."""
    return torch.maximum((q.abs() @ k.abs().mT).amax(-1, keepdim=True), v.abs().sum(0, keepdim=True))


_PEAKS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": _squares, "rms_norm": _squares, "variance": lambda x: _squares(x)[..., 0],
    "softmax": lambda x: 2 * x.abs().amax(-1, keepdim=True), "logsumexp": lambda x: 2 * x.abs().amax(-1),
    "attention": _scores, "causal_attention": _scores,
}  # fmt: skip
"""Bound of every number on the way to a result, for operations whose own magnitude is none."""


def inside(operation: Operation, args: list[Tensor], expected: Tensor, d: Declared) -> Tensor:
    """Which results every order of evaluation keeps within the declared formats, of the result's shape.

    `args` and `expected` are float64; what the oracle itself says is infinite counts as inside.
    """
    peak = _PEAKS.get(base(operation.name), operation.magnitude)(*args)
    sums = torch.broadcast_to(peak * _ROOM <= largest(d.accumulator), expected.shape)
    return (sums & (expected.abs() * _ROOM <= largest(d.output))) | ~torch.isfinite(expected)


def undecided(operation: Operation, args: list[Tensor], d: Declared) -> Tensor | None:
    """Rows `[m, 1]` in which conforming orders of evaluation differ by more than any bound says; None where there are none."""
    name = base(operation.name)
    if not name.endswith("attention"):
        return None
    found = weighing.open_rows(args[0], args[1], args[2], d, name == "causal_attention")
    return found if bool(found.any()) else None
