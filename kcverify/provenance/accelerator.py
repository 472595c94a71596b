"""What torch tells of a machine: its own build, GPU, threads, attention backends, determinism and precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kcverify.provenance.fields import Value


def build() -> str:
    """Version and source revision of this build of torch."""
    return f"torch {torch.__version__} {getattr(torch.version, 'git_version', None) or 'of unknown revision'}"


def _versions() -> dict[str, str]:
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn, "hip": torch.version.hip}
    return {name: str(value) for name, value in found.items() if value}


def _device() -> dict[str, str]:
    out = {"torch cpu": torch.backends.cpu.get_cpu_capability()}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        row: Any = torch.cuda.get_device_properties(index)
        out[f"gpu {index}"] = f"{row.name}, sm {row.major}.{row.minor}, {row.multi_processor_count} multiprocessors"
    return out


def _parallelism() -> dict[str, str]:
    size = "1"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        size = str(torch.distributed.get_world_size())
    return {"threads": str(torch.get_num_threads()), "world": size}


def _attention() -> dict[str, str]:
    cuda: Any = torch.backends.cuda
    on = {
        "flash": cuda.flash_sdp_enabled(), "memory efficient": cuda.mem_efficient_sdp_enabled(), "math": cuda.math_sdp_enabled(),
    }  # fmt: skip
    return {name: "on" if value else "off" for name, value in on.items()}


def _compile_mode() -> dict[str, str]:
    return {
        "mode": "eager",
        "deterministic algorithms": "on" if torch.are_deterministic_algorithms_enabled() else "off",
        "float32 matmul": torch.get_float32_matmul_precision(),
        "mkldnn": "on" if torch.backends.mkldnn.is_available() else "off",
    }


READ: Mapping[str, Callable[[], Value]] = {
    "versions": _versions,
    "device": _device,
    "parallelism": _parallelism,
    "attention": _attention,
    "compile_mode": _compile_mode,
}
"""Field -> how torch tells it."""


def fields() -> dict[str, Value]:
    """Every field that torch tells; `kernels.joined` puts them beside those of the machine."""
    return {name: read() for name, read in READ.items()}
