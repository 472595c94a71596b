"""Builds the row kernel at first use, keeps it in a cache, and calls it from as many threads as torch uses."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

from kcverify.runtime.native.build import BuildError, compiler, shared_object
from kcverify.runtime.native.source import EXTRA, FORMATS, MOST_TOP, kernel_source
from kcverify.runtime.rowplan import RowPlan, agreement_column
from kcverify.runtime.sums import COLUMNS, RowSums
from kcverify.runtime.workspace import Workspace, tiles

REACH = 30.0
"""Largest drift from the pilot, in units of the temperature, that the kernel's float32 sums are trusted with."""
_CHUNKS_A_THREAD = 4
_log = logging.getLogger("kcverify")
Kernel = Callable[..., None]


def unavailable(reference: torch.Tensor, candidate: torch.Tensor, plan: RowPlan, scale: float = 1.0) -> str:
    """Why the kernel cannot take these tensors here; empty where it can, and then it is built.

    `scale` is 1/T. A build failure is logged, once for each reason.
    """
    if reference.device.type != "cpu":
        return f"it runs on the CPU, the logits are on {reference.device}"
    kinds = {reference.dtype, candidate.dtype}
    if not kinds <= FORMATS.keys():
        return "float64 logits"
    if any(k > MOST_TOP for k, _ in plan.top):
        return f"top-k agreement beyond {MOST_TOP}"
    return _failure(*_SMALLEST) or _failure(*_variant(reference, candidate, plan, scale))


_SMALLEST = (RowPlan(frozenset({"logit_span"})), torch.float32, False)
"""The kernel that is tried first: where it cannot be built none can."""


def _variant(
    reference: torch.Tensor, candidate: torch.Tensor, plan: RowPlan, scale: float
) -> tuple[RowPlan, torch.dtype, bool]:
    """The kernel for these tensors: plan, element type and whether the temperature is not 1."""
    dtype = reference.dtype if reference.dtype is candidate.dtype else torch.float32
    return plan if plan.certified is not None else plan.exact(), dtype, scale != 1.0


@lru_cache(maxsize=256)
def _failure(plan: RowPlan, dtype: torch.dtype, scaled: bool) -> str:
    """Why this kernel cannot be built or loaded here; the log says so."""
    try:
        _load(plan, dtype, scaled)
    except BuildError as error:
        _tell(str(error))
        return str(error)
    return ""


@lru_cache(maxsize=256)
def _tell(reason: str) -> None:
    _log.warning("kcverify: the C++ row kernel is not available (%s); using the slower torch one", reason)


@lru_cache(maxsize=256)
def _load(plan: RowPlan, dtype: torch.dtype, scaled: bool) -> Kernel:
    path = shared_object(kernel_source(plan, dtype, scaled=scaled), compiler())
    try:
        function = ctypes.CDLL(str(path)).kcverify_rows
    except (OSError, AttributeError) as error:
        raise BuildError(f"the built kernel does not load: {error}") from None
    whole, place = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [place, place, whole, whole, whole, whole, ctypes.c_double, place]
    function.restype = None
    kernel: Kernel = function
    return kernel


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kcverify-rows")


def fill(
    reference: torch.Tensor, candidate: torch.Tensor, plan: RowPlan, scale: float, space: Workspace
) -> tuple[RowSums, dict[str, torch.Tensor]]:
    """Sums and top-k agreements of logits `[N, V]` on the CPU; `scale` is 1/T.

    Rows are shared among torch's threads; a row's values do not depend on how. Tensors of two formats, or whose
    neighbours in a row are not neighbours in memory, are copied a tile at a time.
    """
    z, w = reference.detach(), candidate.detach()
    count, width = z.shape
    tops = sorted(plan.top)
    out = torch.zeros(count, len(COLUMNS) + len(EXTRA) + len(tops), dtype=torch.float64, device="cpu")
    mixed = z.dtype is not w.dtype
    kernel = _load(*_variant(z, w, plan, scale))
    if not mixed and z.stride(1) == w.stride(1) == 1:
        _call(kernel, z, w, scale, out)
    else:
        for start, stop in tiles(count, width, z.device):
            a, b = z[start:stop], w[start:stop]
            if mixed:
                a, b = a.float(), b.float()
            _call(kernel, a.contiguous(), b.contiguous(), scale, out[start:stop])
    return _sums(out, tops)


def _call(kernel: Kernel, z: torch.Tensor, w: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    count, width = z.shape
    size, line = z.element_size(), out.stride(0) * out.element_size()

    def rows(start: int, stop: int) -> None:
        kernel(
            z.data_ptr() + start * z.stride(0) * size, w.data_ptr() + start * w.stride(0) * size,
            stop - start, width, z.stride(0), w.stride(0), scale, out.data_ptr() + start * line,
        )  # fmt: skip

    threads = min(torch.get_num_threads(), count)
    if threads <= 1 or count * width < 1 << 16:
        return rows(0, count)
    step = -(-count // (threads * _CHUNKS_A_THREAD))
    pool = _pool(os.getpid(), threads)
    for done in [pool.submit(rows, at, min(at + step, count)) for at in range(0, count, step)]:
        done.result()
    return None


def _sums(out: torch.Tensor, tops: list[tuple[int, bool]]) -> tuple[RowSums, dict[str, torch.Tensor]]:
    sums = RowSums(out.shape[0], out.device)
    columns = len(COLUMNS)
    sums.table.copy_(out[:, :columns].T)
    sums.only.copy_(out[:, columns : columns + 2].T)
    sums.invalid.copy_(out[:, columns + 2] > 0)
    first = columns + len(EXTRA)
    found = {agreement_column(k, o): out[:, first + i].contiguous() for i, (k, o) in enumerate(tops)}
    return sums, found
