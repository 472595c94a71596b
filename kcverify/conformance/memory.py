"""A limit for the memory of a process that runs somebody else's kernel: what it asks for beyond it is refused, not taken from others."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

_KIB = 1024
_SHARE = (1, 2)
"""Of what is free when the process starts."""
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Limit and use of a container, in bytes."""


def _field(path: str, name: str) -> int | None:
    """A line `name: N kB` of a file, in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * _KIB
    return None


def _whole(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text(encoding="utf-8"))
    return None


def free() -> int | None:
    """Bytes that a process may still take here; None where the system does not say."""
    found = [] if (available := _field("/proc/meminfo", "MemAvailable")) is None else [available]
    for limit, used in _GROUPS:
        most, now = _whole(limit), _whole(used)
        if most is not None and now is not None:
            found.append(max(most - now, 0))
    return min(found, default=None)


def bound() -> None:
    """Limit what this process may allocate; nothing where the system has no such limit."""
    room, used = free(), _field("/proc/self/status", "VmData")
    if room is None or used is None:
        return
    most = used + room * _SHARE[0] // _SHARE[1]
    with contextlib.suppress(ImportError, ValueError, OSError):
        resource = importlib.import_module("resource")  # not on every system
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
