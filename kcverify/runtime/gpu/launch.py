"""Launches the Triton kernels: what they need, how a row is split, and the columns that follow; never waits for the GPU.

On CUDA the kernels are compiled at first use for the plan's clauses. On the CPU they run in Triton's interpreter, for
tests, where `TRITON_INTERPRET=1` was set before Triton was loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from kcverify.runtime.agreement import top_agreement
from kcverify.runtime.rowplan import RowPlan, agreement_column
from kcverify.runtime.sums import RowSums
from kcverify.runtime.workspace import Workspace, tiles

FORMATS = (torch.bfloat16, torch.float16, torch.float32)
ENTROPIES = frozenset({"entropy_reference", "entropy_candidate"})
FUSED: dict[str, Any] = {"enable_fp_fusion": True}
"""Said for every kernel: the default changes between versions of Triton. No kernel relies on either."""
MODULES = ("rows", "finish", "statistics")
ROWS_A_PROGRAM = 32
PROGRAMS_A_PROCESSOR = 4
"""How many programs each multiprocessor should get: rows are split where there are fewer rows than that."""


@dataclass(frozen=True)
class Shape:
    """How the kernels are laid out.

    `plain`, `masked`, `wide`: lanes of a tile of the plain sweep, of the masked one and of the float64 kernel. `warps`
    of a program, `stages` tiles in flight (the one at work included), `registers` a thread may use.
    """

    plain: int = 2048
    masked: int = 1024
    wide: int = 512
    warps: int = 8
    stages: int = 2
    registers: int = 128

    @property
    def options(self) -> dict[str, Any]:
        """Launch options of the sweeps; with 128 registers a multiprocessor holds two programs of 8 warps."""
        return {"num_warps": self.warps, "maxnreg": self.registers, **FUSED}


@dataclass(frozen=True)
class Filled:
    """Sums of every row, top-k agreements by column, the rows' states, and what float64 gives for the far rows.

    `reference` and `candidate` are the logits with neighbours next to each other, as the kernels read them.
    """

    reference: torch.Tensor
    candidate: torch.Tensor
    sums: RowSums
    tops: dict[str, torch.Tensor]
    state: torch.Tensor
    wide: torch.Tensor

    @property
    def far(self) -> torch.Tensor:
        """Which rows `[N]` were left to float64."""
        return self.state == 2


def unavailable(reference: torch.Tensor, candidate: torch.Tensor) -> str:
    """Why the kernels cannot take these tensors here; empty where they can."""
    if not {reference.dtype, candidate.dtype} <= set(FORMATS):
        return "float64 logits"
    if reference.device.type not in ("cuda", "cpu"):
        return f"it runs on CUDA, the logits are on {reference.device}"
    if not _installed():
        return "triton is not installed"
    if reference.device.type == "cpu" and not interpreting():
        return "it runs on CUDA; on the CPU only in Triton's interpreter, with TRITON_INTERPRET=1"
    return ""


def interpreting() -> bool:
    """Whether Triton is told to interpret its kernels."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


@lru_cache(maxsize=1)
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=1)
def kernels() -> tuple[Any, ...]:
    """The modules of the kernels; loading them loads Triton."""
    return tuple(importlib.import_module(f"kcverify.runtime.gpu.{name}") for name in MODULES)


def flags(plan: RowPlan, *, exact: bool, scaled: bool) -> dict[str, bool]:
    """The clause flags of the first sweep, compile-time constants of the kernel."""
    softmax, entropies = plan.softmax, bool(plan.sums & ENTROPIES)
    return {
        "EXACT": exact,
        "SCALED": scaled,
        "SOFTMAX": softmax,
        "REVERSE": softmax and "kl_candidate_reference" in plan.sums,
        "ENTROPY": softmax and entropies,
        "TOP": (1, False) in plan.top,
    }


def second_flags(plan: RowPlan) -> dict[str, bool]:
    """What of the second sweep the plan needs."""
    return {"TV": "tv" in plan.sums, "CHI2": "chi2" in plan.sums, "BC": "bc" in plan.sums}


