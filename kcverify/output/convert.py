"""The answer of `convert`: one contract file in another form, after it was read without a fault."""

from __future__ import annotations

from kcverify.diagnostics import InputError, Report
from kcverify.elaborate import elaborate_file
from kcverify.forms import write
from kcverify.forms.files import read_source
from kcverify.forms.read import form_of, read
from kcverify.forms.version import SCHEMA
from kcverify.source import Source
from kcverify.syntax.printer import formatted, pretty


def convert_file(path: str, form: str, schema: str = SCHEMA) -> str:
    """The file as `kc`, `yaml` or `json`. Raises InputError where it cannot be read or is no valid contract."""
    return convert_source(read_source(path), form, schema)


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
