"""Seconds of the whole kernel suite on two cores: calibration, every shipped contract, every trap, and the survey.

Prints the calibration matrix, what every shipped contract gave, the faults found in installed libraries with their versions, and
the run time. `--page PATH` puts them between the two marks of a page; `--skip survey` leaves a part out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "torchao", "bitsandbytes", "triton")
MARKS = ("<!-- measured -->", "<!-- end of measured -->")
Answer = dict[str, Any]


def printed(part: str) -> Answer:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "kcverify", "conformance", part, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{part}: exit code {done.returncode}\n{done.stderr}")
    found: Answer = json.loads(done.stdout)
    return found


def expectations() -> list[tuple[Path, str, str]]:
    """Shipped contract, kernel and verdict, as line 1 of each contract says."""
    from kcverify.resources import contracts_dir

    found = []
    for path in sorted((contracts_dir() / "kernels").glob("*.kc")):
        line = path.read_text(encoding="utf-8").splitlines()[0]
        for verdict, names in re.findall(r"kernels (\w+) ([^;]+)", line):
            found += [(path, name.strip(), verdict) for name in names.split(",")]
    return found


def one_contract(path: Path, kernel: str, verdict: str) -> Answer:
    """One kernel under one shipped contract, in a process of its own where it needs one."""
    from kcverify.conformance.isolate import contract_apart, contract_here, kernels_of
    from kcverify.conformance.kernels import BY_NAME

    text, row = path.read_text(encoding="utf-8"), BY_NAME.get(kernel)
    head = {"contract": path.name, "kernel": kernel, "expected": verdict, "distributions": []}
    if row is not None and row.needs():
        return {**head, "found": f"needs: {row.needs()}"}
    if row is not None and row.risky:
        found = contract_apart(kernels_of(text, path.name)[0], text, path.name, kernel)
    else:
        found = contract_here(text, path.name, None, kernel)
    return {**head, "found": found["verdict"], "class": found["class"], "distributions": found["distributions"]}


def every_contract() -> Answer:
    """Every shipped contract on every kernel that its first line names."""
    from kcverify.conformance.forks import close, server
    from kcverify.conformance.isolate import together
    from kcverify.conformance.kernels import BY_NAME

    calls = [(k in BY_NAME and BY_NAME[k].risky, partial(one_contract, p, k, v)) for p, k, v in expectations()]
    rows = together(calls)
    close(server())  # the processor time of its children counts from then on
    return {"rows": rows}


def processor_seconds() -> float:
    """Of this process and of those that ended below it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def installed() -> str:
    """Versions of the libraries whose kernels are looked at."""
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(c).replace('|', '/') for c in row)} |" for row in rows)])


def matrix(found: Answer) -> str:
    """Every class with its three kernels: an ordinary test, and the contract."""
    rows = [
        (row["class"], row["title"], *(f"{s['ordinary']} / {s['verdict']}" for s in row["states"]), row["tolerance"])
        for row in found["classes"]
    ]
    return table(("class", "", "baseline: ordinary / contract", "bad", "good", "tolerance"), rows)


def contracts(found: Answer) -> str:
    """Every shipped contract with its kernels."""
    rows: list[tuple[object, ...]] = []
    for row in found["rows"]:
        as_said = "as line 1 says" if row["found"] == row["expected"] else f"LINE 1 SAYS {row['expected']}"
        word = row["found"] if row["found"].startswith("needs") else f"{row['found']}, {as_said}"
        rows.append((f"`{row['contract']}`", row.get("class", ""), f"`{row['kernel']}`", word))
    return table(("contract", "class", "kernel", "verdict"), rows)


def faults(found: Answer) -> str:
    """Kernels of the survey that leave their declaration, emulations left out."""
    from kcverify.conformance.kernels import BY_NAME

    rows: list[tuple[object, ...]] = []
    for run in found["runs"]:
        note = BY_NAME[run["kernel"]].note
        if run["verdict"] != "within_tolerance" and not note.startswith("emulates"):
            worst = run["worst"]
            said = run["findings"][0]["message"] if run["findings"] else ""
            if not said and worst is not None:
                value = "not finite" if worst["value"] is None else f"{worst['value']:.3g}"
                limit = "no limit" if worst["tolerance"]["value"] is None else f"{worst['tolerance']['value']:.3g}"
                said = f"{worst['name']}: {value} against {limit}"
            rows.append(
                (
                    f"`{run['kernel']}`",
                    note,
                    run["class"],
                    run["verdict"],
                    said,
                    "" if worst is None else worst["where"],
                )
            )
    absent: dict[str, list[str]] = {}
    for row in found["not_here"]:
        absent.setdefault(row["reason"], []).append(row["kernel"])
    left = "\n".join(f"\nNot run, {reason}: {len(names)} kernels." for reason, names in absent.items())
    count = f"{len(found['runs'])} pairs of kernel and class were run; these are not within their tolerance, emulations left out:\n\n"
    return count + table(("kernel", "", "class", "verdict", "measured", "where"), rows) + "\n" + left


def traps(found: Answer) -> str:
    """The catalogue of traps."""
    rows: list[tuple[object, ...]] = [
        (
            t["about"], f"`{t['contract']}.kc`", f"`{t['kernel']}`", t["expected"] or "not claimed",
            t["found"] or f"needs: {t['not_here']}", t["source"],
        )
        for t in found["traps"]
    ]  # fmt: skip
    return table(("trap", "contract", "kernel", "expected here", "found", "reported in"), rows)


PARTS: dict[str, tuple[str, Callable[[], Answer], Callable[[Answer], str]]] = {
    "calibrate": ("Calibration", partial(printed, "calibrate"), matrix),
    "contracts": ("Shipped contracts", every_contract, contracts),
    "traps": ("Known traps", partial(printed, "traps"), traps),
    "survey": ("Faults of installed kernels", partial(printed, "survey"), faults),
}


def main() -> None:
    """Run, print, and write the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--page", type=Path)
    options.add_argument("--skip", action="append", default=[], choices=tuple(PARTS))
    chosen = options.parse_args()
    parts, seconds, features = [], {}, ""
    for name, (title, work, shown) in PARTS.items():
        if name in chosen.skip:
            continue
        start, used = time.perf_counter(), processor_seconds()
        found = work()
        seconds[name] = time.perf_counter() - start, processor_seconds() - used
        print(f"{name}: {seconds[name][0]:.0f} s, {seconds[name][1]:.0f} s of processor", file=sys.stderr, flush=True)
        features = ", ".join(found["machine"]["features"]) if "machine" in found else features
        parts.append(f"### {title}\n\n{shown(found)}")
    times = ", ".join(f"{part} {used:.0f} s" for part, (_, used) in seconds.items())
    whole, both = (sum(pair[at] for pair in seconds.values()) for at in (0, 1))
    alone = ", one thread a process" if os.environ.get("OMP_NUM_THREADS") == "1" else ""
    about = f"Measured by `benchmarks/conformance.py` with {installed()}, on two cores with {features or 'no feature of note'}{alone}."
    total = (
        f"Processor time: {times}; {both:.0f} s together, which idle cores need at most. "
        f"This run took {whole:.0f} s beside other work."
    )
    text = "\n\n".join([about, total, *parts])
    print(text)
    if chosen.page is not None:
        before, _, rest = chosen.page.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        chosen.page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
