"""Finished shards in a folder, so that a run that was killed goes on where it was.

The folder holds `run.json`, which says what run it is of, and a file for each finished shard: the monitor's state and
what was read. Both are written beside, flushed and moved into place, so that each is whole or absent after a kill.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kcverify.diagnostics import input_error
from kcverify.measure.sides import sha256_of
from kcverify.runtime import checkpoint
from kcverify.runtime.errors import MonitorInputError

_RUN = "run.json"


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
    """What one shard gave: the monitor's state as bytes, how much was measured, and the two files that it was.

    `requests`, `rows`: counts. `longest`: tokens of the longest request.
    """

    name: str
    state: bytes
    requests: int
    rows: int
    longest: int
    files: tuple[FileState, FileState]


def packed(state: Mapping[str, Any]) -> bytes:
    """A monitor's `state_dict` as bytes."""
    out = io.BytesIO()
    torch.save(dict(state), out)
    return out.getvalue()


def unpacked(state: bytes) -> dict[str, Any]:
    """What `packed` wrote."""
    found: dict[str, Any] = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    return found


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
            else:
                _write(run, json.dumps(dict(identity), indent=1).encode())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise input_error("file_unwritable", path=folder, reason=reason) from None

    def _compare(self, run: Path, identity: Mapping[str, str]) -> None:
        try:
            known = json.loads(run.read_bytes())
        except ValueError:
            known = None
        if not isinstance(known, dict):
            raise input_error("resume_mismatch", path=self.folder, detail=f"its {_RUN} is no record of a run")
        differing = [key for key in sorted({*known, *identity}) if known.get(key) != identity.get(key)]
        if differing:
            told = "; ".join(f"{key} {known.get(key)} there, {identity.get(key)} here" for key in differing)
            raise input_error("resume_mismatch", path=self.folder, detail=told)

    def _path(self, name: str) -> Path:
        return self.folder / f"shard-{hashlib.sha256(name.encode()).hexdigest()[:24]}.state"

    def find(self, name: str, files: tuple[Path, Path]) -> tuple[Summary | None, str]:
        """The finished shard, or None with the reason where there is one that cannot be used (empty: there is none)."""
        path = self._path(name)
        if not path.exists():
            return None, ""
        try:
            state, told = checkpoint.read(path)
            known = [FileState(**told["files"][i]) for i in (0, 1)]
            requests, rows, longest = (int(told[key]) for key in ("requests", "rows", "longest"))
            found = Summary(str(told["name"]), packed(state), requests, rows, longest, (known[0], known[1]))
        except (MonitorInputError, KeyError, TypeError, ValueError, IndexError):
            return None, "its record is damaged"
        if found.name != name:
            return None, "its record is of another shard"
        changed = [str(file) for file, before in zip(files, found.files, strict=True) if not before.same(file)]
        return (None, f"{' and '.join(changed)} changed since") if changed else (found, "")

    def keep(self, summary: Summary) -> None:
        """Record a finished shard. Raises InputError: `file_unwritable`."""
        told = {key: getattr(summary, key) for key in ("name", "requests", "rows", "longest")}
        told["files"] = [asdict(file) for file in summary.files]
        try:
            checkpoint.write(self._path(summary.name), unpacked(summary.state), told)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise input_error("file_unwritable", path=self.folder, reason=reason) from None


def _write(path: Path, content: bytes) -> None:
    """Replace a small file in one durable step."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with partial.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)
