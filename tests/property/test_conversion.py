"""Every generated contract keeps its meaning and its digest through YAML, JSON and back."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from strategies import contracts_of

from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate_file
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest, pair
from kcverify.elaborate.refine import compare
from kcverify.forms import write
from kcverify.forms.read import read
from kcverify.forms.version import LANGUAGE
from kcverify.output.convert import convert_source
from kcverify.source import Source

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def _load(name: str, text: str) -> Contract:
    report = Report()
    (contract,) = elaborate_file(read(Source(name, text), report), report, parameters={}).contracts
    assert report.errors == []
    return contract


@SETTINGS
@given(contracts_of())
def test_no_loss_both_ways(generated: tuple[str, object]) -> None:
    text = generated[0]
    first = _load("x.kc", text)
    for form in ("yaml", "json"):
        there = convert_source(Source("x.kc", text), form)
        back = convert_source(Source(f"x.{form}", there), "kc")
        for other in (_load(f"x.{form}", there), _load("x.kc", back)):
            assert digest(other) == digest(first)
            assert compare(first, other) == ()
            assert [c.limit for c in other.clauses] == [c.limit for c in first.clauses]
            assert [c.text for c in other.clauses] == [c.text for c in first.clauses]


@SETTINGS
@given(contracts_of())
def test_the_canonical_form_is_the_contract(generated: tuple[str, object]) -> None:
    first = _load("x.kc", generated[0])
    again = _load("x.json", write.json_text({"language": LANGUAGE, "contracts": [pair(first)]}))
    assert digest(again) == digest(first)
    assert compare(first, again) == compare(again, first) == ()
