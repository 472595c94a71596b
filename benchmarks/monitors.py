"""Times the row statistics beside what one would write otherwise, in one process, as ratios of time.

Contenders: the textbook formulas in eager torch (`naive`), the same under torch.compile, torchmetrics and scipy (one KL
divergence alone), `lean` and `cpp` with the full set of statistics, and `cpp` for a contract that one sweep decides.
Reported: milliseconds a row, ratios to naive and to one read of both tensors, memory beyond the inputs, and, for the
fused kernel, passes of `torch.exp`. A read and a pass are of both tensors: a pass is one `torch.exp` of every value of
the pair, in float32 and in pieces of a buffer that stays in the cache, on one thread; its time is divided by the number
of threads, as if it shared out without loss. One thread is timed in CPU time, which a busy machine disturbs less;
several in wall time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from kcverify.runtime.backends import BACKENDS, Job
from kcverify.runtime.rows import STATISTICS, RowPlan, Workspace, row_statistics

FULL = RowPlan(frozenset(STATISTICS) - {"chi2", "bc"}, ((1, False), (10, False)))
ONE_SWEEP = RowPlan(
    frozenset({"logit_span", "tv", "kl_candidate_reference", "ratio_min", "ratio_max"}), ((1, False),), tv_limit=0.05
)
SHAPES = ((512, 151_936), (2048, 32_000))
DTYPES = (torch.bfloat16, torch.float32)
Call = Callable[[], object]
UNITS = ("read", "naive", "torch.exp")
"""What the others are compared with; always timed."""


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


def peak_memory(call: Call) -> float:
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


def reading(z: torch.Tensor, w: torch.Tensor) -> Call:
    """One read of both tensors: sums of their bytes as 64-bit integers."""
    words = [x.view(torch.uint8).view(-1).view(torch.int64) for x in (z, w)]
    return lambda: [x.sum() for x in words]


def exp_pass(width: int) -> Call:
    """`torch.exp` over as many float32 values as a pair of rows has, in pieces of a buffer that stays in the cache."""
    piece = torch.zeros(16_384)
    out = torch.empty_like(piece)
    return lambda: [torch.exp(piece, out=out) for _ in range(-(-2 * width // piece.numel()))]


def torchmetrics_kl(z: torch.Tensor, w: torch.Tensor) -> Call | None:
    """torchmetrics' KL divergence of the two softmaxes; None where it is not installed."""
    if importlib.util.find_spec("torchmetrics") is None:
        return None
    from torchmetrics.functional import kl_divergence

    return lambda: kl_divergence(
        F.log_softmax(z.float(), -1), F.log_softmax(w.float(), -1), log_prob=True, reduction="none"
    )


def scipy_kl(z: torch.Tensor, w: torch.Tensor) -> Call | None:
    """scipy's rel_entr, 16 rows at a time; None where it is not installed."""
    if importlib.util.find_spec("scipy") is None:
        return None
    from scipy.special import rel_entr, softmax

    def run() -> None:
        for i in range(0, z.shape[0], 16):
            rel_entr(softmax(z[i : i + 16].float().numpy(), -1), softmax(w[i : i + 16].float().numpy(), -1)).sum(-1)

    return run


def contenders(z: torch.Tensor, w: torch.Tensor, token: torch.Tensor, *, compiled: bool) -> dict[str, Call]:
    """Every contender that is here, by name."""
    space, own = Workspace(), Workspace()
    found: dict[str, Call | None] = {"read": reading(z, w), "naive": lambda: naive(z, w, token)}
    if compiled:
        graph = torch.compile(naive, dynamic=False)
        found["torch.compile"] = lambda: graph(z, w, token)
    found |= {
        "torchmetrics KL": torchmetrics_kl(z, w),
        "scipy KL": scipy_kl(z, w),
        "lean": lambda: row_statistics(z, w, FULL, sampled_ids=token, workspace=space, backend="lean"),
    }
    if not BACKENDS["cpp"].unavailable(Job(z, w, FULL, 1.0, token, own)):
        found |= {
            "cpp": lambda: row_statistics(z, w, FULL, sampled_ids=token, workspace=own, backend="cpp"),
            "cpp one sweep": lambda: row_statistics(z, w, ONE_SWEEP, workspace=own, backend="cpp"),
        }
    return {name: call for name, call in found.items() if call is not None}


