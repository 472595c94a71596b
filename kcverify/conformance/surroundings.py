"""Settings of the whole process that a kernel's module or call may change: the oracle must not compute under them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any

import torch

from kcverify.conformance.model import Function

_LEAST = float.fromhex("0x1p-1074")


@dataclass(frozen=True)
class Settings:
    """Format and device of new tensors, and whether this thread flushes denormals."""

    format: torch.dtype
    device: str
    flush: bool

    def differing(self, other: Settings) -> str:
        """Names of what is not the same, in words."""
        named = (f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))
        return ", ".join(_WORDS[name] for name in named)


_WORDS = {"format": "default dtype", "device": "default device", "flush": "flushing of denormals"}


def read() -> Settings:
    """The settings of this thread now."""
    return Settings(torch.get_default_dtype(), str(torch.get_default_device()), _LEAST * 1.0 == 0.0)


def put(wanted: Settings) -> None:
    """Make them the settings, each only where it is another one."""
    now = read()
    if now.device != wanted.device:
        torch.set_default_device(None if wanted.device == "cpu" else wanted.device)
    if now.format is not wanted.format:
        torch.set_default_dtype(wanted.format)
    if now.flush != wanted.flush:
        torch.set_flush_denormal(wanted.flush)


def within(function: Function, own: Settings) -> Function:
    """The function under settings of its own, those of the caller put back."""

    @functools.wraps(function)
    def kernel(*args: Any, **named: Any) -> Any:
        before = read()
        put(own)
        try:
            return function(*args, **named)
        finally:
            put(before)

    return kernel
