"""Checks of what comes with the rows: their numbers, their times, a temperature."""

from __future__ import annotations

from typing import Any

import torch

from kcverify.runtime.errors import option_error, shape_error


def row_numbers(positions: torch.Tensor | None, count: int, device: torch.device) -> torch.Tensor | None:
    """Row numbers as int64 on the device."""
    if positions is None:
        return None
    if not isinstance(positions, torch.Tensor):
        raise option_error("positions", f"a torch tensor is needed, not {type(positions).__name__}")
    if tuple(positions.shape) != (count,):
        raise shape_error("positions", list(positions.shape), f"[{count}]")
    if positions.dtype.is_floating_point or positions.dtype.is_complex or positions.dtype == torch.bool:
        raise option_error("positions", f"dtype {positions.dtype} is not an integer type")
    return positions.to(device, torch.int64, non_blocking=True)


def row_times(times: torch.Tensor | float | None, count: int, device: torch.device) -> torch.Tensor | None:
    """Seconds as float64 `[count]` on the device; one number holds for every row. Raises MonitorInputError."""
    if times is None:
        return None
    if isinstance(times, int | float) and not isinstance(times, bool):
        return torch.full((count,), float(times), dtype=torch.float64, device=device)
    if not isinstance(times, torch.Tensor):
        raise option_error("times", f"a number or a torch tensor is needed, not {type(times).__name__}")
    if tuple(times.shape) not in ((), (count,)):
        raise shape_error("times", list(times.shape), f"[{count}]")
    if times.dtype.is_complex or times.dtype == torch.bool:
        raise option_error("times", f"dtype {times.dtype} holds no seconds")
    return times.to(device, torch.float64, non_blocking=True).expand(count)


def plain_number(temperature: Any) -> Any:
    """A number of any library as a float; anything else as it is."""
    try:
        return temperature if isinstance(temperature, str | bytes) else float(temperature)
    except (TypeError, ValueError, RuntimeError):
        return temperature
