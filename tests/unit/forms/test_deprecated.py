"""Deprecated words: read with a warning, replaced by `fmt`, `convert` and a quick fix; a row is given by each test."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kcverify.codes import Severity
from kcverify.diagnostics import Report
from kcverify.editor.document import analyse
from kcverify.editor.fixes import fixes
from kcverify.elaborate import elaborate
from kcverify.elaborate.form import digest
from kcverify.forms.deprecated import PLACES, ROWS, Spelling
from kcverify.forms.read import read
from kcverify.forms.version import LANGUAGE, is_readable
from kcverify.output.format import format_source
from kcverify.source import Source

ROW = Spelling("metric", "total_variation", "tv", "1.0")
OLD = Source("c.kc", "contract c\nnumerical {\n  a: total_variation <= 0.01 -> L1  # note\n}\n")
NEW = Source("c.kc", "contract c\n\nnumerical {\n  a: tv <= 0.01 -> L1  # note\n}\n")
YAML = Source(
    "c.yaml",
    'language: "1.0"\ncontracts:\n  - name: c\n    numerical:\n'
    "      a: {metric: total_variation, at_most: 0.01, severity: L1}\n",
)
EVERY = {
    "metric": "numerical { a: OLD <= 0.1 -> L1 }",
    "argument": "statistical { a: agreement(OLD = 1) >= 99% -> L1 }",
    "statistic": "numerical { a: OLD tv <= 0.1 -> L1 }",
    "assumption": "assume { OLD <= 8 tokens }",
    "role": 'pair { OLD r = "x" }',
    "field": "slice s = OLD >= 10",
    "action": "escalate { L1 -> OLD }",
    "option": "escalate { L1 -> log, OLD 10 minutes }",
    "stage": "promote { OLD { min 10 requests } }",
}
WORDS = {
    "metric": "tv", "argument": "top", "statistic": "mean", "assumption": "horizon", "role": "reference",
    "field": "prompt_tokens", "action": "log", "option": "dwell", "stage": "offline",
}  # fmt: skip


@pytest.mark.parametrize("source", [OLD, YAML], ids=["kc", "yaml"])
def test_a_deprecated_word_is_read_with_a_warning(source: Source) -> None:
    report = Report()
    (found,) = elaborate(read(source, report, (ROW,)), report, parameters={})
    (only,) = report.diagnostics
    assert (only.code.slug, only.severity) == ("deprecated", Severity.WARNING)
    assert only.message == "the metric `total_variation` is deprecated since language version 1.0"
    assert only.span is not None and only.span.text == "total_variation" and only.hint == "write `tv`"
    (new,) = elaborate(read(NEW, Report()), Report(), parameters={})
    assert digest(found) == digest(new)


def test_a_word_without_a_row_is_unknown() -> None:
    report = Report()
    elaborate(read(OLD, report), report, parameters={})
    assert [d.code.slug for d in report.diagnostics] == ["unknown_metric"]


def test_the_formatter_writes_the_new_word() -> None:
    assert format_source(OLD, (ROW,)) == NEW.text
    assert format_source(NEW, (ROW,)) == NEW.text


def test_a_quick_fix_writes_the_new_word() -> None:
    document = analyse(OLD, (ROW,))
    (only,) = document.report.diagnostics
    (fix,) = fixes(document, only, (ROW,))
    assert (fix.span.text, fix.text) == ("total_variation", "tv")


@pytest.mark.parametrize("kind", list(PLACES))
def test_every_kind_of_word_can_be_replaced(kind: str) -> None:
    word = WORDS[kind]
    old = Source("c.kc", f"contract c\n{EVERY[kind].replace('OLD', 'old_word')}\n")
    new = Source("c.kc", f"contract c\n{EVERY[kind].replace('OLD', word)}\n")
    report = Report()
    tree = read(old, report, (Spelling(kind, "old_word", word, "1.0"),))
    assert [d.code.slug for d in report.diagnostics] == ["deprecated"]
    assert tree == read(new, Report())


def test_the_table_is_of_this_language() -> None:
    for row in ROWS:
        assert is_readable(row.since) and row.kind in PLACES
    assert LANGUAGE != "1.0" or not ROWS
    for node, name in PLACES.values():
        assert name in {item.name for item in fields(node)}
