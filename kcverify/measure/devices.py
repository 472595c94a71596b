"""Where kernels run: the device of a name, and the kinds that this torch serves."""

from __future__ import annotations

import warnings

import torch

from kcverify.diagnostics import InputError, input_error


def served() -> tuple[str, ...]:
    """The devices that this build of torch computes on here: the CPU, and its accelerator where one is there."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return ("cpu",)
    count = torch.accelerator.device_count()
    return ("cpu", found.type) if count < 2 else ("cpu", found.type, *(f"{found.type}:{i}" for i in range(count)))


def device_of(name: str) -> torch.device:
    """The device of this name. Raises InputError: `option_invalid` for one that torch cannot use here.

    Torch knows names of devices that no build of it serves: whatever it does with one is told as a device that is not here.
    """
    device = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = torch.device(name)
            torch.empty(1, device=device)
    except Exception as error:
        raise _unserved(name, _said(device, error)) from error
    if device.type == "meta":
        raise _unserved(name, "")
    return device


def _said(device: torch.device | None, error: Exception) -> str:
    """Torch's own words where they are about a device that it serves, or was built without; not those about its insides."""
    mine = device is not None and device.type in served()
    lines = str(error).strip().splitlines()
    return lines[0] if lines and (mine or isinstance(error, AssertionError)) else ""


def _unserved(name: str, said: str) -> InputError:
    reason = f"torch {torch.__version__} computes nothing on `{name}` here" + (f": {said}" if said else "")
    return input_error("option_invalid", option="--device", reason=reason, hint=f"one of {', '.join(served())}")
