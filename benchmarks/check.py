"""Times of `check` and of the imports: median over rounds, cold caches and warm. `--json` for machines."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "contracts" / "rl_rollout.kc"


def in_process(rounds: int) -> dict[str, float]:
    """Milliseconds of one check of the example after import: the first one, and the median of the following."""
    from kcverify import driver
    from kcverify.prove.check import check

    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        (contract,) = driver.load(EXAMPLE)
        check(contract)
        times.append(1e3 * (time.perf_counter() - start))
    return {"first_ms": times[0], "warm_ms": statistics.median(times[1:])}


def process(command: list[str], rounds: int) -> float:
    """Median milliseconds of a command in a process of its own."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bare = process([sys.executable, "-c", "pass"], options.rounds)
    figures = {
        "python_start_ms": bare,
        "import_kcverify_ms": process([sys.executable, "-c", "import kcverify"], options.rounds) - bare,
        "help_ms": process([sys.executable, "-m", "kcverify", "--help"], options.rounds),
        "check_command_ms": process([sys.executable, "-m", "kcverify", "check", str(EXAMPLE)], 3),
        **{f"check_{k}": v for k, v in in_process(options.rounds).items()},
    }
    targets = {"import_kcverify_ms": 100, "help_ms": 400, "check_warm_ms": 100}
    if options.json:
        print(json.dumps({"figures": figures, "targets": targets}, indent=2))
        return
    for name, value in figures.items():
        goal = f"  target under {targets[name]}" if name in targets else ""
        print(f"{name:22} {value:9.1f}{goal}")


if __name__ == "__main__":
    main()
