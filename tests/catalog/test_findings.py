"""Every row of the checker's findings: the bad contract gives exactly its code, the corrected twin does not give it."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from kcverify import codes
from kcverify.codes import Code
from kcverify.codes.findings import ROWS
from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.output.findings import page
from kcverify.prove.check import Checked, check
from kcverify.source import Source
from kcverify.syntax.parser import parse
from kcverify.syntax.printer import formatted

KERNEL_LEVEL = "not_enforced"


def checked(text: str, name: str = "x.kc") -> Checked:
    report = Report()
    tree = parse(Source(name, text), report)
    assert tree is not None
    [contract] = elaborate(tree, report, parameters={})
    assert not report.diagnostics
    return check(contract)


def found(answer: Checked) -> list[str]:
    """Slugs of the findings and of the verdicts that are not proved."""
    slugs = [d.code.slug for d in answer.report.diagnostics] + [v.code for v in answer.verdicts if v.code]
    return list(dict.fromkeys(slugs))


@pytest.mark.parametrize("row", [r for r in ROWS if r.slug != KERNEL_LEVEL], ids=lambda row: row.slug)
def test_the_bad_contract_gives_exactly_its_code_and_the_good_one_does_not(row: Code) -> None:
    assert row.bad != row.good
    assert found(checked(row.bad)) == [row.slug]
    assert found(checked(row.good)) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_finding_is_about_the_contract_and_not_about_the_input(row: Code) -> None:
    assert not row.input_fault
    assert row.why.endswith(".")
    assert row.fix[0].islower()
    holes = {name for _, name, _, _ in string.Formatter().parse(row.message) if name is not None}
    assert holes or row.slug == KERNEL_LEVEL


def test_slugs_of_verdicts_are_in_the_table() -> None:
    for slug in ("not_implied", "refuted", "guarantee_needs", "exception_missing", "sampler_unsupported"):
        assert codes.BY_SLUG[slug] in ROWS
    assert codes.BY_SLUG["lower_bound_estimator"] in ROWS
    assert codes.BY_SLUG["jensen_refused"] in ROWS


def test_a_proved_claim_has_no_code() -> None:
    [verdict] = checked(codes.BY_SLUG["not_implied"].good).verdicts
    assert verdict.code == ""


@pytest.mark.parametrize("slug", ["lower_bound_estimator", "jensen_refused"])
def test_the_reason_names_the_clause_and_what_would_do(slug: str) -> None:
    [verdict] = checked(codes.BY_SLUG[slug].bad).verdicts
    assert verdict.status == "UNKNOWN"
    assert "`sampled`" in verdict.reason or "`drift`" in verdict.reason
    assert "would prove it" in verdict.reason


def test_the_page_of_findings_shows_what_is_found(request: pytest.FixtureRequest) -> None:
    """`docs/findings.md` is what the rows give now; `--update-golden` writes it."""
    examples = []
    for row in sorted(ROWS, key=lambda r: r.id):
        source = formatted(parse(Source("example.kc", row.bad), Report())) if row.bad else ""
        examples.append((row, source, checked(source, "example.kc") if row.bad else None))
    text = page(examples)
    path = Path(__file__).parents[2] / "docs" / "findings.md"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
