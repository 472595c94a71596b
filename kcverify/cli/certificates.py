"""Commands on certificates: check what a certificate proves, and that it is about a given contract."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kcverify.cli.common import Format, app, emit, say, wants_json, worse
from kcverify.output.style import single

LARGEST = 64 << 20
"""Bytes of a file of certificates that are read."""

certificates = typer.Typer(no_args_is_help=True, help="Check certificates that `kcverify check --certificate` wrote.")
app.add_typer(certificates, name="certificate")
Paths = Annotated[list[str], typer.Argument(metavar="FILE...", help="certificate files; - is standard input")]
Against = Annotated[str | None, typer.Option("--contract", help="the contract that they must be about", metavar="FILE")]


@certificates.command(
    epilog="Exit codes: 0 accepted; 1 rejected, with the reason; 2 unreadable. The same without this package's other "
    "modules: python -m kcverify.prove.kernel FILE. Example: kcverify certificate check out.json --contract rl.kc"
)
def check(files: Paths, contract: Against = None, format: Format = "text") -> int:
    """Check certificates with the small kernel and print what they prove, in words."""
    from kcverify import __version__, driver

    as_json = wants_json(format)
    known = driver.load(contract) if contract is not None else None
    code, answers = 0, []
    for path in files:
        docs = _documents(path)
        readable = not isinstance(docs, str)
        accepted, lines = (False, [docs]) if isinstance(docs, str) else _verdict(docs, known)
        code = worse(code, 2 if not readable else 0 if accepted else 1)
        answers.append({"file": path, "accepted": accepted, "readable": readable, "lines": lines})
        if not as_json and not readable:
            say(single(f"{path}: unreadable: {lines[0]}"))
        elif not as_json:
            say("\n  ".join(single([f"{path}: {'accepted' if accepted else 'rejected'}", *lines])))
    if as_json:
        emit({"kcverify": __version__, "exit_code": code, "certificates": answers})
    return code


def _content(path: str) -> bytes:
    """Raises OSError; ValueError beyond `LARGEST` bytes."""
    if path == "-":
        content = sys.stdin.buffer.read(LARGEST + 1)
    else:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    return content


def _documents(path: str) -> list[Any] | str:
    """The certificates of a file, or why it holds none."""
    try:
        found = json.loads(_content(path))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except (RecursionError, ValueError) as error:
        return f"no JSON: {error}"
    docs = found if isinstance(found, list) else [found]
    good = docs and all(isinstance(d, dict) and "format" in d for d in docs)
    return docs if good else "no certificate"


def _verdict(docs: list[Any], known: tuple[Any, ...] | None) -> tuple[bool, list[str]]:
    """Whether every certificate is accepted, with its statements or the first reason against it."""
    from kcverify.prove import certificate, kernel

    lines: list[str] = []
    for doc in docs:
        try:
            lines += certificate.statement(doc)
        except kernel.BROKEN as error:
            return False, [str(error) if type(error) is ValueError else f"malformed: {error!r}"]
        if known is None:
            continue
        same = [c for c in known if c.name == doc["contract"]["name"]]
        against = certificate.differences(doc, same[0]) if same else ["the file has no contract of this name"]
        if against:
            return False, against
    return True, lines
