"""The answer of `convert`: one contract file in another form, after it was read without a fault."""

from __future__ import annotations

import re

from kcverify.diagnostics import InputError, Report
from kcverify.elaborate import elaborate_file
from kcverify.forms import write
from kcverify.forms.files import read_source
from kcverify.forms.read import form_of, read
from kcverify.forms.version import SCHEMA
from kcverify.source import Source
from kcverify.syntax import comments
from kcverify.syntax.printer import formatted, pretty

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_COMMENT = re.compile(r"(?:^|\s)#(?! yaml-language-server:)")


def convert_file(path: str, form: str, schema: str = SCHEMA) -> tuple[str, int]:
    """The file as `kc`, `yaml` or `json`, and how many of its comments the result leaves out.

    Raises InputError where it cannot be read or is no valid contract.
    """
    source = read_source(path)
    return convert_source(source, form, schema), 0 if form == form_of(source) == "kc" else _comments(source)


def _comments(source: Source) -> int:
    """Comments of a source; JSON has none, and the line that names the schema of YAML is none."""
    form = form_of(source)
    if form == "kc":
        return len(comments(source))
    lines = source.text.split("\n") if form == "yaml" else []
    return sum(_COMMENT.search(_QUOTED.sub("", line)) is not None for line in lines)


def convert_source(source: Source, form: str, schema: str = SCHEMA) -> str:
    """The source in another form; comments stay only from `.kc` to `.kc`. Raises InputError for a faulty contract."""
    report = Report()
    tree = read(source, report)
    if not report.errors:
        elaborate_file(tree, report, parameters={})
    if report.errors:
        raise InputError(*report.errors)
    if form == "kc":
        return formatted(tree) if form_of(source) == "kc" else pretty(tree)
    data = write.data(tree)
    return write.json_text(data) if form == "json" else write.yaml_text(data, schema)
