"""Commands on single kernels: calibrate the classes, run a kernel contract, survey the shipped kernels, keep records."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

import typer

from kcverify.cli import common
from kcverify.cli.common import Format, Name, app, emit, say, wants_json, writable, write

conformance = typer.Typer(
    no_args_is_help=True, help="Kernel contracts on real kernels: twelve classes, derived tolerances, calibration."
)
app.add_typer(conformance, name="conformance")

Class = Annotated[
    list[str] | None, typer.Option("--class", help="classes to look at; all if not given", metavar="C-PRC-01")
]
File = Annotated[str, typer.Argument(metavar="FILE", help="a file with a kernel contract; - is standard input")]
Kernel = Annotated[
    str,
    typer.Option(
        "--kernel", help="a callable to import, or a name of `conformance kernels`", metavar="MODULE:FUNCTION"
    ),
]
Here = Annotated[
    bool, typer.Option("--same-process", help="call the kernel in this process; a crash then ends the command")
]


Trials = Annotated[
    int | None,
    typer.Option("--trials", min=1, help="draws in all; fewer than the contract's are inconclusive", metavar="N"),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", min=0, help="seconds for drawing; what is reached is printed", metavar="SECONDS"),
]
Device = Annotated[str, typer.Option("--device", help="where a kernel of yours gets its operands", metavar="cpu|cuda")]
Html = Annotated[str | None, typer.Option("--html", help="write a self-contained report as well", metavar="PATH")]


@conformance.command(
    epilog="Exit codes: 0 every class tells its kernels apart; 1 one does not. Example: kcverify conformance calibrate"
)
def calibrate(classes: Class = None, format: Format = "text") -> int:
    """Each class against a baseline, a bad and a good kernel: ordinary tests miss the bad one, the contract must not."""
    from kcverify import __version__

    as_json, rows = wants_json(format), _classes(classes)
    from kcverify.conformance.calibrate import calibrate as work
    from kcverify.output import conformance as output

    found = work(rows)
    code = 0 if all(row["calibrated"] for row in found) else 1
    answer = {"kcverify": __version__, "exit_code": code, "classes": found}
    if as_json:
        emit(answer)
    else:
        say(output.calibration(answer, common.color()))
    return code


@conformance.command(
    epilog="Exit codes: 0 within tolerance; 1 violation, or the contract is under-specified; 2 wrong input; 3 inconclusive. "
    "Example: kcverify conformance run contracts/kernels/int8_product.kc --kernel int_mm"
)
def run(
    file: File, kernel: Kernel, contract: Name = None, same_process: Here = False, trials: Trials = None,
    budget: Budget = None, device: Device = "", html: Html = None, format: Format = "text",
) -> int:  # fmt: skip
    """Run a kernel contract on a callable: its class's checks, the contract's own tolerance, and the contract's calibration."""
    from kcverify.output import conformance as output

    as_json = wants_json(format)
    if html is not None:
        writable(html)
    found = _run(file, kernel, contract, same_process, trials, budget, device)
    if html is not None:
        from kcverify.conformance.record import entry
        from kcverify.emit.conformance import render

        write(html, render({**found, "reproduce": entry(found)["reproduce"]}))
    if as_json:
        emit(found)
    else:
        common.tell(output.run, found)
    return int(found["exit_code"])


@conformance.command(epilog="Example: kcverify conformance record int8.kc --kernel int_mm --output entry.json")
def record(
    file: File, kernel: Kernel,
    output: Annotated[str, typer.Option("--output", "-o", help="the entry to write", metavar="PATH")],
    contract: Name = None, same_process: Here = False, trials: Trials = None, budget: Budget = None, device: Device = "",
    format: Format = "text",
) -> int:  # fmt: skip
    """Run a kernel contract and write an entry of the corpus: machine, tolerance with derivation, measurement, verdict."""
    from kcverify.conformance.record import entry

    as_json = wants_json(format)
    writable(output)
    found = _run(file, kernel, contract, same_process, trials, budget, device)
    made = entry(found)
    write(output, json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if as_json:
        emit(made)
    else:
        say(f"{output}: {found['kernel']} under {found['contract']['name']}: {found['verdict']}")
    return int(found["exit_code"])


@conformance.command(
    epilog="Exit codes: 0 the same verdict; 1 another one; 2 not comparable. Example: kcverify conformance compare a.json b.json"
)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="an entry")],
    b: Annotated[str, typer.Argument(metavar="B", help="an entry of the same contract and kernel")],
    format: Format = "text",
) -> int:
    """Compare the entries of two machines: machine, readings, verdict."""
    from kcverify import __version__
    from kcverify.conformance.record import compare as work
    from kcverify.conformance.record import load
    from kcverify.output import conformance as output

    as_json = wants_json(format)
    found = work(load(a), load(b), (a, b))
    code = 0 if found["same_verdict"] else 1
    if as_json:
        emit({"kcverify": __version__, "exit_code": code, **found})
    else:
        common.tell(output.entries, found)
    return code


