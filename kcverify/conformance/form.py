"""The form of a result: a plain tensor in the declared format, where it is declared to be."""

from __future__ import annotations

import torch
from torch import Tensor

from kcverify.conformance.model import Declared
from kcverify.conformance.operations import dtype

SAID = 200
"""Characters of what a kernel says that are kept."""


def printable(text: str) -> str:
    """One line without anything that moves a cursor, of a readable length."""
    kept = "".join(c for c in " ".join(text[: 4 * SAID].split()) if c.isprintable())
    return kept if len(kept) <= SAID else f"{kept[:SAID]} ..."


def reason(error: BaseException) -> str:
    """First line of what an exception says; a kernel's exception may fail at that too."""
    try:
        lines = str(error)[: 16 * SAID].strip().splitlines()
    except Exception:
        lines = []
    return printable(lines[0]) if lines else "no reason"


def fault(out: object, d: Declared) -> str:
    """Why a result cannot be compared with anything, empty where it can."""
    if not isinstance(out, Tensor) or type(out) is not Tensor:
        return f"a {printable(type(out).__name__)}, not a plain tensor"
    for wrong, said in (
        (out.is_nested, "a nested tensor"), (out.layout is not torch.strided, f"a tensor of layout {out.layout}"),
        (out.is_quantized, "a quantised tensor"),
        (out.is_neg() and out.dtype.itemsize == 1, "a view whose sign is still to be applied"), (out.is_complex(), f"of complex numbers ({_short(out.dtype)})"),
    ):  # fmt: skip
        if wrong:
            return said
    device = torch.device(d.device).type
    return "" if out.device.type == device else f"on {out.device.type}, not on {device}"


def format_fault(out: Tensor, d: Declared, strict: bool = False) -> str:
    """Why a result is not in the declared format, empty where it is.

    A wider format of the same kind will do if every value is one of the declared format, unless `strict`.
    """
    wanted = dtype(d.output)
    if out.dtype is wanted or (not strict and _held(out.detach(), wanted)):
        return ""
    return f"{_short(out.dtype)}, not {d.output}"


def _held(out: Tensor, wanted: torch.dtype) -> bool:
    """Whether a result is in a wider format but holds values of the declared one alone."""
    if out.dtype.itemsize < wanted.itemsize or (wanted.is_floating_point and not out.dtype.is_floating_point):
        return False
    wide = out.double()
    back = out.to(wanted).double()
    return bool(((wide == back) | (wide.isnan() & back.isnan())).all())


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
