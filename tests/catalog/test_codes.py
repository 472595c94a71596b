"""Every row of the code table: unique, complete, and its bad and good contracts do what they say."""

from __future__ import annotations

import re
import string

import pytest

from kcverify import codes
from kcverify.codes import Code, Severity
from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.forms.read import read
from kcverify.source import Source

LANGUAGE = [row for row in codes.ROWS if row.id < "KC2"]
FINDINGS = [row for row in codes.ROWS if "KC2" <= row.id < "KC3"]
WITHOUT_CONTRACT = {
    "more_errors", "unknown_parameter", "file_too_large", "use_depth", "parent_ambiguous", "extends_depth",
    "deprecated",
}  # fmt: skip
KERNEL_NOTE = "not_enforced"


def _slugs(text: str) -> list[str]:
    report = Report()
    file = read(Source("x.kc", text), report)
    if not report.errors:
        elaborate(file, report, parameters={})
    return [slug for d in report.diagnostics if (slug := d.code.slug) != KERNEL_NOTE]


def test_identifiers_and_slugs_are_unique() -> None:
    assert len(codes.BY_ID) == len(codes.BY_SLUG) == len(codes.ROWS)
    assert all(re.fullmatch(r"KC[0-9]{3}", row.id) for row in codes.ROWS)
    assert all(re.fullmatch(r"[a-z_0-9]+", row.slug) for row in codes.ROWS)


@pytest.mark.parametrize("row", codes.ROWS, ids=lambda row: row.slug)
def test_a_row_says_why_and_what_to_do(row: Code) -> None:
    assert row.why[0].isupper() or row.why.startswith("`")
    assert row.why.endswith((".", "!"))
    assert row.fix or row.slug == "more_errors"
    holes = {name for _, name, _, _ in string.Formatter().parse(row.message) if name is not None}
    assert all(name.isidentifier() for name in holes)
    assert "{{" not in row.why + row.fix


@pytest.mark.parametrize("row", LANGUAGE, ids=lambda row: row.slug)
def test_the_bad_contract_gives_exactly_its_code_and_the_good_one_none(row: Code) -> None:
    if row.slug in WITHOUT_CONTRACT:
        assert not row.bad
        return
    assert row.bad != row.good
    assert _slugs(row.bad) == [row.slug]
    assert _slugs(row.good) == []


@pytest.mark.parametrize("row", FINDINGS, ids=lambda row: row.slug)
def test_contracts_of_findings_are_well_formed(row: Code) -> None:
    assert not row.input_fault
    assert bool(row.bad) == bool(row.good)
    for text in (row.bad, row.good):
        assert not text or _slugs(text) == []


def test_only_errors_make_the_input_unusable() -> None:
    for row in LANGUAGE:
        assert row.input_fault == (row.severity is Severity.ERROR) or row.slug == "more_errors"
