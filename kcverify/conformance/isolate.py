"""Runs a check in a process of its own: a kernel that ends its process becomes a finding, not the end of the tool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kcverify.conformance import answer
from kcverify.conformance.contract import prepared, run_contract, select
from kcverify.conformance.kernels import BY_NAME, find
from kcverify.conformance.kernels import Row as Kernel
from kcverify.conformance.model import Verdict
from kcverify.conformance.table import BY_ID, KernelClass, run_class
from kcverify.diagnostics import Report, diagnosis
from kcverify.elaborate.elaborate import elaborate_file
from kcverify.elaborate.kernel import KernelContract
from kcverify.forms.read import read
from kcverify.source import Source

LIMIT = 300
"""Seconds that a process may take."""

_OURS = 70
"""Exit code of a process in which kcverify itself failed: what a kernel raises is caught before."""


def survey_here(kernel: Kernel, row: KernelClass) -> dict[str, Any]:
    """A shipped kernel under a class, in this process."""
    run = run_class(row, kernel.kernel, kernel.declared, kernel.protocol(row), kernel.operation)
    return answer.data(run, row.id, kernel.name)


def survey_one(kernel: Kernel, row: KernelClass) -> dict[str, Any]:
    """A shipped kernel under a class; a risky one in a process of its own."""
    if not kernel.risky:
        return survey_here(kernel, row)
    found = _apart({"row": kernel.name, "class": row.id})
    return found if isinstance(found, dict) else _lost(found, row.id, kernel.operation, kernel.name)


def contract_here(text: str, file: str, name: str | None, kernel: str) -> dict[str, Any]:
    """A contract from its text on a kernel, in this process."""
    return run_contract(select(kernels_of(text, file), name, file), kernel, file)


def contract_apart(contract: KernelContract, text: str, file: str, kernel: str, limit: int = LIMIT) -> dict[str, Any]:
    """A contract on a kernel in a process of its own. Raises InputError for a kernel or class that is not there."""
    row, _, _ = prepared(contract, file)
    if kernel not in BY_NAME:
        find(kernel)
    found = _apart({"text": text, "file": file, "contract": contract.name, "kernel": kernel}, limit)
    if isinstance(found, dict):
        return found
    head = {"name": contract.name, "version": contract.version, "file": file, "trials_asked": contract.protocol.trials}
    head["severity"] = [v.severity for v in contract.violations]
    lost = _lost(found, row.id, contract.scope.operation, kernel)
    return {"contract": head, **lost, "calibration": [], "machine": answer.machine()}


def kernels_of(text: str, file: str) -> tuple[KernelContract, ...]:
    """Kernel contracts of a text that was checked before."""
    report = Report()
    return elaborate_file(read(Source(file, text), report), report, parameters={}).kernels


def _lost(reason: str, class_id: str, operation: str, kernel: str) -> dict[str, Any]:
    slow = reason.startswith("no answer")
    verdict = Verdict.INCONCLUSIVE if slow else Verdict.VIOLATION
    return answer.crashed(class_id, operation, kernel, diagnosis("kernel_crashed", {"reason": reason}), verdict)


def _apart(job: dict[str, Any], limit: int = LIMIT) -> dict[str, Any] | str:
    """The answer of a process, or why there is none."""
    path = [str(Path.cwd()), *(p for p in sys.path if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "kcverify.conformance.isolate", str(out)]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(job),
                capture_output=True,
                text=True,
                timeout=limit,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {limit} s"
        if done.returncode == 0 and out.is_file():
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return found
    if done.returncode < 0:
        return f"signal {signal.Signals(-done.returncode).name}"
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    if done.returncode == _OURS:
        raise RuntimeError(last[0])
    return f"exit code {done.returncode}: {last[0]}"


def main(out: str, job: dict[str, Any]) -> None:
    """One job, its answer written to a file."""
    if "row" in job:
        found = survey_here(BY_NAME[job["row"]], BY_ID[job["class"]])
    else:
        found = contract_here(job["text"], job["file"], job["contract"], job["kernel"])
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1], json.loads(sys.stdin.read()))
    except Exception as error:
        sys.stderr.write(f"\n{type(error).__name__}: {' '.join(str(error).split())}\n")
        sys.exit(_OURS)
