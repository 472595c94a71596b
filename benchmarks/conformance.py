"""Seconds of the whole kernel suite on two cores: calibration, every shipped contract, every trap, and the survey.

Prints the calibration matrix, the faults found in installed libraries with versions, and the run time. `--page PATH` writes
them as a page of the documentation; `--skip survey` leaves a part out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PARTS = ("calibrate", "traps", "survey")
LIBRARIES = ("torch", "torchao", "bitsandbytes", "triton")


def answer(part: str) -> tuple[dict[str, Any], float]:
    """What a command prints as JSON, and its seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "kcverify", "conformance", part, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{part}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout), time.perf_counter() - start


def installed() -> dict[str, str]:
    """Versions of the libraries whose kernels are looked at."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(c).replace('|', '/') for c in row)} |" for row in rows)])


def matrix(found: dict[str, Any]) -> str:
    """Every class with its three kernels: an ordinary test, and the contract."""
    rows = [
        (row["class"], row["title"], *(f"{s['ordinary']} / {s['verdict']}" for s in row["states"]), row["tolerance"])
        for row in found["classes"]
    ]
    return table(("class", "", "baseline: ordinary / contract", "bad", "good", "tolerance"), rows)


def faults(found: dict[str, Any]) -> str:
    """Kernels of the survey that leave their declaration, emulations left out."""
    rows = []
    for run in found["runs"]:
        if run["verdict"] == "violation":
            worst = run["worst"]
            said = run["findings"][0]["message"] if run["findings"] else f"{worst['name']}: {worst['value']}"
            rows.append((f"`{run['kernel']}`", run["class"], said, "" if worst is None else worst["where"]))
    return table(("kernel", "class", "measured", "where"), rows)


def traps(found: dict[str, Any]) -> str:
    """The catalogue of traps."""
    rows = [
        (
            t["about"],
            f"`{t['contract']}.kc`",
            f"`{t['kernel']}`",
            t["expected"] or "not claimed",
            t["found"] or t["not_here"],
            t["source"],
        )
        for t in found["traps"]
    ]
    return table(("trap", "contract", "kernel", "expected here", "found", "reported in"), rows)


def main() -> None:
    """Run, print, and write the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--page", type=Path)
    options.add_argument("--skip", action="append", default=[], choices=PARTS)
    chosen = options.parse_args()
    show = {
        "calibrate": ("Calibration", matrix),
        "traps": ("Known traps", traps),
        "survey": ("Faults of installed kernels", faults),
    }
    parts, seconds, machine = [], {}, {}
    for part in PARTS:
        if part in chosen.skip:
            continue
        found, seconds[part] = answer(part)
        machine = found.get("machine", machine)
        title, drawn = show[part]
        parts.append(f"## {title}\n\n{drawn(found)}")
    times = ", ".join(f"{part} {value:.0f} s" for part, value in seconds.items())
    versions = ", ".join(f"{name} {number}" for name, number in installed().items())
    about = f"Measured by `benchmarks/conformance.py` with {versions}, on {machine.get('processor', 'this machine')} ({', '.join(machine.get('features', []))})."
    total = f"Run time: {times}; {sum(seconds.values()):.0f} s together."
    text = "\n\n".join(["# Kernel contracts as measured", about, total, *parts]) + "\n"
    print(text)
    if chosen.page is not None:
        chosen.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
