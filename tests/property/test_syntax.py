"""Any text at all: no traceback, no hang, a diagnostic wherever the grammar refuses, and none for valid contracts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import LarkError
from strategies import EXAMPLES, PIECES, contracts_of, mutated

from kcverify.catalog.model import Metric
from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import Contract
from kcverify.render import render_all
from kcverify.resources import grammar_text
from kcverify.source import Source
from kcverify.syntax import parse, tree

GRAMMAR = Lark(grammar_text(), parser="lalr")
FEW = settings(max_examples=60, deadline=10_000, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(max_examples=200, deadline=10_000, suppress_health_check=[HealthCheck.too_slow])


def _run(text: str) -> tuple[tree.File, tuple[Contract, ...], Report]:
    """Everything that may be done with a text, rendering included."""
    report = Report()
    file = parse(Source("x.kc", text), report)
    contracts = elaborate(file, report, parameters={})
    assert render_all(report.diagnostics) or not report.diagnostics
    for diagnostic in report.diagnostics:
        if diagnostic.span is not None:
            assert 0 <= diagnostic.span.start <= diagnostic.span.end <= len(text)
    return file, contracts, report


def _accepted(text: str) -> bool:
    try:
        GRAMMAR.parse(text.removeprefix("\ufeff") + "\n")
    except LarkError:
        return False
    return True


@MANY
@given(mutated())
def test_a_mutated_example_is_read_or_refused(text: str) -> None:
    _, _, report = _run(text)
    if not _accepted(text):
        assert report.errors


@MANY
@given(st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    _, contracts, report = _run(text)
    assert contracts or report.diagnostics


@FEW
@given(contracts_of())
def test_a_generated_contract_is_read_as_meant(generated: tuple[str, list[tuple[Metric, Fraction]]]) -> None:
    text, meant = generated
    _, (contract,), report = _run(text)
    assert report.diagnostics == []
    found = sorted([*contract.clauses, *contract.guarantees], key=lambda clause: int(clause.name[1:]))
    assert len(found) == len(meant)
    for clause, (row, value) in zip(found, meant, strict=True):
        bound = clause.limit.lower or clause.limit.upper
        assert bound is not None
        assert (clause.metric, bound.constant) == (row, value)


@FEW
@given(contracts_of(), st.sampled_from([" ", "\t", "  "]), st.sampled_from(["\n", "\r\n", "\n\n# note\n"]))
def test_layout_changes_no_tree(generated: tuple[str, object], space: str, line: str) -> None:
    text = generated[0]
    other = text.replace("\n", line).replace("  ", " ").replace(" ", space)
    assert _run(text)[0] == _run(other)[0]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_truncation_is_read_or_refused(text: str) -> None:
    for end in range(0, len(text), 29):
        _, _, report = _run(text[:end])
        assert report.errors or _accepted(text[:end])
