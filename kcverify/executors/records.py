"""Finished shards in a folder, so that a run that was killed goes on where it was.

The folder holds `run.json`, which says what run it is of, and a file for each finished shard: its state and what was
read. Both are written beside, flushed and moved into place, so that each is whole or absent after a kill. What a kill left
half written is removed by the next run; a living process holds a lock on what it writes. A record is bytes behind their own
checksum: reading one runs no code of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from kcverify.diagnostics import input_error
from kcverify.digests import sha256_of

try:
    import fcntl
except ImportError:  # Windows, which removes no file that a process has open
    fcntl = None  # type: ignore[assignment]

_RUN = "run.json"
_MARK = "run"
_MAGIC = b"kcverify shard 1\n"
_DIGEST = 32
_HALF = re.compile(r"\.(run\.json|shard-[0-9a-f]{24}\.state)\.[0-9a-f]{8}\.part")
"""Names under which records are written before they are moved into place."""


@dataclass(frozen=True)
class FileState:
    """A file as it was read: bytes, time of the last change in nanoseconds, element type and SHA-256."""

    size: int
    changed: int
    format: str
    sha256: str

    def same(self, path: Path) -> bool:
        """Whether the file is still what it was: by size and time, or, where only the time is another, by content."""
        try:
            now = path.stat()
        except OSError:
            return False
        if now.st_size != self.size:
            return False
        return now.st_mtime_ns == self.changed or sha256_of(path) == self.sha256


@dataclass(frozen=True)
class Summary:
    """What one shard gave: its state as bytes, how much was read, and the files that it was.

    `requests`, `rows`: counts. `longest`: tokens of the longest request.
    """

    name: str
    state: bytes
    requests: int
    rows: int
    longest: int
    files: tuple[FileState, ...]


class Records:
    """The folder of one run's finished shards. `identity` names everything that a shard's state depends on beside its files.

    Raises InputError: `resume_mismatch` for a folder of another run, `file_unwritable`.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder = folder
        run = folder / _RUN
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if run.exists():
                self._compare(run, identity)
                _sweep(folder)
            else:
                _write(run, json.dumps(dict(identity), indent=1).encode())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise input_error("file_unwritable", path=folder, reason=reason) from None

    def _compare(self, run: Path, identity: Mapping[str, str]) -> None:
        try:
            known = json.loads(run.read_bytes())
        except (ValueError, RecursionError):
            known = None
        if not isinstance(known, dict):
            raise input_error("resume_mismatch", path=self.folder, detail=f"its {_RUN} is no record of a run")
        differing = [key for key in sorted({*known, *identity} - {_MARK}) if known.get(key) != identity.get(key)]
        if differing:
            told = "; ".join(f"{key} {known.get(key)} there, {identity.get(key)} here" for key in differing)
            raise input_error("resume_mismatch", path=self.folder, detail=told)

    def mark(self, new: str) -> str:
        """The run's mark, which its report states: the recorded one, else the `new` one, which is then recorded.

        Raises InputError: `file_unwritable`.
        """
        run = self.folder / _RUN
        try:
            known = json.loads(run.read_bytes())
            if not isinstance(known.get(_MARK), str):
                known[_MARK] = new
                _write(run, json.dumps(known, indent=1).encode())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise input_error("file_unwritable", path=self.folder, reason=reason) from None
        return str(known[_MARK])

    def _path(self, name: str) -> Path:
        return self.folder / f"shard-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.state"

    def find(self, name: str, files: Sequence[Path]) -> tuple[Summary | None, str]:
        """The finished shard, or None with the reason where there is one that cannot be used (empty: there is none)."""
        path = self._path(name)
        if not path.exists():
            return None, ""
        try:
            found = _read(path)
        except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None, "its record is damaged"
        if found.name != name or len(found.files) != len(files):
            return None, "its record is of another shard"
        changed = [str(file) for file, before in zip(files, found.files, strict=True) if not before.same(file)]
        return (None, f"{' and '.join(changed)} changed since") if changed else (found, "")

    def keep(self, summary: Summary) -> None:
        """Record a finished shard. Raises InputError: `file_unwritable`."""
        told = {key: getattr(summary, key) for key in ("name", "requests", "rows", "longest")}
        told["files"] = [asdict(file) for file in summary.files]
        body = json.dumps(told).encode() + b"\n" + summary.state
        try:
            _write(self._path(summary.name), _MAGIC + hashlib.sha256(body).digest() + body)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise input_error("file_unwritable", path=self.folder, reason=reason) from None


def _read(path: Path) -> Summary:
    """Raises ValueError, KeyError, TypeError for what is no whole record."""
    content = path.read_bytes()
    digest, body = content[len(_MAGIC) : len(_MAGIC) + _DIGEST], content[len(_MAGIC) + _DIGEST :]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        raise ValueError("its checksum is wrong")
    head, _, state = body.partition(b"\n")
    told = json.loads(head)
    files = tuple(FileState(**entry) for entry in told["files"])
    return Summary(str(told["name"]), state, int(told["requests"]), int(told["rows"]), int(told["longest"]), files)


def _sweep(folder: Path) -> None:
    """Remove what killed runs left half written. What is locked is of a living process, and stays."""
    for half in folder.iterdir():
        if _HALF.fullmatch(half.name) and half.is_file() and not half.is_symlink():
            with contextlib.suppress(OSError):
                _remove(half)


def _remove(half: Path) -> None:
    """Raises OSError where a process holds the file."""
    if fcntl is None:
        half.unlink()
        return
    with half.open("r+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        half.unlink()


def _half(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside, open and locked."""
    while True:
        half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        handle = half.open("xb")
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks lets no one take one either
                fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle.fileno()).st_nlink or fcntl is None:
            return half, handle
        handle.close()  # another run swept it before it was locked


def _write(path: Path, content: bytes) -> None:
    """Replace a file in one durable step."""
    half, handle = _half(path)
    try:
        with handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
            if fcntl is not None:
                half.replace(path)  # while it is locked
        if fcntl is None:
            half.replace(path)  # Windows moves no file that is open
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the move itself, where the system lets a folder be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
