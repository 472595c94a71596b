"""The user's own functions: imported by name, their errors told, what they return checked."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kcverify.diagnostics import InputError, input_error
from kcverify.digests import sha256_of


def failure(spec: str, error: BaseException) -> InputError:
    """The user's error with the line of the last frame of their own file, as an input error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if not f.filename.startswith(("<", sys.prefix)) and "kcverify" not in Path(f.filename).parts
    ]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    message = str(error).strip()
    reason = type(error).__name__ + (f": {message}" if message else "") + place
    return input_error("side_failed", side=spec, reason=reason)


def import_function(spec: str) -> Callable[..., Any]:
    """The function that `module:function` names; the working folder is importable. Raises InputError: `side_failed`."""
    module, _, attribute = spec.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # stays: the function may import at its first call
    try:
        function = attrgetter(attribute)(importlib.import_module(module))
    except (Exception, SystemExit) as error:
        raise failure(spec, error) from error
    if not callable(function):
        reason = f"{attribute} is a {type(function).__name__}, not a function"
        raise input_error("side_failed", side=spec, reason=reason)
    return function  # type: ignore[no-any-return]


def check_logits(spec: str, value: object, batch: int, length: int) -> Tensor:
    """`value` when it is a floating tensor `[batch, length, V]`, V > 0; InputError (`side_failed`, `shape_invalid`)."""
    if not isinstance(value, torch.Tensor):
        raise input_error("side_failed", side=spec, reason=f"it returned a {type(value).__name__}, not a torch.Tensor")
    if value.ndim != 3 or tuple(value.shape[:2]) != (batch, length) or value.shape[2] == 0:
        expected = f"[{batch}, {length}, vocabulary]"
        raise input_error("shape_invalid", what=f"the result of `{spec}`", shape=list(value.shape), expected=expected)
    if not value.is_floating_point():
        raise input_error("side_failed", side=spec, reason=f"it returned {value.dtype}, not floating-point logits")
    return value.detach()


def code_of(spec: str) -> dict[str, str]:
    """The SHA-256 of the file of an imported `module:function`, as a field of a fingerprint."""
    path = getattr(sys.modules[spec.partition(":")[0]], "__file__", None)
    return {"code": sha256_of(Path(path))} if path else {}
