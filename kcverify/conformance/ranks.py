"""Communication over gloo: processes of one machine that run an all-reduce kernel on buckets, forked from one that has torch loaded.

A kernel is `function(buckets, group) -> buckets`, each bucket a float32 vector; it may start the reductions of several
buckets before it waits for one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kcverify.conformance.forks import child, forked
from kcverify.conformance.model import Function

Answers = list[dict[str, Any]]
WORLD = 3
_LIMIT = 120
_CASES = (
    ("one bucket", 1, False),
    ("eight buckets", 8, False),
    ("eight buckets, new numbers", 8, False),
    ("eight buckets, last first", 8, True),
)
"""Name, buckets, and whether they are given in the other order; overlap is the kernel's, the exact sum is of neither."""


def name_of(kernel: Function) -> str:
    """`module:function`, as a process imports it."""
    return f"{kernel.__module__}:{kernel.__qualname__}"


_KNOWN: dict[tuple[str, int], Answers | str] = {}


def reduce(name: str, seed: int) -> Answers | str:
    """What the ranks measured of one kernel, or why a rank ended."""
    if (name, seed) not in _KNOWN:
        reduce_all((name,), seed)
    return _KNOWN[name, seed]


def reduce_all(names: tuple[str, ...], seed: int) -> None:
    """Measure several kernels in one group of processes."""
    found = _group(names, seed)
    for name in names:
        _KNOWN[name, seed] = found if isinstance(found, str) else found[name]


def _group(names: tuple[str, ...], seed: int) -> dict[str, Answers] | str:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        with child(__name__, "group", [folder, seed, list(names)], where / "said", {}) as running:
            ended = running.wait(_LIMIT)
        if ended is None:
            return f"no answer in {_LIMIT} s"
        if (where / "failed").is_file():
            rank, status = (where / "failed").read_text().split()
            last = _told(where, int(rank)).strip().splitlines()[-1:] or ["no message"]
            return f"rank {rank} ended with {status}: {last[0]}"
        if ended or not (where / "answer.json").is_file():
            return f"the ranks' own parent ended with {ended}"
        found: dict[str, Answers] = json.loads((where / "answer.json").read_text())
        return found


def _told(where: Path, rank: int) -> str:
    said = where / f"said.{rank}"
    return said.read_text(encoding="utf-8", errors="replace") if said.is_file() else ""


def group(folder: str, seed: int, names: list[str]) -> None:
    """All ranks as children of this process; the first that fails ends the others."""
    job = {
        "module": __name__,
        "function": "main",
        "environment": {},
        "alone": False,
        "folder": str(Path.cwd()),
        "path": sys.path,
    }
    running = {
        forked({**job, "said": str(Path(folder) / f"said.{rank}"), "arguments": [rank, folder, seed, names]}): rank
        for rank in range(WORLD)
    }
    while running:
        pid, status = os.wait()
        rank, code = running.pop(pid), os.waitstatus_to_exitcode(status)
        if code:
            (Path(folder) / "failed").write_text(f"{rank} {code}")
            for other in running:
                os.kill(other, signal.SIGKILL)
            return


def buckets_of(seed: int, case: int, rank: int, count: int) -> list[torch.Tensor]:
    """What a rank brings: every rank can draw every other one's."""
    g = torch.Generator().manual_seed(seed * 7919 + case * 101 + rank)
    return [torch.randn(1000 + 37 * i, generator=g) * 10.0 ** (i % 3) for i in range(count)]


def _measure(kernel: Function, rank: int, seed: int) -> list[dict[str, Any]]:
    answers = []
    for case, (name, count, backward) in enumerate(_CASES):
        brought = [buckets_of(seed, case, r, count)[:: -1 if backward else 1] for r in range(WORLD)]
        got = kernel([x.clone() for x in brought[rank]], dist.group.WORLD)
        exact = [sum(brought[r][i].double() for r in range(WORLD)) for i in range(count)]
        size = [sum(brought[r][i].double().abs() for r in range(WORLD)) for i in range(count)]
        whole = torch.cat([x.detach().reshape(-1) for x in got])
        target = torch.cat([x for x in exact if isinstance(x, torch.Tensor)])
        room = torch.cat([x for x in size if isinstance(x, torch.Tensor)])
        fits = whole.shape == target.shape
        error = float(((whole.double() - target).abs() / room).max()) if fits else None
        worst = torch.tensor([float("inf") if error is None else error], dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        low, high = whole.clone(), whole.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        finite = bool(torch.isfinite(worst).all())
        answers.append(
            {
                "name": f"all-reduce, {name}", "where": f"{WORLD} gloo processes",
                "error": float(worst) if finite else None, "apart": float((low != high).double().mean()),
            }
        )  # fmt: skip
    return answers


def _kernel(name: str) -> Function:
    module, _, function = name.partition(":")
    found: Function = getattr(importlib.import_module(module), function)
    return found


def main(rank: int, folder: str, seed: int, names: list[str]) -> None:
    """One rank."""
    torch.set_num_threads(1)
    kernels = {name: _kernel(name) for name in names}
    store = dist.FileStore(str(Path(folder) / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    answers = {name: _measure(kernel, rank, seed) for name, kernel in kernels.items()}
    if rank == 0:
        (Path(folder) / "answer.json").write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()
