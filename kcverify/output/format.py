"""The answer of `fmt`: a contract file in its one layout, and what that changes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kcverify.diagnostics import InputError, Report, input_error
from kcverify.forms.deprecated import ROWS as DEPRECATED
from kcverify.forms.deprecated import Spelling, renewed
from kcverify.forms.files import read_source
from kcverify.source import Source
from kcverify.syntax.parser import parse
from kcverify.syntax.printer import formatted


def format_source(source: Source, spellings: Iterable[Spelling] = DEPRECATED) -> str:
    """The text of a `.kc` source in its one layout, deprecated words replaced. Raises InputError where it does not parse."""
    report = Report()
    tree = renewed(parse(source, report), report, spellings)
    if report.errors:
        raise InputError(*report.errors)
    return formatted(tree)


def format_file(path: str) -> tuple[str, str]:
    """The text of a file as it is, and in its one layout. Raises InputError: unreadable, broken, or not `.kc`."""
    if path.endswith((".yaml", ".yml", ".json")):
        reason = "only the `.kc` form has a layout of its own"
        raise input_error("option_invalid", option=path, reason=reason, hint="see `kcverify convert --to kc`")
    source = read_source(path)
    return source.text, format_source(source)


def difference(name: str, before: str, after: str) -> str:
    """A unified diff, empty where nothing changes."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, f"{name} (formatted)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ no newline at end of file\n" for line in lines)
