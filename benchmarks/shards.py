"""Rows per second of `measure` and `compare` over 1, 10 and 100 shards, by executor: time should grow with rows alone.

One pair of shards is written, and the others are hard links of it under other names, so that disk space stays small and
every shard costs the same. Each run is timed whole, processes started and report made, and, as the slope between the
last number of shards and the one before, without what a run costs once. `--json` prints the numbers alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from kcverify import driver
from kcverify.elaborate.contract import Contract
from kcverify.source import Source
from kcverify.streams.shard_runs import Spread
from kcverify.streams.sharded import compare_sides

TEXT = """contract shards
assume { temperature = 1; sampler = full_softmax; horizon <= 256 tokens; reward in [0, 1] }
numerical { drift: logit_span <= 0.2 except 1% -> L2; far: tv <= 0.05 except 1% -> L1 }
"""
COUNTS = (1, 10, 100)


def dump(folder: Path, most: int, rows: int, width: int) -> None:
    """`most` pairs of shards of float32 logits `[rows, width]`."""
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 3, (rows, width)).astype(np.float32)
    for side, noise in (("ref", 0.0), ("cand", 0.01)):
        (folder / side).mkdir()
        first = folder / side / "part-0.npy"
        np.save(first, logits + np.float32(noise) * draw.normal(size=logits.shape).astype(np.float32))
        for i in range(1, most):
            os.link(first, folder / side / f"part-{i}.npy")


def compared(folder: Path, count: int, executor: str, workers: int | None) -> tuple[float, int, str]:
    """The same of `compare`."""
    names = [[str(folder / side / f"part-{i}.npy") for i in range(count)] for side in ("ref", "cand")]
    with tempfile.TemporaryDirectory(dir=folder) as some:
        for side, files in zip(("ref", "cand"), names, strict=True):
            (Path(some) / side).mkdir()
            for file in files:
                os.link(file, Path(some) / side / Path(file).name)
        spread = Spread(driver.executor_of(executor, workers))
        start = time.perf_counter()
        found = compare_sides(f"{some}/ref", f"{some}/cand", spread=spread)
        seconds = time.perf_counter() - start
    return seconds, found["drift"]["table"][0]["rows"], json.dumps(found).replace(some, "")


def timed(
    contract: Contract | None, folder: Path, count: int, executor: str, workers: int | None
) -> tuple[float, int, str]:
    """Seconds of one run over the first `count` shards, rows measured, and the answer as text; None compares."""
    if contract is None:
        return compared(folder, count, executor, workers)
    sides = [[str(folder / side / f"part-{i}.npy") for i in range(count)] for side in ("ref", "cand")]
    options = driver.MeasureOptions(executor=executor, workers=workers)
    start = time.perf_counter()
    found = driver.measure(contract, *sides, None, options)
    return time.perf_counter() - start, found["data"]["measured rows"], json.dumps(found)


def measured(
    counts: tuple[int, ...], rows: int, width: int, executors: list[tuple[str, int | None]], contract: Contract | None
) -> list[dict[str, Any]]:
    """One line for each executor and number of shards; `ratio` is time per row against one shard."""
    out: list[dict[str, Any]] = []
    answers: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as name:
        dump(Path(name), max(counts), rows, width)
        timed(contract, Path(name), 1, "serial", None)  # what this process loads and compiles once
        for executor, workers in executors:
            lines = []
            for count in counts:
                seconds, seen, answer = timed(contract, Path(name), count, executor, workers)
                if answers.setdefault(count, answer) != answer:
                    raise SystemExit(f"{executor} with {count} shards gave another answer")
                lines.append(
                    {"executor": executor, "workers": workers, "shards": count, "rows": seen, "seconds": seconds}
                )
            first = lines[0]
            for before, line in zip([None, *lines], lines, strict=False):
                line["rows_per_second"] = line["rows"] / line["seconds"]
                line["ratio"] = line["seconds"] / line["rows"] * first["rows"] / first["seconds"]
                more = None if before is None else line["seconds"] - before["seconds"]
                line["rows_per_second_more"] = (
                    (line["rows"] - before["rows"]) / more if before and more and more > 0 else None
                )
            out += lines
    return out


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--rows", type=int, default=2048, help="rows of one shard")
    parser.add_argument("--width", type=int, default=4000, help="vocabulary entries")
    parser.add_argument("--command", choices=("measure", "compare"), default="measure")
    parser.add_argument("--executors", nargs="+", choices=driver.EXECUTORS, default=list(driver.EXECUTORS))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    executors: list[tuple[str, int | None]] = [("serial", None), ("process", 1)]
    if (cores := len(os.sched_getaffinity(0))) > 1:
        executors.append(("process", cores))
    if importlib.util.find_spec("ray") is not None:
        executors.append(("ray", cores))
    (contract,) = driver.load_source(Source("shards.kc", TEXT)).contracts if chosen.command == "measure" else (None,)
    executors = [row for row in executors if row[0] in chosen.executors]
    found = measured(tuple(chosen.shards), chosen.rows, chosen.width, executors, contract)
    if chosen.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"shards of {chosen.rows} rows x {chosen.width} float32; ratio: time per row against {chosen.shards[0]} shard"
    )
    print(
        f"{'executor':>12} {'shards':>7} {'rows':>8} {'seconds':>8} {'rows/s':>9} {'ratio':>6}   rows/s of what was added"
    )
    for line in found:
        name = line["executor"] + (f" x{line['workers']}" if line["workers"] else "")
        more = line["rows_per_second_more"]
        print(
            f"{name:>12} {line['shards']:>7} {line['rows']:>8} {line['seconds']:>8.2f} {line['rows_per_second']:>9,.0f} "
            f"{line['ratio']:>6.2f}   {f'{more:,.0f}' if more else ''}"
        )


if __name__ == "__main__":
    main()
