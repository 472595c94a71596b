"""Runs a check in a process of its own: whatever a kernel or its module does there becomes a finding, not the end of the tool."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kcverify.codes import BY_SLUG
from kcverify.conformance import answer, memory
from kcverify.conformance.contract import prepared, run_contract, select
from kcverify.conformance.forks import child, server
from kcverify.conformance.form import printable
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


def together(calls: Sequence[tuple[bool, Callable[[], dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Answers of calls in their order; those that are marked wait for a process of their own, and do so beside the others."""
    server()
    with ThreadPoolExecutor(1) as waiting:
        later = [waiting.submit(call) if apart else None for apart, call in calls]
        return [found.result() for found in [one or _done(call) for one, (_, call) in zip(later, calls, strict=True)]]


def _done(call: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
    out: Future[dict[str, Any]] = Future()
    out.set_result(call())
    return out


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


@dataclass(frozen=True)
class Lost:
    """Why a process gave no answer: a code and what it says."""

    slug: str
    said: dict[str, object]


def _lost(one: Lost, class_id: str, operation: str, kernel: str) -> dict[str, Any]:
    """A crash is a violation; a kernel that was not seen to the end is neither that nor within its tolerance."""
    verdict = Verdict.VIOLATION if one.slug == "kernel_crashed" else Verdict.INCONCLUSIVE
    return answer.crashed(class_id, operation, kernel, diagnosis(one.slug, one.said), verdict)


def _apart(job: dict[str, Any], limit: int, environment: dict[str, str]) -> dict[str, Any] | Lost:
    """The answer of a process, or why there is none. Raises InputError for what the process says is wrong with its input."""
    shipped = "row" in job or job["kernel"] in BY_NAME
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        where = Path(folder)
        ended = _ended(where, job, limit, environment)
        last = _last_line(where / "said")
        found = _answer(where / "answer.json")
        gone = not where.is_dir()
        imported = shipped or gone or (where / "imported").exists()
    if found is not None and "refused" in found:
        code = BY_SLUG[found["refused"]]
        raise InputError(Diagnostic(code, found["message"], hint=code.fix))
    if found is not None and "fault" in found:
        if shipped:
            raise RuntimeError(found["fault"])
        return Lost("check_disturbed", {"reason": printable(str(found["fault"]))})
    if found is not None:
        return found
    if gone:
        return Lost("check_disturbed", {"reason": "the folder of its answer is gone"})
    if ended is None and imported:
        return Lost("kernel_slow", {"seconds": limit})
    reason = f"no answer in {min(limit, IMPORT_LIMIT)} s" if ended is None else _reason(ended, last)
    if not imported:
        raise input_error("kernel_not_imported", kernel=job["kernel"], reason=reason)
    return Lost("kernel_crashed", {"reason": reason})


def _ended(where: Path, job: dict[str, Any], limit: int, environment: dict[str, str]) -> int | None:
    """Exit code of the process, None where it or its module's import took too long. Its children end with it."""
    with child(__name__, "main", [str(where / "answer.json"), job], where / "said", environment) as running:
        early = min(limit, IMPORT_LIMIT) if "kernel" in job and job["kernel"] not in BY_NAME else limit
        status = running.wait(early)
        if status is not None or early == limit or not (where / "imported").exists():
            return status
        return running.wait(limit - early)


def _last_line(said: Path) -> str:
    if not said.is_file():
        return "no message"
    with said.open("rb") as told:
        told.seek(0, os.SEEK_END)
        told.seek(max(told.tell() - _TAIL, 0))
        lines = told.read().decode("utf-8", errors="replace").strip().splitlines()
    return "".join(c for c in lines[-1] if c.isprintable()) if lines else "no message"


def _answer(path: Path) -> dict[str, Any] | None:
    """The answer that a process wrote whole; it is put in its place at once. None where there is none, or another hand wrote it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    whole = "fault" in found or ("refused" in found and found["refused"] in BY_SLUG) or set(found) >= _KEYS
    return found if whole else None


_KEYS = {"class", "operation", "kernel", "verdict", "declared", "worst", "readings", "findings", "notes"}
"""Keys of every answer about a kernel."""


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
            if job["kernel"] not in BY_NAME:
                memory.bound()
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
