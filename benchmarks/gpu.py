"""The Triton row kernels on a GPU: correctness first, against the float64 oracle, then times.

Timed by CUDA-graph replay with the cache flushed before each: the kernels for the full set and for two contracts, on
plain and on masked rows; eager textbook formulas, the same under torch.compile, Liger's KL and Jensen-Shannon losses
where they are installed, and a copy of both tensors, whose bandwidth says what one read costs. The figures are saved
as `benchmarks/results/gpu-<card>.json`. Without a GPU nothing is timed: the instruction counts for sm_90 are printed,
and `--interpret` runs the correctness part in Triton's interpreter on small rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from monitors import naive

from kcverify.runtime.gpu import launch
from kcverify.runtime.oracle import oracle_rows
from kcverify.runtime.rows import STATISTICS, RowPlan, Workspace, row_statistics

HERE = Path(__file__).parent
PLANS = {
    "full set": RowPlan(frozenset(STATISTICS) - {"chi2", "bc", "token_log_ratio"}, ((1, False),)),
    "span, TV by certificate, KL, ratios": RowPlan(
        frozenset({"logit_span", "tv", "kl_candidate_reference", "ratio_min", "ratio_max"}), ((1, False),), 0.05
    ),
    "KL, log ratio": RowPlan(frozenset({"kl_reference_candidate", "log_ratio"})),
}
SHAPES = ((4096, 151_936), (64, 151_936))
DTYPES = (torch.bfloat16, torch.float32)
TOLERANCE = {"kl_reference_candidate": 1e-5, "kl_candidate_reference": 1e-5, "tv": 1e-5}
Call = Callable[[], object]


def pair(rows: int, width: int, dtype: torch.dtype, noise: float, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Peaked reference rows and their disturbed twins."""
    generator = torch.Generator(device).manual_seed(rows + width)
    z = torch.empty(rows, width, dtype=dtype, device=device)
    w = torch.empty_like(z)
    for start in range(0, rows, 64):
        n = min(64, rows - start)
        a = 3.0 * torch.randn(n, width, generator=generator, device=device)
        places = torch.randint(0, width, (n, 8), generator=generator, device=device)
        a.scatter_add_(1, places, 4.0 + 4.0 * torch.rand(n, 8, generator=generator, device=device))
        z[start : start + n] = a.to(dtype)
        w[start : start + n] = (a + noise * torch.randn(n, width, generator=generator, device=device)).to(dtype)
    return z, w


def kinds(z: torch.Tensor, w: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The same rows plain, masked on both sides, masked on one, with a late peak, and with a far token."""
    mask = torch.rand(z.shape, generator=torch.Generator().manual_seed(1)).to(z.device) < 0.3
    late = z.clone(), w.clone()
    for side in late:
        side[:, -1] = 24.0
    far = w.clone()
    far[:, 5] -= 60.0
    inf = float("-inf")
    return {
        "plain": (z, w),
        "masked": (z.masked_fill(mask, inf), w.masked_fill(mask, inf)),
        "masked on one side": (z, w.masked_fill(mask, inf)),
        "late peak": late,
        "far token": (z, far),
    }


def correctness(device: str, width: int, rows: int) -> tuple[list[dict[str, object]], bool]:
    """Worst relative errors of the divergences against the oracle, and whether all are within `TOLERANCE`."""
    plan = RowPlan(frozenset(STATISTICS) - {"token_log_ratio"}, ((1, False),))
    out, fine = [], True
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for noise in (1e-3, 0.05, 1.0):
            for kind, (z, w) in kinds(*pair(rows, width, dtype, noise, device)).items():
                got = row_statistics(z, w, plan, backend="triton", workspace=Workspace())
                want = oracle_rows(z.cpu(), w.cpu())
                errors = {name: worst(got.values[name].tolist(), want[name]) for name in TOLERANCE}
                good = all(errors[name] <= bound for name, bound in TOLERANCE.items()) and not got.invalid.any()
                fine &= good
                out.append({"dtype": str(dtype), "noise": noise, "rows": kind, "errors": errors, "fine": good})
    return out, fine


def worst(found: list[float], truth: list[float]) -> float:
    """Largest relative error; values below 1e-9 count by 1e-12 of absolute error each 1e-5; equal infinities count 0."""
    errors = [0.0]
    for a, b in zip(found, truth, strict=True):
        if a == b:
            continue
        errors.append(abs(a - b) / max(abs(b), 1e-7) if math.isfinite(a) and math.isfinite(b) else math.inf)
    return max(errors)


def milliseconds(call: Call, *, graph: bool, rounds: int = 15) -> float:
    """Median time on the device, each run after the cache was flushed."""
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    run: Call = call
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            call()
        run = captured.replay
    times = []
    for _ in range(rounds):
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def copy_time(z: torch.Tensor) -> float:
    """Milliseconds that a copy of `z` takes, which moves as many bytes as one read of two such tensors."""
    target = torch.empty_like(z)
    return milliseconds(lambda: target.copy_(z), graph=True)


def liger(z: torch.Tensor, w: torch.Tensor) -> dict[str, Call]:
    """Liger's losses, each of which gives one number; none where the package is missing."""
    if importlib.util.find_spec("liger_kernel") is None:
        return {}
    from liger_kernel.transformers.functional import liger_jsd, liger_kl_div

    def logs() -> tuple[torch.Tensor, torch.Tensor]:
        return F.log_softmax(w, -1), F.log_softmax(z, -1)

    def kl() -> object:
        q, p = logs()
        return liger_kl_div(q, p, reduction="batchmean", log_target=True)

    return {"liger KL": kl, "liger JSD": lambda: liger_jsd(*logs())}


def contenders(z: torch.Tensor, w: torch.Tensor) -> dict[str, tuple[Call, bool]]:
    """What is timed, and whether it is captured in a graph."""
    token = torch.zeros(z.shape[0], dtype=torch.int64, device=z.device)
    out: dict[str, tuple[Call, bool]] = {}
    masked = kinds(z[:64], w[:64])["masked"] if z.shape[0] <= 64 else None
    space = Workspace()
    for name, plan in PLANS.items():
        out[f"triton, {name}"] = (lambda p=plan: row_statistics(z, w, p, backend="triton", workspace=space)), True
    if masked is not None:
        a, b = masked
        out["triton, full set, masked"] = (
            (lambda: row_statistics(a, b, PLANS["full set"], backend="triton", workspace=space)),
            True,
        )
    out["eager"] = (lambda: naive(z, w, token)), False
    compiled = torch.compile(naive)
    out["torch.compile"] = (lambda: compiled(z, w, token)), False
    for name, call in liger(z, w).items():
        out[name] = call, False
    return out


def timed(rows: int, width: int, dtype: torch.dtype) -> dict[str, object]:
    """Times of every contender at one shape, as milliseconds, as multiples of one read, and of eager."""
    z, w = pair(rows, width, dtype, 0.02, "cuda")
    moved = 2 * z.numel() * z.element_size()  # a copy reads one tensor and writes one; a read takes both
    read = copy_time(z)
    bandwidth = moved / read
    found: dict[str, dict[str, object]] = {}
    for name, (call, graph) in contenders(z, w).items():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            ms = milliseconds(call, graph=graph)
        except (RuntimeError, ImportError) as error:  # a peer that does not fit or does not run here says so
            found[name] = {"failed": str(error).splitlines()[0][:200]}
            torch.cuda.empty_cache()
            continue
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20 - 256
        found[name] = {"ms": ms, "reads": ms / read, "memory_mib": max(peak, 0.0), "graph": graph}
    eager = found["eager"].get("ms")
    for row in found.values():
        if isinstance(eager, float) and "ms" in row:
            row["of_eager"] = eager / float(str(row["ms"]))
    return {"shape": [rows, width], "dtype": str(dtype), "read_ms": read, "gb_per_s": bandwidth / 1e6, "rows": found}


def tuned(width: int) -> list[dict[str, object]]:
    """Times of the full set for several layouts of the kernels."""
    z, w = pair(1024, width, torch.bfloat16, 0.02, "cuda")
    out = []
    for plain, warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16)):
        for stages in (1, 2, 3):
            shape = launch.Shape(plain=plain, warps=warps, stages=stages)
            call = lambda s=shape: launch.fill(z, w, PLANS["full set"], 1.0, Workspace(), shape=s)  # noqa: E731
            out.append({"plain": plain, "warps": warps, "stages": stages, "ms": milliseconds(call, graph=False)})
    return sorted(out, key=lambda row: float(str(row["ms"])))


