"""Opens a file as a stream: looks at its first bytes, finds its row in the table, settles what was declared."""

from __future__ import annotations

import importlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kcverify.diagnostics import InputError, input_error
from kcverify.readers import arrays, table
from kcverify.readers.documents import documents
from kcverify.readers.faults import Place, declaration, listed, shown, too_large, unknown
from kcverify.readers.model import STEERING, Format, Found, Head, Opening
from kcverify.readers.sidecar import read_declarations, settled
from kcverify.readers.stream import Declared, Stream

_HEAD = 4096
_DAMAGED = (
    ValueError, OSError, EOFError, KeyError, TypeError, SyntaxError, RuntimeError, MemoryError, struct.error, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""What numpy and zipfile raise for an archive that is damaged."""

_ARRAYS = 6
"""Arrays of an unknown file that a message describes."""

_EXTRAS = {"pyarrow": "parquet", "torch": "torch"}


def open_stream(path: str | Path, declare: Sequence[str] = ()) -> Stream:
    """The stream of a file; `declare` are `key=value` texts that win over `FILE.kcverify.json`.

    The first record is read, the rest when `Stream.requests` is asked for. Raises InputError: `file_unreadable`,
    `file_empty`, `extra_missing`, and the codes KC440 to KC447 with the place in the file.
    """
    if not str(path):
        raise input_error("file_unreadable", path="''", reason="the name is empty", hint="name a file")
    path = Path(path)
    size, start = _start(path)
    asked = read_declarations(path, declare)
    container = _container(path, size, start)
    head = Head(path, size, container, _first(path, container))
    row = _row(head, asked)
    _followed(row, asked)
    opening = Opening(head, row, asked)
    found: Found = _load(table.READERS.get(container, row.reader))(opening)
    declared, notes = settled(asked, found.says, row.assumed)
    declared |= {"format": Declared(row.name, "flag" if "format" in asked else "file")}
    declared |= {"container": Declared(container, "file")}
    return Stream(path, row.name, declared, found.carries, found.requests, (*found.notes, *notes))


def _start(path: Path) -> tuple[int, bytes]:
    """Size and first bytes. Raises `file_unreadable`, `file_empty`."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise input_error("file_unreadable", path=path, reason="it is a folder", hint="name one file in it")
        if not stat.S_ISREG(found.st_mode):
            raise input_error(
                "file_unreadable", path=path, reason="it is no regular file", hint="save it to a file first"
            )
        with path.open("rb") as file:
            start = file.read(_HEAD)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise input_error("file_unreadable", path=shown(str(path)), reason=reason.lower()) from None
    if not start.strip():
        raise input_error("file_empty", path=path)
    return found.st_size, start


def _container(path: Path, size: int, start: bytes) -> str:
    """The layout of the bytes. Raises `stream_unknown`."""
    for magic, what, hint in table.UNREAD:
        if start.startswith(magic):
            raise unknown(path, f"it is {what}", hint)
    for magic, name in table.MAGIC:
        if start.startswith(magic):
            return name
    if start.startswith(b"PK\x03\x04"):
        return _zipped(path)
    if start.startswith(b"\x80") and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and b"{" not in start[8:9]:
        return table.TORCH
    if len(start) > 8 and start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] < (100 << 20):
        return table.SAFETENSORS
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return table.JSON
    raise unknown(path, "it is neither JSON nor a tensor file")


