"""Which shapes a check visits: corners of the declared ranges, shapes next to powers of two, and draws between."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from math import prod

import torch

from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Protocol
from kcverify.conformance.operations import Operation
from kcverify.elaborate.words import Binary, Condition, Constant, Symbol

DEFAULTS = {"m": (1, 48), "n": (2, 64), "k": (2, 512)}
"""Ranges of dimensions where a contract has none; a row of one element has no variance to speak of."""

LARGEST_WORK = 2**23
"""Products of dimensions beyond it are halved until they fit: the oracle is float64 on a processor."""

LARGEST_OPERAND = 2**27
"""Elements of an operand or a result: 1 GiB in float64, of which a check holds several."""

_DRAWS = 500
Dims = dict[str, int]


def ranges(operation: Operation, protocol: Protocol) -> dict[str, tuple[int, int]]:
    """Range of every dimension of the operation; what lies beyond any shape that is drawn is cut off."""
    declared = {name: (low, min(high, max(low, LARGEST_WORK))) for name, low, high in protocol.shapes}
    return {name: declared.get(name, DEFAULTS[name]) for name in operation.dims}


def fitting(dims: Dims, least: dict[str, tuple[int, int]], work: int = LARGEST_WORK) -> Dims:
    """The same shape with its largest dimensions halved until the work fits, never below the declared least."""
    out = dict(dims)
    while prod(out.values()) > work:
        name = max(out, key=lambda d: out[d] / max(least[d][0], 1))
        if out[name] <= least[name][0]:
            break
        out[name] = max(out[name] // 2, least[name][0])
    return out


_COMPARE = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def keeps(condition: Condition, dims: Mapping[str, int]) -> bool | None:
    """Whether a shape keeps a precondition; None for one that is not about dimensions."""
    if condition.right is None:
        return None
    left, right = t.evaluate(condition.left, dims).value, t.evaluate(condition.right, dims).value
    return None if left is None or right is None else bool(_COMPARE[condition.operator](left, right))


def broken(dims: Mapping[str, int], requires: tuple[Condition, ...]) -> bool:
    """Whether a precondition on dimensions is not kept."""
    return any(keeps(one, dims) is False for one in requires)


def allowed(dims: Dims, least: dict[str, tuple[int, int]], requires: tuple[Condition, ...]) -> Dims:
    """The shape, moved to the multiples that `k % c == 0` asks for; else the first draw that keeps the preconditions."""
    out = dict(dims)
    for one in requires:
        match one:
            case Condition(Binary("%", Symbol(name), Constant(step)), "==", Constant(rest)) if (
                name in out and rest == 0
            ):
                size = max(int(step), 1)
                down = out[name] // size * size
                out[name] = down if down >= least[name][0] else -(-least[name][0] // size) * size
    if not broken(out, requires):
        return out
    g = torch.Generator().manual_seed(sum(dims.values()))
    for _ in range(_DRAWS):
        drawn = {name: int(torch.randint(low, high + 1, (1,), generator=g)) for name, (low, high) in least.items()}
        drawn = fitting(drawn, least)
        if not broken(drawn, requires):
            return drawn
    return out


def too_large(operation: Operation, protocol: Protocol) -> int:
    """Elements of the largest operand or result of the smallest declared shape, 0 where it can be drawn."""
    least = {name: low for name, (low, _) in ranges(operation, protocol).items()}
    result = [least[name] for name in ("m", "n") if name in least]
    most = max(prod(shape) for shape in (*operation.shapes(least), result))
    return most if most > LARGEST_OPERAND else 0


def unreachable(operation: Operation, protocol: Protocol) -> bool:
    """Whether no shape that is drawn keeps the preconditions."""
    found = ranges(operation, protocol)
    return broken(trial(operation, protocol, torch.Generator().manual_seed(1), 0), protocol.requires) or any(
        not low <= size <= high
        for name, size in trial(operation, protocol, torch.Generator().manual_seed(1), 1).items()
        for low, high in (found[name],)
    )


def trial(operation: Operation, protocol: Protocol, g: torch.Generator, index: int) -> Dims:
    """Shape of one trial: the upper corner first, then the lower one, then draws."""
    found = ranges(operation, protocol)
    if index == 0:
        chosen = {name: high for name, (_, high) in found.items()}
    elif index == 1:
        chosen = {name: low for name, (low, _) in found.items()}
    else:
        chosen = {name: int(torch.randint(low, high + 1, (1,), generator=g)) for name, (low, high) in found.items()}
    return allowed(fitting(chosen, found), found, protocol.requires)


def benchmark(operation: Operation, protocol: Protocol) -> Dims:
    """The shape at which kernels are timed: the largest multiple of 16 in each range, or its upper end."""
    found = ranges(operation, protocol)
    chosen = {n: high // 16 * 16 if high // 16 * 16 >= low else high for n, (low, high) in found.items()}
    return allowed(fitting(chosen, found), found, protocol.requires)


def middle(operation: Operation, protocol: Protocol, **wanted: int) -> Dims:
    """A small shape for checks of one property, its dimensions inside the declared ranges."""
    found, out = ranges(operation, protocol), {}
    for name, (low, high) in found.items():
        out[name] = min(max(wanted.get(name, 12), low), high)
    return allowed(fitting(out, found), found, protocol.requires)


def named(dims: Mapping[str, int]) -> str:
    """Sizes in words: `m=48, k=1024`."""
    return ", ".join(f"{name}={size}" for name, size in dims.items())
