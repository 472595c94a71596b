"""Runs a check in a process of its own: whatever a kernel or its module does there becomes a finding, not the end of the tool."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch

from kcverify.codes import BY_SLUG
from kcverify.conformance import answer
from kcverify.conformance.contract import prepared, run_contract, select
from kcverify.conformance.kernels import BY_NAME, find
from kcverify.conformance.kernels import Row as Kernel
from kcverify.conformance.model import Verdict
from kcverify.conformance.sampling import AS_WRITTEN, Effort
from kcverify.conformance.table import BY_ID, KernelClass, run_class
from kcverify.diagnostics import Diagnostic, InputError, Report, diagnosis, input_error
from kcverify.elaborate.elaborate import elaborate_file
from kcverify.elaborate.kernel import KernelContract
from kcverify.forms.read import read
from kcverify.source import Source

LIMIT = 300
"""Seconds that a process may take."""

IMPORT_LIMIT = 60
"""Seconds that the import of a kernel's module may take."""

_TAIL = 4096


def survey_here(kernel: Kernel, row: KernelClass) -> dict[str, Any]:
    """A shipped kernel under a class, in this process."""
    run = run_class(row, kernel.kernel, kernel.declared, kernel.protocol(row), kernel.operation)
    return answer.data(run, row.id, kernel.name)


def survey_one(kernel: Kernel, row: KernelClass) -> dict[str, Any]:
    """A shipped kernel under a class; a risky one in a process of its own."""
    if not kernel.risky:
        return survey_here(kernel, row)
    found = _apart({"row": kernel.name, "class": row.id}, LIMIT, dict(kernel.environment))
    return found if isinstance(found, dict) else _lost(found, row.id, kernel.operation, kernel.name)


def contract_here(text: str, file: str, name: str | None, kernel: str, effort: Effort = AS_WRITTEN) -> dict[str, Any]:
    """A contract from its text on a kernel, in this process."""
    return run_contract(select(kernels_of(text, file), name, file), kernel, file, effort)


def contract_apart(
    contract: KernelContract, text: str, file: str, kernel: str, limit: int = LIMIT, effort: Effort = AS_WRITTEN
) -> dict[str, Any]:
    """A contract on a kernel in a process of its own, which alone imports it.

    Raises InputError for a contract that cannot run, and for a kernel that is not there or cannot be imported.
    """
    row, _, _ = prepared(contract, file, effort)
    job = {"text": text, "file": file, "contract": contract.name, "kernel": kernel, "effort": asdict(effort)}
    shipped = BY_NAME.get(kernel)
    absent = _absent(shipped, effort)
    if absent:
        told = diagnosis("not_here", {"what": kernel, "reason": absent})
        lost = answer.crashed(row.id, contract.scope.operation, kernel, told, Verdict.INCONCLUSIVE)
        return _without(contract, file, lost)
    found = _apart(job, limit, dict(shipped.environment) if shipped is not None else {})
    if isinstance(found, dict):
        return found
    lost = _lost(found, row.id, contract.scope.operation, kernel)
    return _without(contract, file, lost)


def _absent(shipped: Kernel | None, effort: Effort) -> str:
    """Why a kernel cannot be checked here."""
    if shipped is not None and (reason := shipped.needs()):
        return reason
    return "no CUDA device" if effort.device == "cuda" and not torch.cuda.is_available() else ""


def _without(contract: KernelContract, file: str, lost: dict[str, Any]) -> dict[str, Any]:
    """The answer where no measurement was made."""
    return {
        "contract": answer.contract(contract, file), **lost, "evidence": None, "signatures": [], "raises": "",
        "calibration": [], "machine": answer.machine(),
    }  # fmt: skip


def kernels_of(text: str, file: str) -> tuple[KernelContract, ...]:
    """Kernel contracts of a text that was checked before."""
    report = Report()
    return elaborate_file(read(Source(file, text), report), report, parameters={}).kernels


def _lost(reason: str, class_id: str, operation: str, kernel: str) -> dict[str, Any]:
    slow = reason.startswith("no answer")
    verdict = Verdict.INCONCLUSIVE if slow else Verdict.VIOLATION
    return answer.crashed(class_id, operation, kernel, diagnosis("kernel_crashed", {"reason": reason}), verdict)


def _apart(job: dict[str, Any], limit: int, environment: dict[str, str]) -> dict[str, Any] | str:
    """The answer of a process, or why there is none. Raises InputError for what the process says is wrong with its input."""
    path = [str(Path.cwd()), *(p for p in sys.path if p)]
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        with (where / "said").open("w+b") as said:
            ended = _ended(where, job, limit, {**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment}, said)
            last = _last_line(said)
        found = _answer(where / "answer.json")
        imported = "row" in job or job["kernel"] in BY_NAME or (where / "imported").exists()
    if isinstance(found, dict):
        if "fault" in found:
            raise RuntimeError(found["fault"])
        if "refused" in found:
            code = BY_SLUG[found["refused"]]
            raise InputError(Diagnostic(code, found["message"], hint=code.fix))
        return found
    slow = f"no answer in {limit if imported else min(limit, IMPORT_LIMIT)} s"
    reason = slow if ended is None else _reason(ended, last)
    if not imported:
        raise input_error("kernel_not_imported", kernel=job["kernel"], reason=reason)
    return reason


def _ended(where: Path, job: dict[str, Any], limit: int, environment: dict[str, str], said: IO[bytes]) -> int | None:
    """Exit code of the process, None where it or its module's import took too long. Its children end with it."""
    command = [sys.executable, "-m", "kcverify.conformance.isolate", str(where / "answer.json")]
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, env=environment, start_new_session=True
    )
    try:
        with contextlib.suppress(BrokenPipeError):
            assert running.stdin is not None
            running.stdin.write(json.dumps(job).encode())
            running.stdin.close()
        early = min(limit, IMPORT_LIMIT) if "kernel" in job and job["kernel"] not in BY_NAME else limit
        try:
            return running.wait(early)
        except subprocess.TimeoutExpired:
            if early == limit or not (where / "imported").exists():
                return None
        try:
            return running.wait(limit - early)
        except subprocess.TimeoutExpired:
            return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def _last_line(said: IO[bytes]) -> str:
    said.seek(0, os.SEEK_END)
    said.seek(max(said.tell() - _TAIL, 0))
    lines = said.read().decode("utf-8", errors="replace").strip().splitlines()
    return "".join(c for c in lines[-1] if c.isprintable()) if lines else "no message"


def _answer(path: Path) -> dict[str, Any] | None:
    """The answer that a process wrote whole; it is put in its place at once."""
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _reason(code: int, last: str) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}: {last}"


def main(out: str, job: dict[str, Any]) -> None:
    """One job, its answer written to a file, put in its place at once."""
    try:
        if "row" in job:
            found = survey_here(BY_NAME[job["row"]], BY_ID[job["class"]])
        else:
            find(job["kernel"])
            Path(out).with_name("imported").touch()
            effort = Effort(**job["effort"])
            found = contract_here(job["text"], job["file"], job["contract"], job["kernel"], effort)
    except InputError as error:
        first = error.diagnostics[0]
        found = {"refused": first.code.slug, "message": first.message}
    except Exception as error:  # what a kernel raises is caught before: this is kcverify's own fault
        found = {"fault": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    made = Path(out).with_suffix(".part")
    made.write_text(json.dumps(found), encoding="utf-8")
    made.replace(out)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.stdin.read()))
