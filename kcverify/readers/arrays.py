"""Arrays of safetensors and npy files by name: shapes checked against the file, rows read in blocks.

The safetensors library maps a whole file and has no numpy type for bfloat16; this reader maps one block of rows at a
time, so that resident memory does not grow with the file, and widens bfloat16 by its bits (`uint16 << 16`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kcverify.diagnostics import input_error
from kcverify.readers.documents import parse
from kcverify.readers.faults import Place, listed, shown
from kcverify.readers.values import is_integer

_HEADER = 100 << 20
"""Bytes of a safetensors header that its specification allows."""

BLOCK = 4 << 20
"""Elements of one block of rows, whatever their type: two files of one width are cut at the same rows."""

BFLOAT16 = "BF16"
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", BFLOAT16: "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip


@dataclass(frozen=True)
class Array:
    """One array in a file: where its bytes start, its type (safetensors' name), its shape."""

    path: Path
    name: str
    offset: int
    type: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.type == BFLOAT16 or self.dtype.kind == "f"

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows `start` to `stop` of the first axis: a view of the file, or float32 for bfloat16."""
        width = prod(self.shape[1:])
        offset = self.offset + start * width * self.dtype.itemsize
        shape = (stop - start, *self.shape[1:])
        if prod(shape) == 0:
            return np.zeros(shape, dtype=self.dtype)
        found: npt.NDArray[Any]
        try:
            found = np.memmap(self.path, dtype=self.dtype, mode="r", offset=offset, shape=shape)
        except (OSError, ValueError) as error:
            raise Place(str(self.path), key=self.name).invalid(f"the file changed while it was read: {error}") from None
        return widened(found) if self.type == BFLOAT16 else found

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """All rows, in blocks of at most `BLOCK` elements, each with its first row."""
        step = block_rows(prod(self.shape[1:]))
        for start in range(0, self.shape[0], step):
            yield start, self.rows(start, min(start + step, self.shape[0]))


def block_rows(width: int) -> int:
    """Rows of one block."""
    return max(1, BLOCK // max(1, width))


def widened(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Float32 of bfloat16 bits in uint16: the upper half of the same number."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def safetensors(path: Path) -> dict[str, Array]:
    """The arrays of a safetensors file. Raises InputError: `stream_invalid` for a header that the file does not keep to."""
    place, size = Place(str(path)), path.stat().st_size
    with _opened(path) as file:
        raw = file.read(8)
        length = struct.unpack("<Q", raw)[0] if len(raw) == 8 else 0
        if not 2 <= length <= min(_HEADER, size - 8):
            raise place.invalid(f"a header of {length:,} bytes in a file of {size:,}")
        header = parse(Place(str(path), "header"), file.read(length))
    if not isinstance(header, dict):
        raise place.invalid("the header is not an object")
    found = {
        name: _described(place.at(name), name, item, path, 8 + length, size)
        for name, item in header.items()
        if name != "__metadata__"
    }
    spans = sorted((a.offset, a.offset + prod(a.shape) * a.dtype.itemsize, a.name) for a in found.values())
    for (_, end, before), (start, stop, name) in pairwise(spans):
        if start < min(end, stop):
            raise place.at(name).invalid(f"its bytes are also those of {shown(before)}")
    return found


def metadata(path: Path) -> dict[str, str]:
    """The `__metadata__` of a safetensors file whose header was read before."""
    with _opened(path) as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found = parse(Place(str(path), "header"), file.read(length)).get("__metadata__")
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def _described(place: Place, name: str, item: Any, path: Path, start: int, size: int) -> Array:
    if not isinstance(item, dict):
        raise place.invalid(f"{shown(item)} does not describe an array")
    kind, shape, offsets = item.get("dtype"), item.get("shape"), item.get("data_offsets")
    if kind not in _TYPES:
        raise place.invalid(f"type {shown(kind)} is not read", f"convert it to one of {listed(_TYPES, 20)}")
    counts = isinstance(shape, list) and all(is_integer(n) and 0 <= n < 1 << 48 for n in shape)
    spans = isinstance(offsets, list) and len(offsets) == 2 and all(is_integer(n) and n >= 0 for n in offsets)
    if not counts or not spans:
        raise place.invalid("its shape or its offsets are not whole numbers")
    dtype = np.dtype(_TYPES[kind])
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    if offsets[1] - offsets[0] != prod(shape) * dtype.itemsize:
        raise place.invalid(f"shape {shape} of {kind} does not fill {offsets[1] - offsets[0]:,} bytes")
    if start + offsets[1] > size:
        raise place.invalid(f"the file ends at byte {size:,}, and its data at {start + offsets[1]:,}: it is cut short")
    return Array(path, name, start + offsets[0], kind, tuple(shape), dtype)


def npy(path: Path) -> Array:
    """The array of an npy file. Raises InputError: `stream_invalid`."""
    place, size = Place(str(path)), path.stat().st_size
    with _opened(path) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except (ValueError, EOFError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
            raise place.invalid(
                f"its header is damaged: {shown(str(error).splitlines()[0] if str(error) else error)}"
            ) from None
        offset = file.tell()
    if dtype.hasobject or dtype.kind not in "fiub":
        raise place.invalid(f"type {dtype} is not read", "save numbers, without pickled objects")
    if fortran and len(shape) > 1:
        raise place.invalid("its rows are not contiguous (Fortran order)", "save `numpy.ascontiguousarray(array)`")
    if any(n < 0 for n in shape):
        raise place.invalid(f"shape {shape} is none")
    if offset + prod(shape) * dtype.itemsize > size:
        raise place.invalid(
            f"shape {shape} of {dtype} needs {prod(shape) * dtype.itemsize:,} bytes, and {size - offset:,} are there: it is cut short"
        )
    return Array(path, "array", offset, str(dtype), tuple(int(n) for n in shape), dtype)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise input_error("file_unreadable", path=path, reason=os.strerror(error.errno or 5).lower()) from None
