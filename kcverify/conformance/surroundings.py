"""Settings of the whole process that a kernel's module or call may change: the oracle must not compute under them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kcverify.conformance import tampering
from kcverify.conformance.model import Function

_LEAST = float.fromhex("0x1p-1074")
_DEPTH = 1000


@dataclass(frozen=True)
class Row:
    """One setting: its name in words, how it is read and put."""

    name: str
    read: Callable[[], Any]
    put: Callable[[Any], object]


def _device(name: str) -> None:
    torch.set_default_device(None if name == "cpu" else name)


def _seed(value: int) -> None:
    torch.manual_seed(value)


def _shallow() -> int:
    """The limit of recursion where it is below Python's own: compilers raise it for good, and that harms nobody."""
    return min(sys.getrecursionlimit(), _DEPTH)


def _nothing(value: object) -> None:
    """What only the end of a thread ends."""


ROWS: tuple[Row, ...] = (
    Row("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Row("default device", lambda: str(torch.get_default_device()), _device),
    Row("flushing of denormals", lambda: _LEAST * 1.0 == 0.0, torch.set_flush_denormal),
    Row("number of threads", torch.get_num_threads, torch.set_num_threads),
    Row("gradients on or off", torch.is_grad_enabled, torch._C._set_grad_enabled),
    Row("inference mode", torch.is_inference_mode_enabled, _nothing),
    Row("deterministic algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    Row("precision of float32 products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Row("seed of random numbers", torch.initial_seed, _seed),
    Row("trace function", sys.gettrace, sys.settrace),
    Row("recursion limit", _shallow, sys.setrecursionlimit),
)
"""Settings that are watched around every call."""


@dataclass(frozen=True)
class Settings:
    """The values of `ROWS`, in their order."""

    values: tuple[Any, ...]

    def differing(self, other: Settings) -> str:
        """Names of what is not the same, in words."""
        return ", ".join(row.name for row, a, b in zip(ROWS, self.values, other.values, strict=True) if a != b)


def read() -> Settings:
    """The settings of this thread now."""
    return Settings(tuple(row.read() for row in ROWS))


def put(wanted: Settings) -> None:
    """Make them the settings, each only where it is another one."""
    for row, value in zip(ROWS, wanted.values, strict=True):
        if row.read() != value:
            row.put(value)


def within(function: Function, own: Settings, replaced: tuple[tampering.Change, ...] = ()) -> Function:
    """The function under settings and names of its own, those of the caller put back."""

    @functools.wraps(function)
    def kernel(*args: Any, **named: Any) -> Any:
        before = read()
        put(own)
        tampering.redo(replaced)
        try:
            return function(*args, **named)
        finally:
            tampering.undo(replaced)
            put(before)

    return kernel
