"""Every snippet of the language reference is a contract without a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.render import render_all
from kcverify.source import Source
from kcverify.syntax import parse

REFERENCE = Path(__file__).resolve().parents[3] / "grammar" / "README.md"
SNIPPETS = re.findall(r"^```kc\n(.*?)^```", REFERENCE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_reference_has_snippets() -> None:
    assert len(SNIPPETS) >= 7


@pytest.mark.parametrize("text", SNIPPETS, ids=lambda text: text.split("\n", 1)[0][:40])
def test_a_snippet_is_a_contract_without_a_fault(text: str) -> None:
    headed = re.match(r"(kernel )?contract ", text) is not None
    report = Report()
    elaborate(parse(Source("README.md", text if headed else f"contract c\n{text}"), report), report, parameters={})
    assert report.errors == [], render_all(report.errors)