def _zipped(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise Place(str(path)).invalid(f"it starts as a zip archive and is damaged: {shown(str(error))}") from None
    if any(n.endswith("data.pkl") for n in names):
        return table.TORCH
    if names and all(n.endswith(".npy") for n in names):
        return table.NPZ
    raise unknown(path, f"it is a zip archive of {listed(names, 3)}", "unpack it first")


def _first(path: Path, container: str) -> Any:
    """The first document, or the arrays by name."""
    readers: dict[str, Callable[[Path], Any]] = {
        table.JSON: lambda p: next(iter(documents(p))).value,
        table.SAFETENSORS: arrays.safetensors,
        table.NPY: lambda p: {"array": arrays.npy(p)},
        table.NPZ: _npz,
        table.KLD: lambda p: None,
    }
    if container in readers:
        return readers[container](path)
    module, name = {table.PARQUET: ("parquet_file", "columns"), table.TORCH: ("torch_file", "load")}[container]
    return _load(f"kcverify.readers.{module}:{name}")(path)


def _npz(path: Path) -> Mapping[str, Any]:
    limit = table.READ_WHOLE[table.NPZ]
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(i.file_size for i in archive.infolist())
        if size > limit:
            raise too_large(path, "an npz archive", size, limit, "save the arrays as safetensors")
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except _DAMAGED as error:
        raise Place(str(path)).invalid(
            f"it is damaged: {shown(str(error).splitlines()[0] if str(error) else type(error).__name__)}"
        ) from None


def _row(head: Head, asked: Mapping[str, Declared]) -> Format:
    """The row of the table. Raises `stream_unknown`, `declaration_invalid`."""
    named = asked.get("format")
    if named is not None:
        row = table.BY_NAME.get(named.value)
        if row is None or head.container not in row.containers:
            names = listed((r.name for r in table.candidates(head.container)), 20)
            raise declaration("format", f"`{named.value}` is no format of {head.container}; there are {names}")
        if not row.recognises(head.first):
            raise unknown(head.path, f"it is not `{row.name}` ({row.title})", "leave `format` out")
        return row
    for row in table.candidates(head.container):
        if row.recognises(head.first):
            return row
    if isinstance(head.first, Mapping):
        raise _unlike(head, head.first)
    raise unknown(head.path, "its first record is not known")


def _followed(row: Format, asked: Mapping[str, Declared]) -> None:
    """Raises `declaration_invalid` for a declaration of what to read that the format has not."""
    for key in sorted((asked.keys() & STEERING.keys()) - set(row.follows)):
        hint = f"leave `{key}` out" + (f"; what is read follows {listed(row.follows)}" if row.follows else "")
        raise declaration(key, f"it is of files with {STEERING[key]}, and this one is `{row.name}`", hint)


def _unlike(head: Head, first: Mapping[str, Any]) -> InputError:
    """`stream_unknown` with what the first record or the arrays are, and what is missing where that can be told."""
    if head.container == table.JSON:
        hint = ""
        if isinstance(first.get("choices"), list):
            hint = "its choices have no log-probabilities: ask the engine for `logprobs`"
        return unknown(head.path, f"its first record has the keys {listed(str(k) for k in first)}", hint)
    told = [_told(str(name), array) for name, array in list(first.items())[:_ARRAYS]]
    more = f" and {len(first) - _ARRAYS} more" if len(first) > _ARRAYS else ""
    reason = f"it has the arrays {', '.join(told) or 'none'}{more}"
    wide = [array for array in first.values() if len(getattr(array, "shape", ())) in (2, 3)]
    taken = table.BY_NAME["logits"].containers
    if wide and head.container not in taken:
        return unknown(head.path, reason, f"rows of logits are read from {' and '.join(taken)}")
    if wide and not any(array.floating for array in wide):
        return unknown(head.path, f"{reason}, and logits must be floating point", "save logits before they are rounded")
    return unknown(head.path, reason)


def _told(name: str, array: Any) -> str:
    """A name with the type and shape of its array, where it has any."""
    kind = getattr(array, "type", None) or getattr(array, "dtype", None)
    shape = getattr(array, "shape", None)
    return f"`{name[:60]}`" + ("" if kind is None or shape is None else f" ({kind} {list(shape)})")


def _load(name: str) -> Callable[..., Any]:
    """The function `module:function`. Raises `extra_missing` where its library is not installed."""
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return found
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise input_error("extra_missing", package=error.name, hint=f"pip install 'kcverify[{extra}]'") from None
