"""Commands of the language: fmt, convert, schema, diff, init, catalogue, lsp."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kcverify.cli.common import (
    File,
    Files,
    Format,
    Name,
    app,
    color,
    complain,
    emit,
    folder,
    note,
    put,
    say,
    wants_json,
    worse,
    write,
)


@app.command(epilog="Example: kcverify fmt contracts/*.kc; in a pre-commit hook: kcverify fmt --check FILE...")
def fmt(
    files: Files,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 where a file would change")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="write nothing; print what would change")] = False,
) -> int:
    """Format contracts in place; standard input (-) is formatted to standard output."""
    from kcverify.diagnostics import InputError
    from kcverify.output import format as output

    code = 0
    for path in files:
        try:
            before, after = output.format_file(path)
        except InputError as error:
            complain(error)
            code = worse(code, 2)
            continue
        name = "<stdin>" if path == "-" else path
        changed = before != after
        if diff:
            put(output.difference(name, before, after))
        elif path == "-" and not check:
            put(after)
        elif changed and not check:
            write(path, after)
            say(f"{name}: formatted")
        if check and changed:
            say(f"{name}: would be formatted")
            code = worse(code, 1)
    return code


Target = Annotated[str, typer.Option("--to", help="form of the result", metavar="kc|yaml|json")]
Output = Annotated[str, typer.Option("-o", "--output", help="where to write; - is standard output", metavar="PATH")]


def _deliver(text: str, output: str) -> None:
    """Write a result to a file or to standard output."""
    if output == "-":
        put(text)
    else:
        write(output, text)
        say(f"{output}: written")


@app.command(epilog="Example: kcverify convert contracts/rl_rollout.kc --to yaml -o rollout.contract.yaml")
def convert(
    file: File,
    to: Target,
    output: Output = "-",
    schema: Annotated[str, typer.Option(help="schema that the modeline of YAML names", metavar="PATH")] = "",
) -> int:
    """Write a contract in another form, without loss but for comments: the digest stays the same."""
    from kcverify.diagnostics import input_error
    from kcverify.forms.read import FORMS
    from kcverify.forms.version import SCHEMA
    from kcverify.output.convert import convert_file

    if to not in FORMS:
        raise input_error("option_invalid", option="--to", reason=f"`{to}` is not kc, yaml or json", hint="--to yaml")
    text, lost = convert_file(file, to, schema or SCHEMA)
    _deliver(text, output)
    if lost:
        some = "1 comment stays" if lost == 1 else f"{lost} comments stay"
        note(f"{some} behind: they are no part of a contract, and only `.kc` to `.kc` keeps them")
    return 0


@app.command(epilog="Example: kcverify schema -o kcverify.schema.json")
def schema(output: Output = "-") -> int:
    """Print the JSON Schema of the YAML and JSON forms."""
    from kcverify.docgen.schema import schema as build
    from kcverify.forms.write import json_text

    _deliver(json_text(build()), output)
    return 0


@app.command(epilog="Example: kcverify diff main.kc branch.kc; exit code 1 when the second is weaker")
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="NEW")],
    contract: Name = None,
    format: Format = "text",
) -> int:
    """Compare two versions of a contract: what was tightened, loosened, added and removed."""
    from kcverify.output import diff as output

    as_json = wants_json(format)
    found = output.compare_files(old, new, contract)
    if as_json:
        emit(output.data(found))
    else:
        say(output.text(found, color()))
    return output.exit_code(found)


def _question(words: str, default: str) -> str:
    return str(typer.prompt(words, default=default, err=True))


@app.command(epilog="Example: kcverify init --horizon 1024 --tolerance 0.05 --exception 0.001% -o rollout.kc")
def init(
    name: Annotated[str | None, typer.Option(help="name of the contract")] = None,
    reference: Annotated[str | None, typer.Option(help="the kernel that is trusted")] = None,
    candidate: Annotated[str | None, typer.Option(help="the kernel that is to replace it")] = None,
    temperature: Annotated[str | None, typer.Option(help="sampling temperatures", metavar="LOW..HIGH")] = None,
    horizon: Annotated[str | None, typer.Option(help="most tokens of one response", metavar="N")] = None,
    reward: Annotated[str | None, typer.Option(help="range of the reward", metavar="LOW..HIGH")] = None,
    tolerance: Annotated[str | None, typer.Option(help="how far the expected reward may move", metavar="X")] = None,
    exception: Annotated[str | None, typer.Option(help="share of tokens that may exceed", metavar="SHARE")] = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="ask nothing")] = False,
    output: Output = "-",
) -> int:
    """Write a first contract that checks: asks what is not given, and derives the limit from the tolerance."""
    from kcverify.output import init as questions

    options = {
        "name": name, "reference": reference, "candidate": candidate, "temperature": temperature,
        "horizon": horizon, "reward": reward, "tolerance": tolerance, "exception": exception,
    }  # fmt: skip
    given = {key: value for key, value in options.items() if value is not None}
    asks = _question if sys.stdin.isatty() and not defaults else None
    _deliver(questions.contract_text(questions.ask(given, asks)), output)
    return 0


@app.command(epilog="Example: kcverify catalogue metrics --format json")
def catalogue(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[metrics|lemmas|codes|units|assumptions]...")] = None,
    format: Format = "text",
    pages: Annotated[str | None, typer.Option(help="write the generated pages into this folder", metavar="DIR")] = None,
) -> int:
    """Print the tables of the language: metrics, lemmas, codes, units, assumptions."""
    from pathlib import Path

    from kcverify.diagnostics import input_error
    from kcverify.output import catalogue as output

    as_json = wants_json(format)
    if pages is not None:
        from kcverify.docgen.pages import pages as build

        for name, text in build().items():
            path = Path(pages) / name
            folder(path.parent)
            _deliver(text, str(path))
        return 0
    for name in tables or ():
        if name not in output.TABLES:
            hint = f"use one of: {', '.join(output.TABLES)}"
            raise input_error("option_invalid", option="catalogue", reason=f"no table `{name}`", hint=hint)
    chosen = tuple(tables or output.TABLES)
    if as_json:
        emit(output.data(chosen))
    else:
        say(output.text(chosen))
    return 0


@app.command()
def lsp() -> int:
    """Run the language server on standard input and output, for editors."""
    from kcverify.diagnostics import input_error

    try:
        from kcverify.editor.server import build
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pygls", "lsprotocol", "cattrs"):
            raise
        raise input_error("extra_missing", package="pygls", hint="pip install 'kcverify[lsp]'") from None
    build().start_io()
    return 0
