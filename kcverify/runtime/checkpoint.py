"""State on disk that survives a kill at any moment: written beside the file, flushed, then moved over it.

A file holds the tensors and plain values of `state_dict`, and values of the caller's own, which are thereby saved in the
same instant: a run that is killed resumes after the last batch that both count. `torch.load(weights_only=True)` reads
it, so loading runs no code of the file. Its checksums are compared first: a damaged file is refused, never counted.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kcverify.runtime.errors import MonitorInputError, option_error

FORMAT = 1


def write(path: str | Path, state: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
    """Replace the file at `path` by one that holds both, after reading it back.

    Raises OSError where the folder cannot be written, `MonitorInputError` for progress that is no plain value.
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({"format": FORMAT, "state": dict(state), "progress": dict(progress)}, file)
            file.flush()
            os.fsync(file.fileno())
        _check_back(name)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def _check_back(path: str) -> None:
    try:
        read(path)
    except MonitorInputError:
        raise option_error("progress", "it holds more than numbers, texts, lists, mappings and tensors") from None


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and progress of a file. Raises `MonitorInputError` where it is missing, damaged or of another format."""
    try:
        with zipfile.ZipFile(path) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                raise ValueError("a part is compressed, which torch.save never does")
            damaged = parts.testzip()
        if damaged is not None:
            raise ValueError("it is damaged: a checksum is wrong")
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise option_error("state", f"{path} cannot be read: it holds more than plain values") from None
    except Exception as error:  # bytes that are no such file fail in whatever way the reader meets them
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise option_error("state", f"{path} cannot be read: {reason}") from None
    known = isinstance(found, dict) and found.get("format") == FORMAT
    if not known or not all(isinstance(found.get(key), dict) for key in ("state", "progress")):
        raise option_error("state", f"{path} holds no monitor state of format {FORMAT}")
    return found["state"], found["progress"]


def _flush_folder(folder: Path) -> None:
    """Make the move itself durable where the system lets a folder be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
