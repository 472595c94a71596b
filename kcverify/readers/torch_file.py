"""Files of `torch.save`, read with `weights_only=True`: tensors by name, or slime's list of samples. Needs torch."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from kcverify.readers import tensors
from kcverify.readers.faults import Place, shown, too_large
from kcverify.readers.model import Found, Opening

WHOLE = 2 << 30
"""Bytes of a torch file that are read."""


def load(path: Path) -> dict[str, Any]:
    """The object's columns: name -> tensor `[B, …]`, or those of a list of samples. Raises `stream_invalid`."""
    size = path.stat().st_size
    if size > WHOLE:
        raise too_large(path, "a torch file", size, WHOLE, "save the tensors as safetensors")
    place = Place(str(path))
    _uncompressed(path, place)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        hint = "save tensors, lists, dictionaries, numbers and texts alone; kcverify runs no code of a pickle"
        raise place.invalid(f"it holds objects that are not data: {_first(error)}", hint) from None
    except Exception as error:  # a damaged pickle makes torch raise almost anything
        raise place.invalid(f"torch cannot read it: {_first(error)}") from None
    samples = found.get("samples") if isinstance(found, Mapping) else found
    if isinstance(samples, list) and samples and all(isinstance(s, Mapping) for s in samples):
        return {str(k): [s.get(k) for s in samples] for k in samples[0]}
    if isinstance(found, Mapping):
        return {str(k): _held(place.at(str(k)), v) for k, v in found.items()}
    raise place.invalid(f"it holds a {type(found).__name__}, and a dictionary of tensors or a list of samples is read")


def _uncompressed(path: Path, place: Place) -> None:
    """`torch.save` compresses nothing; what is compressed could be far larger in memory than on disk."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [m.filename for m in archive.infolist() if m.compress_type != zipfile.ZIP_STORED]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise place.invalid(f"it is a damaged archive: {_first(error)}") from None
    if packed:
        raise place.invalid(f"its part {shown(packed[0])} is compressed, which `torch.save` never does")


def read(opening: Opening) -> Found:
    """One row a request."""
    first: Mapping[str, Any] = opening.head.first
    counts = {name: len(v) for name, v in first.items() if _is_column(v)}
    wanted = tensors.wanted(opening.format.name)
    total = max((n for name, n in counts.items() if name in wanted), default=0)
    for name in counts:
        if name in wanted and counts[name] != total:
            raise opening.place.at(name).length(f"{counts[name]} rows, and {total} elsewhere")

    def rows() -> Iterator[Any]:
        for i in range(total):
            yield {name: _item(first[name][i]) for name, n in counts.items() if n == total}

    return tensors.read_rows(opening, first.keys(), rows)


def _held(place: Place, value: Any) -> Any:
    """The value; a tensor must have its own bytes, not repeat a few of them without end."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu":
        needs = value.numel() * value.element_size()
        if needs > value.untyped_storage().nbytes():
            raise place.invalid(f"shape {list(value.shape)} needs {needs:,} bytes, and fewer are in the file")
    elif isinstance(value, torch.Tensor):
        raise place.invalid("it is no dense tensor on the CPU")
    return value


def _is_column(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, torch.Tensor) and value.dim() >= 1)


def _item(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        value = value.to(torch.float64)
    return value.item() if value.dim() == 0 else value.detach().numpy()


def _first(error: Exception) -> str:
    return shown(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
