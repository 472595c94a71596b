"""Every snippet of the language reference is a contract without a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate_file
from kcverify.elaborate.kernel import ERRORS, SIGNATURES
from kcverify.elaborate.words import FUNCTIONS
from kcverify.forms.read import read
from kcverify.forms.version import LANGUAGE
from kcverify.render import render_all
from kcverify.source import Source

TEXT = (Path(__file__).resolve().parents[3] / "grammar" / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```(kc|yaml)(?: file=(\S+))?\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
FILES = {name: text for _, name, text in SNIPPETS if name}


def test_the_reference_has_snippets() -> None:
    assert len(SNIPPETS) >= 11
    assert FILES


@pytest.mark.parametrize(("form", "name", "text"), SNIPPETS, ids=lambda text: text.split("\n", 1)[0][:40])
def test_a_snippet_is_a_contract_without_a_fault(form: str, name: str, text: str, tmp_path: Path) -> None:
    for file, content in FILES.items():
        (tmp_path / file).write_text(content, encoding="utf-8")
    headed = form == "yaml" or re.match(r"(kernel )?contract |use ", text) is not None
    report = Report()
    source = Source(str(tmp_path / f"README.{form}"), text if headed else f"contract c\n{text}")
    found = elaborate_file(read(source, report), report, parameters={})
    assert report.errors == [], render_all(report.errors)
    assert found.contracts or found.kernels


def test_the_reference_names_what_the_tables_have() -> None:
    assert all(f"`{name}`" in TEXT for name in ERRORS)
    assert all(f"`{name}" in TEXT for name in FUNCTIONS if name not in ("finite", "shape", "rank", "contiguous"))
    assert all(f"`{verb} " in TEXT for verb in SIGNATURES)
    assert f"now `{LANGUAGE}`" in TEXT
