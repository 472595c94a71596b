"""Commands of the language: fmt, convert, schema, diff, init, catalogue, lsp."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kcverify.cli.common import File, Files, app, say, worse, write


@app.command(epilog="Example: kcverify fmt contracts/*.kc; in a pre-commit hook: kcverify fmt --check FILE...")
def fmt(
    files: Files,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 where a file would change")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="write nothing; print what would change")] = False,
) -> int:
    """Format contracts in place; standard input (-) is formatted to standard output."""
    from kcverify.output import format as output

    code = 0
    for path in files:
        before, after = output.format_file(path)
        name = "<stdin>" if path == "-" else path
        changed = before != after
        if diff:
            sys.stdout.write(output.difference(name, before, after))
        elif path == "-" and not check:
            sys.stdout.write(after)
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
        sys.stdout.write(text)
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
    """Write a contract in another form, without loss: the digest stays the same."""
    from kcverify.diagnostics import input_error
    from kcverify.forms.read import FORMS
    from kcverify.forms.schema import FILE
    from kcverify.output.convert import convert_file

    if to not in FORMS:
        raise input_error("option_invalid", option="--to", reason=f"`{to}` is not kc, yaml or json", hint="--to yaml")
    _deliver(convert_file(file, to, schema or FILE), output)
    return 0


@app.command(epilog="Example: kcverify schema -o kcverify.schema.json")
def schema(output: Output = "-") -> int:
    """Print the JSON Schema of the YAML and JSON forms."""
    from kcverify.forms.schema import schema as build
    from kcverify.forms.write import json_text

    _deliver(json_text(build()), output)
    return 0