@conformance.command(
    epilog="Exit codes: 0 all within tolerance; 1 a violation; 3 none is at hand here. Example: kcverify conformance survey --class C-PRC-01"
)
def survey(
    classes: Class = None,
    only: Annotated[list[str] | None, typer.Option("--kernel", help="shipped kernels to look at", metavar="NAME")] = None,
    format: Format = "text",
) -> int:  # fmt: skip
    """Every shipped kernel under every class that can be about it: which leave their declaration on this machine."""
    as_json, rows = wants_json(format), _classes(classes)
    from kcverify import __version__
    from kcverify.conformance import answer
    from kcverify.conformance.isolate import survey_one, together
    from kcverify.conformance.kernels import BY_NAME, ROWS
    from kcverify.diagnostics import input_error
    from kcverify.output import conformance as output

    for name in only or ():
        if name not in BY_NAME:
            raise input_error("kernel_not_found", kernel=name, reason="not a name of the table")
    kept = [row for row in ROWS if only is None or row.name in only]
    missing = [{"kernel": k.name, "reason": reason} for k in kept if (reason := k.needs())]
    calls = [(k.risky, partial(survey_one, k, c)) for k in kept if not k.needs() for c in rows if k.applies(c)]
    runs = together(calls)
    code = (0 if all(r["verdict"] == "within_tolerance" for r in runs) else 1) if runs else 3
    found = {"kcverify": __version__, "exit_code": code, "runs": runs, "not_here": missing, "machine": answer.machine()}
    if as_json:
        emit(found)
    else:
        common.tell(output.survey, found)
    return code


@conformance.command(
    epilog="Exit codes: 0 every trap behaves as expected here; 1 one does not; 3 none is at hand. Example: kcverify conformance traps --only int8"
)
def traps(
    only: Annotated[list[str] | None, typer.Option("--only", help="rows whose text holds this", metavar="TEXT")] = None,
    format: Format = "text",
) -> int:
    """Known faults of kernels, each under the shipped contract that finds it: expected and found on this machine."""
    as_json = wants_json(format)
    _torch()
    from kcverify import __version__
    from kcverify.conformance import answer
    from kcverify.conformance.traps import ROWS, outcomes
    from kcverify.output import conformance as output

    kept = [t for t in ROWS if not only or any(o in f"{t.source} {t.about} {t.contract} {t.kernel}" for o in only)]
    rows = outcomes(kept)
    code = 1 if any(row["as_expected"] is False for row in rows) else 0 if any(row["found"] for row in rows) else 3
    found = {"kcverify": __version__, "exit_code": code, "traps": rows, "machine": answer.machine()}
    if as_json:
        emit(found)
    else:
        say(output.traps(found, common.color()))
    return code


@conformance.command(epilog="Example: kcverify conformance kernels")
def kernels(format: Format = "text") -> int:
    """List the shipped kernels, what they are declared to be, and the classes that can be about them."""
    as_json, classes = wants_json(format), _classes(None)
    from kcverify import __version__
    from kcverify.conformance.kernels import ROWS
    from kcverify.output import conformance as output

    rows = [
        {
            "kernel": k.name, "operation": k.operation, "note": k.note, "classes": [c.id for c in classes if k.applies(c)],
            "formats": f"{k.declared.inputs} -> {k.declared.accumulator} -> {k.declared.output}",
        }
        for k in ROWS
    ]  # fmt: skip
    if as_json:
        emit({"kcverify": __version__, "exit_code": 0, "kernels": rows})
    else:
        say(output.kernels(rows))
    return 0


