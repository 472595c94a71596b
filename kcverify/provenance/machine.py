"""What a machine tells without torch: processor, drivers, versions of libraries, environment variables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from kcverify.provenance.fields import LIBRARIES, VARIABLES, Value

_PROCESSOR = Path("/proc/cpuinfo")
_DRIVER = Path("/proc/driver/nvidia/version")
_FLAGS = re.compile(r"(avx|fma|amx|sse|f16c|asimd|neon|sve|bf16|i8mm)")


def _processor() -> dict[str, str]:
    """Model and vector extensions of the first processor."""
    out: dict[str, str] = {"machine": platform.machine()}
    try:
        text = _PROCESSOR.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {**out, "cpu": platform.processor()} if platform.processor() else out
    for key, value in re.findall(r"^([^\n:]+?)\s*:\s*(.*)$", text.split("\n\n", 1)[0], re.MULTILINE):
        if key == "model name":
            out["cpu"] = value
        elif key in ("flags", "Features"):
            out["cpu flags"] = " ".join(sorted(f for f in value.split() if _FLAGS.match(f)))
    return {key: value for key, value in out.items() if value}


def _driver() -> dict[str, str]:
    out = {"system": f"{platform.system()} {platform.release()}"}
    try:
        found = re.search(r"Kernel Module\D*([\d.]+)", _DRIVER.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return out
    return {**out, "nvidia": found[1]} if found else out


def _versions() -> dict[str, str]:
    out = {"python": platform.python_version(), "libc": " ".join(platform.libc_ver()).strip()}
    for name in LIBRARIES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {key: value for key, value in out.items() if value}


def _environment() -> Value:
    return {name: os.environ[name] for name in VARIABLES if os.environ.get(name)} or "none set"


READ: Mapping[str, Callable[[], Value]] = {
    "device": _processor,
    "driver": _driver,
    "versions": _versions,
    "environment": _environment,
}
"""Field -> how the machine tells it."""


def fields() -> dict[str, Value]:
    """Every field of the context that is known without torch."""
    return {name: read() for name, read in READ.items()}