def measure(
    rows: int, width: int, dtype: torch.dtype, rounds: int, *, compiled: bool, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """One table: milliseconds a row, ratios and memory of each contender, medians over rounds."""
    generator = torch.Generator().manual_seed(0)
    z = (torch.randn(rows, width, generator=generator) * 3).to(dtype)
    w = (z.float() + 0.02 * torch.randn(rows, width, generator=generator)).to(dtype)
    token = torch.randint(0, width, (rows,), generator=generator)
    calls = contenders(z, w, token, compiled=compiled) | {"torch.exp": exp_pass(width)}
    calls = {name: call for name, call in calls.items() if name in UNITS or name not in without}
    threads = torch.get_num_threads()
    clock = time.process_time if threads == 1 else time.perf_counter
    memory = {name: peak_memory(call) for name, call in reversed(calls.items())}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            alone = name == "torch.exp"
            torch.set_num_threads(1 if alone else threads)
            start = clock()
            for _ in range(rows if alone else 1):
                call()
            times[name].append((clock() - start) / (threads if alone else 1))
    torch.set_num_threads(threads)
    ratio = {
        name: statistics.median(a / b for a, b in zip(times["naive"], spent, strict=True))
        for name, spent in times.items()
    }
    reads = {
        name: statistics.median(a / b for a, b in zip(spent, times["read"], strict=True))
        for name, spent in times.items()
    }
    passes = {
        name: statistics.median(a / b for a, b in zip(times[name], times["torch.exp"], strict=True))
        for name in ("cpp", "cpp one sweep")
        if name in times
    }
    return {
        "rows": rows,
        "vocabulary": width,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": threads,
        "milliseconds_per_row": {n: round(1e3 * statistics.median(t) / rows, 4) for n, t in times.items()},
        "times_faster_than_naive": {n: round(v, 2) for n, v in ratio.items()},
        "reads_of_both_tensors": {n: round(v, 2) for n, v in reads.items()},
        "exp_passes": {n: round(v, 2) for n, v in passes.items()},
        "extra_mib": {n: round(v, 1) for n, v in memory.items()},
    }


def show(result: dict[str, Any]) -> str:
    """The table as text."""
    lines = [f"[{result['rows']}, {result['vocabulary']}] {result['dtype']}, {result['threads']} thread(s)"]
    for name, value in result["milliseconds_per_row"].items():
        if name == "torch.exp":
            continue
        faster, reads = result["times_faster_than_naive"][name], result["reads_of_both_tensors"][name]
        extra, passes = result["extra_mib"][name], result["exp_passes"].get(name)
        told = f"  {passes:4.2f} passes of torch.exp" if passes else ""
        lines.append(
            f"  {name:16s} {value:8.4f} ms/row {faster:7.2f} x naive {reads:8.2f} reads {extra:8.1f} MiB{told}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or JSON lines with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median is reported")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="thread counts, one table each")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="contenders to leave out (never read and naive)"
    )
    parser.add_argument("--small", action="store_true", help="[64, 32000] only")
    options = parser.parse_args()
    for threads in options.threads:
        torch.set_num_threads(threads)
        for rows, width in ((64, 32_000),) if options.small else SHAPES:
            for dtype in DTYPES:
                result = measure(
                    rows, width, dtype, options.rounds, compiled=not options.no_compile, without=tuple(options.without)
                )
                sys.stdout.write((json.dumps(result) if options.json else show(result)) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