@conformance.command(
    context_settings={"allow_extra_args": True},
    epilog="Example: kcverify conformance logits --reference demo:float32 --candidate demo:bfloat16 "
    "--assume temperature=0.7 horizon=256 reward=0..1",
)
def logits(
    context: typer.Context,
    reference: Annotated[str, typer.Option(help="a shipped model and format", metavar="MODEL:FORMAT")],
    candidate: Annotated[str, typer.Option(help="the same model in another format", metavar="MODEL:FORMAT")],
    assume: Annotated[list[str] | None, typer.Option(help="assumptions, any number of them", metavar="NAME=VALUE...")] = None,
    data: Annotated[str | None, typer.Option("--data", help="text to measure on; the shipped one if not given", metavar="PATH")] = None,
    limit: Annotated[int, typer.Option("--limit", help="largest number of windows of 256 tokens")] = 2,
    gguf: Annotated[str | None, typer.Option("--gguf", help="file of SmolLM2", metavar="PATH")] = None,
    format: Format = "text",
) -> int:  # fmt: skip
    """From the head kernel's tolerance to logit drift, and from there to the policy gradient: attested, and measured beside it."""
    from kcverify import __version__, arguments
    from kcverify.output import conformance as output

    as_json = wants_json(format)
    _torch()
    parameters, rho = arguments.assumptions([*(assume or []), *context.args])
    from kcverify.bounds.calculator import compute
    from kcverify.conformance.head import of_formats
    from kcverify.exact import monitor_float_up
    from kcverify.output import bounds

    found = of_formats(reference, candidate, data, limit, gguf)
    value = found["attested"].pop("value")
    lines = compute("logit_drift", value, parameters, rho)
    found["attested"]["logit_drift"] = monitor_float_up(value)
    answer = {"kcverify": __version__, "exit_code": 0, "reference": reference, "candidate": candidate, **found}
    if as_json:
        emit({**answer, "follows": bounds.data(lines)})
    else:
        say(output.logits(answer, bounds.text(lines), common.color()))
    return 0


def _classes(names: list[str] | None) -> tuple[Any, ...]:
    """Rows of the classes asked for. Raises InputError: `option_invalid`, `extra_missing`."""
    from kcverify.diagnostics import input_error

    _torch()
    from kcverify.conformance.table import BY_ID, ROWS

    for name in names or ():
        if name not in BY_ID:
            raise input_error(
                "option_invalid", option="--class", reason=f"no class `{name}`", hint=f"one of {', '.join(BY_ID)}"
            )
    return ROWS if not names else tuple(row for row in ROWS if row.id in names)


def _torch() -> None:
    """Raise InputError `extra_missing` where torch is not installed."""
    from importlib.util import find_spec

    from kcverify.diagnostics import input_error

    if find_spec("torch") is None:
        raise input_error("extra_missing", package="torch")


def _run(
    file: str, kernel: str, name: str | None, same_process: bool, trials: int | None, budget: float | None, device: str
) -> dict[str, Any]:
    from kcverify.conformance.lookup import check_module
    from kcverify.diagnostics import input_error

    _torch()
    check_module(kernel)
    if device not in ("", "cpu", "cuda"):
        raise input_error("option_invalid", option="--device", reason=f"no device `{device}`", hint="cpu or cuda")
    from kcverify import __version__, driver
    from kcverify.conformance import answer, contract, isolate
    from kcverify.conformance.kernels import BY_NAME
    from kcverify.conformance.model import Verdict
    from kcverify.conformance.sampling import Effort
    from kcverify.diagnostics import InputError
    from kcverify.forms.files import read_source

    loaded = driver.load_source(read_source(file))
    if loaded.report.errors:
        raise InputError(*loaded.report.errors)
    chosen = contract.select(loaded.kernels, name, file)
    effort = Effort(trials, budget, device)
    shipped = BY_NAME.get(kernel)
    if same_process and (shipped is None or not (shipped.environment or shipped.needs())):
        found = contract.run_contract(chosen, kernel, file, effort)
    else:
        found = isolate.contract_apart(chosen, loaded.source.text, file, kernel, effort=effort)
    return {"kcverify": __version__, "exit_code": answer.EXIT[Verdict(found["verdict"])], **found}
