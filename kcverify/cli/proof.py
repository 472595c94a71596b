"""Commands about one contract that need no torch: derive, bounds, compile, explain."""

from __future__ import annotations

from typing import Annotated

import typer

from kcverify.cli import common
from kcverify.cli.common import (
    File,
    Format,
    Name,
    Set,
    app,
    emit,
    parameters,
    say,
    wants_json,
    write,
)


@app.command(epilog="Example: kcverify derive contracts/budget.kc")
def derive(file: File, format: Format = "text", contract: Name = None, set: Set = None) -> int:
    """Fill the `?` of a contract with the largest limit that every guarantee allows."""
    from kcverify import driver
    from kcverify.output import derive as output
    from kcverify.render import render_all

    as_json, color = wants_json(format), common.color()
    chosen = driver.select(driver.load(file, parameters=parameters(set)), contract)
    derived = driver.derive(chosen)
    if as_json:
        emit(output.data(derived))
    else:
        say(output.text(derived, color))
        if derived.report.diagnostics:
            say("\n" + render_all(derived.report.diagnostics, color=color))
    return derived.exit_code


@app.command(
    epilog="Example: kcverify bounds --given logit_drift=0.05 --assume temperature=0.7 horizon=1024 reward=0..1",
    context_settings={"allow_extra_args": True},
)
def bounds(
    context: typer.Context,
    given: Annotated[list[str] | None, typer.Option(help="the drift that is known", metavar="NAME=VALUE")] = None,
    inverse: Annotated[
        list[str] | None, typer.Option(help="the tolerance to keep; prints budgets instead", metavar="NAME=VALUE")
    ] = None,
    assume: Annotated[
        list[str] | None, typer.Option(help="assumptions, any number of them", metavar="NAME=VALUE...")
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="print what is in print beside our form", metavar="published")
    ] = None,
    format: Format = "text",
) -> int:
    """The calculator: everything that follows from a drift, or the budgets that a tolerance leaves."""
    from kcverify import arguments
    from kcverify.bounds import calculator
    from kcverify.bounds import inverse as backwards
    from kcverify.diagnostics import input_error
    from kcverify.output import bounds as output

    as_json = wants_json(format)
    known, target_word = arguments.one("--given", given), arguments.one("--inverse", inverse)
    if compare is not None:
        return _compare(compare, known, [*(assume or []), *context.args], as_json)
    parameters, rho = arguments.assumptions([*(assume or []), *context.args])
    if (known is None) == (target_word is None):
        raise input_error(
            "option_invalid",
            option="--given",
            reason="give one of --given and --inverse",
            hint="--given logit_drift=0.05",
        )
    if known is not None:
        name, value = arguments.given(known)
        lines = calculator.compute(name, value, parameters, rho)
        if as_json:
            emit(output.data(lines))
        else:
            say(output.text(lines))
        return 0
    ((target, text),) = arguments.pairs("--inverse", [str(target_word)]).items()
    if target not in backwards.TARGETS:
        raise input_error(
            "option_invalid",
            option=f"--inverse {target}",
            reason="unknown target",
            hint="known: " + ", ".join(backwards.TARGETS),
        )
    found = backwards.budgets(target, arguments.sized("--inverse", text), parameters, rho)
    if as_json:
        emit(output.inverse_data(found))
    else:
        say(output.inverse_text(found))
    return 0 if any(line.budget is not None or line.free for line in found) else 1


def _compare(word: str, given: str | None, words: list[str], as_json: bool) -> int:
    from kcverify import arguments
    from kcverify.diagnostics import input_error
    from kcverify.output import compare as output

    if word != "published":
        raise input_error(
            "option_invalid", option="--compare", reason=f"`{word}` is not published", hint="--compare published"
        )
    span, region, horizon = arguments.comparison(given, words)
    if as_json:
        emit(output.data(span, region, horizon))
    else:
        say(output.text(span, region, horizon))
    return 0


@app.command(epilog="Example: kcverify compile contracts/rl_rollout.kc -o monitor.py")
def compile(
    file: File,
    output: Annotated[
        str, typer.Option("-o", "--output", help="where to write the monitor; - is standard output", metavar="PATH")
    ] = "-",
    kernel: Annotated[
        str | None,
        typer.Option(help="also write the C++ row kernel that the monitor builds (bfloat16 logits)", metavar="PATH"),
    ] = None,
    rl: Annotated[
        str | None,
        typer.Option(help="also write the contract's masks for a trainer, a module on kcverify.rl", metavar="PATH"),
    ] = None,
    contract: Name = None,
    set: Set = None,
    format: Format = "text",
) -> int:
    """Write the torch monitor of a contract: a module that imports torch and kcverify.runtime only."""
    from kcverify import driver
    from kcverify.output import compile as answer

    as_json = wants_json(format)
    chosen = driver.select(driver.load(file, parameters=parameters(set)), contract)
    compiled = driver.compile_monitor(chosen)
    if output != "-":
        write(output, compiled.text)
    if kernel is not None:
        write(kernel, driver.kernel_of(compiled))
    if rl is not None:
        write(rl, driver.masks_of(compiled))
    if as_json:
        emit(answer.data(compiled.checked, compiled.text, None if output == "-" else output))
    elif output == "-":
        common.put(compiled.text)
    else:
        say(f"{output}: monitor of {chosen.name}, {len(compiled.text.splitlines())} lines")
    return 0


@app.command(epilog="Example: kcverify explain dead")
def explain(code: Annotated[str, typer.Argument(help="a code (KC202) or slug (dead); list prints all")]) -> int:
    """What a diagnostic means, why it matters and how to correct it."""
    from kcverify.output import explain as output

    say(output.text(code))
    return 0
