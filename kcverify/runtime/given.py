"""Checks of what comes with the rows: their numbers, their times, which rows a slice or a clause counts, a temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kcverify.runtime.clauses import Layout, Sampled
from kcverify.runtime.errors import option_error, shape_error


def check_dense(what: str, value: Any) -> None:
    """Raise `MonitorInputError` unless it is a dense tensor that holds values."""
    if not isinstance(value, torch.Tensor):
        raise option_error(what, f"a torch tensor is needed, not {type(value).__name__}")
    if value.is_nested or value.layout != torch.strided:
        kind = "a nested tensor" if value.is_nested else f"layout {value.layout} is not torch.strided"
        raise option_error(what, f"{kind}: give a dense tensor")
    if value.device.type == "meta":
        raise option_error(what, "a tensor on the meta device has no values")


def check_integers(what: str, value: Any, noun: str) -> None:
    """Raise `MonitorInputError` unless it is a dense tensor of integers that fit int64; `noun` says of what."""
    check_dense(what, value)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype in (torch.bool, torch.uint64):
        raise option_error(what, f"dtype {value.dtype} holds no {noun}: give int64")


def row_integers(
    what: str, value: torch.Tensor | None, noun: str, count: int, device: torch.device
) -> torch.Tensor | None:
    """An integer a row as int64 `[count]` on the device; None as it is. Raises MonitorInputError."""
    if value is None:
        return None
    check_integers(what, value, noun)
    if tuple(value.shape) != (count,):
        raise shape_error(what, list(value.shape), f"[{count}]")
    return value.to(device, torch.int64, non_blocking=True)


def row_times(times: torch.Tensor | float | None, count: int, device: torch.device) -> torch.Tensor | None:
    """Seconds as float64 `[count]` on the device; one number holds for every row. Raises MonitorInputError."""
    if times is None:
        return None
    if isinstance(times, int | float) and not isinstance(times, bool):
        return torch.full((count,), float(times), dtype=torch.float64, device=device)
    if not isinstance(times, torch.Tensor):
        raise option_error("times", f"a number or a torch tensor is needed, not {type(times).__name__}")
    check_dense("times", times)
    if tuple(times.shape) not in ((), (count,)):
        raise shape_error("times", list(times.shape), f"[{count}]")
    if times.dtype.is_complex or times.dtype == torch.bool:
        raise option_error("times", f"dtype {times.dtype} holds no seconds")
    return times.to(device, torch.float64, non_blocking=True).expand(count)


def slice_masks(
    layout: Layout, given: Mapping[str, torch.Tensor], count: int, device: torch.device
) -> list[torch.Tensor | None]:
    """Row mask of every row, then of each slice of the layout, bool `[count]` on the device; None where it was not given.

    Raises MonitorInputError.
    """
    if not isinstance(given, Mapping):
        raise option_error("slices", f"a mapping from slice to mask is needed, not {type(given).__name__}")
    masks: list[torch.Tensor | None] = [torch.ones(count, dtype=torch.bool, device=device)]
    for name in layout.slices[1:]:
        if isinstance(name, Sampled):
            continue
        mask = given.get(str(name))
        if mask is not None:
            check_dense(f"slice {name}", mask)
            if tuple(mask.shape) != (count,) or mask.dtype != torch.bool:
                raise shape_error(f"slice {name}", f"{list(mask.shape)} of {mask.dtype}", f"[{count}] of torch.bool")
        masks.append(None if mask is None else mask.to(device, non_blocking=True))
    return masks


def token_masks(
    layout: Layout, masks: Sequence[torch.Tensor | None], sampled: torch.Tensor | None, invalid: torch.Tensor
) -> list[torch.Tensor | None]:
    """Of each group `Sampled` of the layout the rows that a token follows; all of its slice where none was given.

    `invalid` bool `[N]` are rows that count whether a token follows or not.
    """
    out = []
    for group in layout.slices:
        if not isinstance(group, Sampled):
            continue
        mask = masks[layout.slot[group.slice]]
        if mask is not None and sampled is not None:
            mask = mask & ((sampled.to(mask.device, torch.int64) >= 0) | invalid)
        out.append(mask)
    return out


def plain_number(temperature: Any) -> Any:
    """A number of any library as a float; anything else as it is."""
    try:
        return temperature if isinstance(temperature, str | bytes) else float(temperature)
    except (TypeError, ValueError, RuntimeError):
        return temperature