def show(result: dict[str, object]) -> None:
    print(f"{result['shape']} {result['dtype']}: one read {result['read_ms']:.3f} ms at {result['gb_per_s']:.0f} GB/s")
    rows = result["rows"]
    assert isinstance(rows, dict)
    for name, row in rows.items():
        if "failed" in row:
            print(f"  {name:46s} did not run: {row['failed']}")
            continue
        eager = f"{row['of_eager']:7.1f} times eager" if "of_eager" in row else ""
        print(f"  {name:46s} {row['ms']:9.3f} ms {row['reads']:7.2f} reads {eager} {row['memory_mib']:9.1f} MiB")


def counts() -> str:
    """The instruction counts of `sass.py`, from a process of its own: this one may be interpreting."""
    done = subprocess.run([sys.executable, HERE / "sass.py"], capture_output=True, text=True)
    return done.stdout or f"no instruction counts: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"


def check(device: str, width: int, rows: int) -> bool:
    """Run and print the correctness part."""
    found, fine = correctness(device, width, rows)
    for row in found:
        errors = row["errors"]
        assert isinstance(errors, dict)
        text = ", ".join(f"{name} {value:.1e}" for name, value in errors.items())
        print(f"{row['dtype']:16s} noise {row['noise']:<6} {row['rows']:20s} {text} {'' if row['fine'] else '  WRONG'}")
    print("relative errors against the float64 oracle: " + ("all within 1e-5" if fine else "NOT all within 1e-5"))
    return fine


def without_gpu(interpret: bool) -> int:
    print("No CUDA device here: nothing is timed, and no figure below is a time.")
    if importlib.util.find_spec("triton") is None:
        print("Triton is not installed: pip install triton")
        return 2
    fine = True
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of values that the kernels discard
        fine = check("cpu", 1500, 2)
    print(counts())
    return 0 if fine else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interpret", action="store_true", help="without a GPU: correctness in Triton's interpreter")
    parser.add_argument("--tune", action="store_true", help="time other layouts of the kernels too")
    parser.add_argument("--rows", type=int, default=4, help="rows of each correctness case")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        return without_gpu(options.interpret)
    card = torch.cuda.get_device_name()
    print(f"{card}, torch {torch.__version__}")
    if not check("cuda", 151_936, options.rows):
        return 1
    out: dict[str, object] = {"card": card, "torch": torch.__version__, "results": []}
    results = []
    for rows, width in SHAPES:
        for dtype in DTYPES:
            results.append(timed(rows, width, dtype))
            show(results[-1])
            torch.cuda.empty_cache()
    out["results"] = results
    if options.tune:
        out["layouts"] = tuned(151_936)
        for row in out["layouts"][:5]:
            print(row)
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"gpu-{card.lower().replace(' ', '-')}.json"
    path.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    print(f"saved as benchmarks/results/{path.name}")
    print(counts())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