def stretches(rows: int, width: int, block: int, programs: int) -> tuple[int, int]:
    """Into how many stretches of how many tokens a row is split, so that at least `programs` programs run, if the tiles allow."""
    whole = max(1, -(-width // block))
    wanted = min(whole, -(-programs // max(1, rows)))
    length = -(-whole // wanted) * block
    return -(-width // length), length


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count) * PROGRAMS_A_PROCESSOR


def fill(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    plan: RowPlan,
    scale: float,
    space: Workspace,
    *,
    shape: Shape | None = None,
    split: int | None = None,
) -> Filled:
    """Sums and agreements of logits `[N, V]`; `scale` is 1/T, `split` the number of programs to aim at."""
    z, w = (
        x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous() for x in (reference.detach(), candidate.detach())
    )
    count = z.shape[0]
    device, shape = z.device, shape or Shape()
    sums = RowSums(count, device)
    state = torch.zeros(count, dtype=torch.int32, device=device)
    wide = torch.zeros(len(kernels()[1].WIDE_NAMES), count, dtype=torch.float64, device=device)
    if count:
        with _on(device):
            _launch(z, w, plan, scale, sums, state, wide, shape, split or _programs(device))
    sums.invalid.copy_(state == 3)
    return Filled(z, w, sums, _tops(z, w, plan, sums), state, wide)


def _launch(
    z: torch.Tensor, w: torch.Tensor, plan: RowPlan, scale: float, sums: RowSums,
    state: torch.Tensor, wide: torch.Tensor, shape: Shape, programs: int,
) -> None:  # fmt: skip
    rows, finish, _ = kernels()
    count, width = z.shape
    exact, scaled = torch.float32 in (z.dtype, w.dtype), scale != 1.0
    first, second, limit = flags(plan, exact=exact, scaled=scaled), second_flags(plan), plan.certified
    k, near = math.log2(math.e) * scale, _single(scale)
    parts, length = stretches(count, width, shape.plain, programs)
    part = torch.empty(len(rows.NAMES), count, parts, dtype=torch.float64, device=z.device)
    maxima = torch.empty(count, dtype=torch.float64, device=z.device)
    steps = (part.stride(0), width, z.stride(0), w.stride(0), length, scale, k)
    for masks, block in ((False, shape.plain), (True, shape.masked)):
        rows.sums_kernel[(count, parts)](
            z, w, state, part, *steps, BLOCK=block, MASKED=masks, **first, STAGES=shape.stages, **shape.options
        )
        finish.merge_kernel[(count,)](
            part, state, sums.table, maxima, sums.only, part.stride(0), count, parts, near, scale - near, MASKS_ON=masks,
            SOFTMAX=first["SOFTMAX"], CERTIFIED=limit is not None, LIMIT=limit or 0.0, num_warps=1, **FUSED,
        )  # fmt: skip
    if not plan.softmax:
        return
    if any(second.values()):
        out = torch.zeros(3, count, parts, dtype=torch.float64, device=z.device)
        finish.second_kernel[(count, parts)](
            z, w, state, sums.table, maxima, out, count, out.stride(0), *steps[1:], BLOCK=shape.plain, EXACT=exact, SCALED=scaled,
            **second, STAGES=shape.stages, **shape.options,
        )  # fmt: skip
        for index, name in enumerate(("TV", "CHI2", "BC")):
            sums.sums[name].copy_(out[index].sum(-1))
    finish.wide_kernel[(count,)](
        z, w, state, wide, sums.table, count, width, z.stride(0), w.stride(0), near, scale - near, BLOCK=shape.wide,
        num_warps=shape.warps // 2, **FUSED,
    )  # fmt: skip


def _single(x: float) -> float:
    """`x` rounded to float32, as a kernel's argument is."""
    return ctypes.c_float(x).value


def _tops(z: torch.Tensor, w: torch.Tensor, plan: RowPlan, sums: RowSums) -> dict[str, torch.Tensor]:
    """Top-k agreement by column: the largest token's from the kernel, the rest by torch, a tile of rows at a time."""
    found: dict[str, torch.Tensor] = {}
    for k, ordered in plan.top:
        name = agreement_column(k, ordered)
        if k == 1:
            found[name] = sums.sums["top"]
            continue
        found[name] = torch.zeros_like(sums.sums["top"])
        for start, stop in tiles(z.shape[0], z.shape[1], z.device):
            found[name][start:stop] = top_agreement(z[start:stop], w[start:stop], k, ordered)
    return found


def statistics(filled: Filled, plan: RowPlan, scale: float, sampled: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The plan's statistics, float64 `[N]` by name, in one launch: from the sums, and from float64 for the far rows."""
    last = kernels()[2]
    z, w, sums = filled.reference, filled.candidate, filled.sums
    count, near, limit = z.shape[0], _single(scale), plan.certified
    wanted = plan.sums if sampled is not None else plan.sums - {"token_log_ratio"}
    out = torch.empty(len(last.NAMES), count, dtype=torch.float64, device=z.device)
    if count:
        with _on(z.device):
            last.statistics_kernel[(-(-count // ROWS_A_PROGRAM),)](
                z, w, filled.state if sampled is None else sampled.contiguous(), filled.state, sums.table, sums.only, filled.wide, out,
                count, z.stride(0), w.stride(0), near, scale - near, TOKEN="token_log_ratio" in wanted,
                CERTIFIED=limit is not None, LIMIT=limit or 0.0, BLOCK=ROWS_A_PROGRAM, num_warps=1, **FUSED,
            )  # fmt: skip
    return {name: column for name, column in zip(last.NAMES, out.unbind(0), strict=True) if name in wanted}


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Launches go to the tensors' own device."""
    found: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if device.type == "cuda":
        found = torch.cuda.device(device)
    return found


__all__ = ["FORMATS", "Filled", "Shape", "fill", "flags", "interpreting", "second_flags",
           "statistics", "stretches", "unavailable"]  # fmt: skip
