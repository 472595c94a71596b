"""Texts from the grammar, and YAML and JSON with broken bytes: every fault is a diagnostic, nothing hangs or raises."""

from __future__ import annotations

import json

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark
from strategies import EXAMPLES, SHIPPED, mutated_bytes

from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate_file
from kcverify.elaborate.form import digest
from kcverify.forms import write
from kcverify.forms.read import form_of, read
from kcverify.render import render_all
from kcverify.resources import grammar_text
from kcverify.source import Source
from kcverify.syntax.printer import formatted, pretty

SETTINGS = settings(max_examples=150, deadline=10_000, suppress_health_check=list(HealthCheck))


def _run(name: str, text: str) -> Report:
    """Everything that may be done with a text: read, elaborate, render, and where it parses write in every form."""
    report = Report()
    source = Source(name, text)
    tree = read(source, report)
    parsed = not report.errors
    found = elaborate_file(tree, report, parameters={})
    assert render_all(report.diagnostics) or not report.diagnostics
    for diagnostic in report.diagnostics:
        if diagnostic.span is not None:
            assert 0 <= diagnostic.span.start <= diagnostic.span.end <= len(diagnostic.span.source.text)
    if parsed:
        again = read(Source("x.kc", pretty(tree)), Report())
        assert (again.uses, again.contracts) == (tree.uses, tree.contracts)
        if form_of(source) == "kc":
            formatted(tree)
    if not report.errors:
        data = write.data(tree)
        assert write.data(read(Source("x.json", write.json_text(data)), Report())) == data
        for contract in (*found.contracts, *found.kernels):
            digest(contract)
    return report


@SETTINGS
@given(from_lark(Lark(grammar_text(), parser="lalr"), start="start"))
def test_texts_of_the_grammar(text: str) -> None:
    _run("x.kc", text)


def _converted(form: str) -> list[str]:
    out = []
    for path, text in zip(SHIPPED, EXAMPLES, strict=True):
        report = Report()
        tree = read(Source(str(path), text), report)
        if not report.errors:
            data = write.data(tree)
            out.append(write.json_text(data) if form == "json" else write.yaml_text(data, "s.json"))
    return out


YAMLS, JSONS = _converted("yaml"), _converted("json")


@SETTINGS
@given(mutated_bytes(JSONS))
def test_json_with_broken_bytes(text: str) -> None:
    report = _run("x.json", text)
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        assert report.errors


def _refuse(word: str) -> object:
    raise ValueError(word)


@SETTINGS
@given(mutated_bytes(YAMLS))
def test_yaml_with_broken_bytes(text: str) -> None:
    report = _run("x.yaml", text)
    try:
        whole = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return
    if not isinstance(whole, dict) or "contracts" not in whole:
        assert report.errors


@SETTINGS
@given(st.text(max_size=300) | st.lists(st.sampled_from(["- ", "a: ", "[", "]", "{", "}", "'", '"', "|\n", "&a", "*a", "\n", "  ", "?", "#", "---\n", "1", "!x ", "%"]), max_size=60).map("".join))  # fmt: skip
def test_any_text_as_yaml_and_json(text: str) -> None:
    assert _run("x.yaml", text).diagnostics
    assert _run("x.json", text).diagnostics
