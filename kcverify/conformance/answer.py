"""A run as JSON data: worst reading of every name, findings, notes; and the machine it ran on."""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from kcverify import __version__
from kcverify.conformance.model import Reading, Run, Verdict
from kcverify.diagnostics import Diagnostic
from kcverify.elaborate.kernel import KernelContract

_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16", "avx512_bf16")
_LIBRARIES = ("torchao", "triton", "bitsandbytes", "numpy")
"""Whose kernels are run, or whose arithmetic the oracle's is, where they are installed."""

EXIT = {Verdict.WITHIN: 0, Verdict.VIOLATION: 1, Verdict.UNDER_SPECIFIED: 1, Verdict.INCONCLUSIVE: 3}
"""Exit code of a verdict."""


def finding(one: Diagnostic) -> dict[str, Any]:
    """A diagnostic without its place."""
    return {
        "code": one.code.id, "slug": one.code.slug, "severity": one.severity.value, "message": one.message, "hint": one.hint,
    }  # fmt: skip


def readings(run: Run) -> list[dict[str, Any]]:
    """The worst reading of every name, with how often it was taken."""
    names: dict[str, list[Reading]] = {}
    for one in run.readings:
        names.setdefault(one.name, []).append(one)
    found = []
    for same in names.values():
        worst = Run(run.kernel, run.declared, run.protocol, run.operation, readings=same).worst()
        assert worst is not None
        found.append({**worst.data(), "count": len(same)})
    return found


def data(run: Run, class_id: str, kernel: str, verdict: Verdict | None = None) -> dict[str, Any]:
    """The whole run."""
    worst = run.worst()
    return {
        "class": class_id, "operation": run.operation, "kernel": kernel, "verdict": (verdict or run.verdict).value,
        "declared": asdict(run.declared), "seed": run.protocol.seed, "trials": run.protocol.trials,
        "distributions": list(run.protocol.distributions), "worst": None if worst is None else worst.data(),
        "draws": run.draws, "readings": readings(run), "findings": [finding(d) for d in run.findings], "notes": list(dict.fromkeys(run.notes)),
    }  # fmt: skip


def contract(one: KernelContract, file: str) -> dict[str, Any]:
    """What a contract is, and a digest of its parts: two runs are of one contract where it is the same."""
    parts = json.dumps([one.name, one.version, one.class_name, one.lines])
    return {
        "name": one.name, "version": one.version, "description": one.description, "file": file,
        "digest": "sha256:" + hashlib.sha256(parts.encode()).hexdigest(), "trials_asked": one.protocol.trials,
        "severity": [v.severity for v in one.violations], "dtypes": [*one.scope.inputs, one.scope.output],
        "shapes": {name: [low, high] for name, low, high in one.scope.shapes},
    }  # fmt: skip


def crashed(class_id: str, operation: str, kernel: str, found: Diagnostic, verdict: Verdict) -> dict[str, Any]:
    """A run whose process gave no answer."""
    return {
        "class": class_id, "operation": operation, "kernel": kernel, "verdict": verdict.value, "declared": {}, "seed": 0,
        "trials": 0, "distributions": [], "worst": None, "draws": 0, "readings": [], "findings": [finding(found)], "notes": [],
    }  # fmt: skip


def _libraries() -> list[str]:
    found = []
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return found


def machine() -> dict[str, Any]:
    """Silicon and software of this run."""
    flags: set[str] = set()
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "flags" and not flags:
                flags = set(value.split())
            if key.strip() == "model name":
                model = value.strip()
    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "processor": model, "features": [f for f in _FEATURES if f in flags], "devices": devices, "torch": torch.__version__,
        "libraries": _libraries(), "python": platform.python_version(), "system": platform.system(), "kcverify": __version__,
    }  # fmt: skip
