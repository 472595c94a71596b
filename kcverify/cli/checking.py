"""The command `check`: proofs and findings of contracts, in every format that people and machines read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kcverify.cli import common
from kcverify.cli.common import RANK, Files, Name, Set, app, emit, parameters, say, worse, write

if TYPE_CHECKING:
    from kcverify.diagnostics import Diagnostic
    from kcverify.prove.check import Checked
    from kcverify.prove.second_solver import Opinion

    File = tuple[str, list[Diagnostic], list[Checked]]

FORMATS = ("text", "json", "sarif", "junit", "github")
Format = Annotated[str, typer.Option("--format", help="text, json, sarif, junit or github", metavar="FORMAT")]
Level = Annotated[
    str | None,
    typer.Option(
        "--fail-level", help="findings about clauses below this severity do not fail the run", metavar="L1|L2|L3"
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="show a minimal proof of each guarantee, step by step")]
Cores = Annotated[bool, typer.Option("--all-cores", help="show all minimal sets of clauses that contradict or prove")]
Certificate = Annotated[
    str | None, typer.Option("--certificate", help="write a re-checkable certificate", metavar="PATH")
]
Coq = Annotated[
    str | None, typer.Option("--coq", help="write a Coq file that compiles against proofs/", metavar="PATH")
]
Second = Annotated[bool, typer.Option("--second-solver", help="re-check proofs with cvc5 (extra `kcverify[cvc5]`)")]


@dataclass(frozen=True)
class Extras:
    """What is shown or written beyond the verdicts."""

    explain: bool
    every: bool
    certificate: str | None
    coq: str | None
    second: bool


@app.command(epilog="Example: kcverify check contracts/rl_rollout.kc --explain --certificate out.json")
def check(
    files: Files, format: Format = "text", contract: Name = None, set: Set = None, fail_level: Level = None,
    explain: Explain = False, all_cores: Cores = False, certificate: Certificate = None, coq: Coq = None,
    second_solver: Second = False,
) -> int:  # fmt: skip
    """Prove the guarantees of contracts and report what is wrong with their clauses."""
    from kcverify.diagnostics import input_error
    from kcverify.output import verdicts

    if format not in FORMATS:
        raise input_error("option_invalid", option="--format", reason=f"`{format}` is not one of {', '.join(FORMATS)}")
    level = verdicts.check_level(fail_level)
    if format not in ("text", "json") and (explain or all_cores or second_solver):
        options = {"--explain": explain, "--all-cores": all_cores, "--second-solver": second_solver}
        option = next(name for name, given in options.items() if given)
        reason = f"`--format {format}` has no place for it"
        raise input_error("option_invalid", option=option, reason=reason, hint="use `--format text` or `--format json`")
    for option, path in (("--certificate", certificate), ("--coq", coq)):
        if path == "-":
            reason = "standard output holds the answer"
            raise input_error("option_invalid", option=option, reason=reason, hint="name a file")
    extras = Extras(explain or all_cores, all_cores, certificate, coq, second_solver)
    values = parameters(set)
    show = _text(extras) if format == "text" else None
    found = [_one(path, contract, values, show) for path in files]
    code = 0
    for _, diagnostics, checked in found:
        bad = any(d.code.input_fault for d in diagnostics)
        code = worse(code, 2 if bad else max((c.exit_code for c in checked), key=RANK.index, default=0))
    code = verdicts.exit_code(verdicts.results(found), code, level)
    _print(format, found, code, extras)
    _write(found, extras)
    return code


def _one(path: str, name: str | None, values: dict[str, Any], show: Callable[[File], None] | None) -> File:
    from kcverify import driver
    from kcverify.diagnostics import InputError
    from kcverify.prove.check import check as prove

    checked: list[Checked] = []
    try:
        loaded = driver.load_source(driver.read_source(path), values)
        found = list(loaded.report.diagnostics)
        if not loaded.report.errors:
            chosen = loaded.contracts if name is None else (driver.select(loaded.contracts, name),)
            checked = [prove(c, driver.limits()) for c in chosen]
    except InputError as error:
        found = list(error.diagnostics)
    result = (path, found, checked)
    if show is not None:
        show(result)
    return result


def _text(extras: Extras) -> Callable[[File], None]:
    """Prints each file as soon as it is done."""
    from kcverify.output import check as output
    from kcverify.output import explain_proof as reasons
    from kcverify.render import render_all

    def show(file: File) -> None:
        color = common.color()
        _, found, checked = file
        parts = [render_all(found, color=color)] if found else []
        for c in checked:
            parts.append(output.text(c, color))
            if extras.explain:
                parts.append(reasons.explain_text(c, color, every=extras.every))
            if extras.second:
                parts.append("\n".join(map(_opinion, _opinions(c))))
            if extras.certificate is not None:
                from kcverify.prove.certificate import certificate, coverage_text

                parts.append(coverage_text(certificate(c)))
        say("\n\n".join(part for part in parts if part) + "\n")

    return show


def _opinions(checked: Checked) -> tuple[Opinion, ...]:
    """What the second solver says of every proof. Raises InputError: `extra_missing`."""
    from kcverify.diagnostics import input_error

    try:
        from kcverify.prove.second_solver import opinions
    except ModuleNotFoundError as error:
        if error.name != "cvc5":
            raise
        raise input_error("extra_missing", package="cvc5", hint="pip install 'kcverify[cvc5]'") from None
    return opinions(checked)


def _opinion(o: Opinion) -> str:
    return f"  cvc5 on {o.guarantee}{f' on {o.scope}' if o.scope else ''}: {o.word}"


def _print(format: str, found: list[File], code: int, extras: Extras) -> None:
    from kcverify.output import check as output
    from kcverify.output import explain_proof as reasons
    from kcverify.output import github, junit, sarif, verdicts

    results = verdicts.results(found)
    if format == "text":
        kernels = sum(d.code.slug == "not_enforced" for _, diagnostics, _ in found for d in diagnostics)
        say(output.closing([c for _, _, checked in found for c in checked], common.color(), kernels))
    elif format == "json":
        answer = output.data(found, code)
        pairs = [
            p
            for f, (_, _, cs) in zip(answer["files"], found, strict=True)
            for p in zip(f["contracts"], cs, strict=True)
        ]
        for shown, c in pairs:
            if extras.explain:
                shown["explained"] = reasons.explain_data(c, every=extras.every)
            if extras.certificate is not None:
                from kcverify.prove.certificate import certificate, coverage

                shown["certificate"] = coverage(certificate(c))
            if extras.second:
                shown["second_solver"] = [
                    {"guarantee": o.guarantee, "slice": o.scope or None, "word": o.word} for o in _opinions(c)
                ]
        emit(answer)
    elif format == "sarif":
        emit(sarif.data(results))
    elif format == "junit":
        common.put(junit.text(results))
    else:
        common.command(github.text(results))


def _write(found: list[File], extras: Extras) -> None:
    checked = [c for _, _, cs in found for c in cs]
    if extras.certificate is not None and checked:
        from kcverify.prove.certificate import certificate, text

        write(extras.certificate, text([certificate(c) for c in checked]))
    if extras.coq is not None and checked:
        from kcverify.emit.coq import emit_coq

        write(extras.coq, "\n".join(emit_coq(c) for c in checked))
