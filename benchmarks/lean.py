"""Times the lean row statistics against the textbook formulas in eager torch, in one process, as ratios of CPU time."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from kcverify.runtime.rows import STATISTICS, RowPlan, Workspace, row_statistics

FULL = RowPlan(frozenset(STATISTICS) - {"chi2", "bc"}, ((1, False),))
CONTRACT = RowPlan(frozenset({"logit_span", "tv", "kl_candidate_reference", "ratio_min", "ratio_max"}), ((1, False),))
RAW = RowPlan(frozenset({"logit_drift", "logit_span"}))


def naive(z: torch.Tensor, w: torch.Tensor, token: torch.Tensor, k: int = 10) -> dict[str, torch.Tensor]:
    """What one writes first: log_softmax of both, both KLs, |p-q|, top-k of both, NaN and inf counts, entropies."""
    bad = torch.isnan(z).sum(-1) + torch.isnan(w).sum(-1) + torch.isinf(z).sum(-1) + torch.isinf(w).sum(-1)
    z, w = z.float(), w.float()
    d = w - z
    log_p, log_q = F.log_softmax(z, -1), F.log_softmax(w, -1)
    p, q = log_p.exp(), log_q.exp()
    ratio = log_q - log_p
    top_p, top_q = z.topk(k, -1).indices, w.topk(k, -1).indices
    return {
        "logit_drift": d.abs().amax(-1),
        "logit_span": d.amax(-1) - d.amin(-1),
        "tv": 0.5 * (p - q).abs().sum(-1),
        "kl_reference_candidate": F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1),
        "kl_candidate_reference": F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1),
        "ratio_max": ratio.amax(-1),
        "ratio_min": ratio.amin(-1),
        "token_log_ratio": ratio.gather(-1, token[:, None])[:, 0],
        "entropy_reference": -(p * log_p).sum(-1),
        "entropy_candidate": -(q * log_q).sum(-1),
        "top1": (top_p[:, 0] == top_q[:, 0]).double(),
        "topk": (top_p[:, :, None] == top_q[:, None, :]).sum((-1, -2)),
        "bad": bad,
    }


def resident_mib() -> float:
    """Resident memory of this process in MiB (0 where the kernel does not tell)."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 / 2**20 if status.exists() else 0.0


def peak_memory(call: Callable[[], object]) -> float:
    """Largest growth of resident memory in MiB while `call` runs, sampled every millisecond."""
    start, peak, done = resident_mib(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident_mib() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return peak


def measure(rows: int, width: int, dtype: torch.dtype, rounds: int) -> dict[str, object]:
    """Milliseconds a row, ratio to naive and extra MiB of each contender."""
    generator = torch.Generator().manual_seed(0)
    z = (torch.randn(rows, width, generator=generator) * 3).to(dtype)
    w = (z.float() + 0.02 * torch.randn(rows, width, generator=generator)).to(dtype)
    token = torch.randint(0, width, (rows,), generator=generator)
    space = Workspace()
    contenders: dict[str, Callable[[], object]] = {
        "naive": lambda: naive(z, w, token),
        "lean full": lambda: row_statistics(z, w, FULL, sampled_ids=token, workspace=space),
        "lean contract": lambda: row_statistics(z, w, CONTRACT, workspace=space),
        "lean raw": lambda: row_statistics(z, w, RAW, workspace=space),
    }
    for name, call in contenders.items():
        if name != "naive":
            call()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    space = Workspace()
    memory = {name: peak_memory(call) for name, call in reversed(contenders.items())}
    buffers = sum(b.numel() * b.element_size() for b in space.buffers) / 2**20
    memory = {name: value if name == "naive" else max(value, buffers) for name, value in memory.items()}
    median = {name: statistics.median(values) for name, values in times.items()}
    ratio = {
        name: statistics.median(n / t for n, t in zip(times["naive"], v, strict=True)) for name, v in times.items()
    }
    return {
        "rows": rows,
        "vocabulary": width,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "milliseconds_per_row": {name: round(1e3 * value / rows, 4) for name, value in median.items()},
        "times_faster_than_naive": {name: round(value, 2) for name, value in ratio.items()},
        "extra_mib": {name: round(value, 1) for name, value in memory.items()},
    }


def main() -> None:
    """Print the table, or JSON lines with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--wide", action="store_true", help="also [512, 151936]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes = [(512, 32_000)] + ([(512, 151_936)] if options.wide else [])
    for rows, width in shapes:
        for dtype in (torch.bfloat16, torch.float32):
            result = measure(rows, width, dtype, options.rounds)
            if options.json:
                sys.stdout.write(json.dumps(result) + "\n")
                continue
            sys.stdout.write(f"[{rows}, {width}] {result['dtype']}, {options.threads} thread(s)\n")
            for name, value in result["milliseconds_per_row"].items():  # type: ignore[attr-defined]
                faster, extra = result["times_faster_than_naive"][name], result["extra_mib"][name]  # type: ignore[index]
                sys.stdout.write(f"  {name:14s} {value:8.4f} ms/row  {faster:7.2f} x naive  {extra:8.1f} MiB extra\n")


if __name__ == "__main__":
    main()
