"""YAML and JSON: no loss both ways, one digest, a schema that fits, and exact places."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
import yaml

from kcverify.diagnostics import Diagnostic, InputError, Report
from kcverify.docgen.schema import schema
from kcverify.elaborate import Elaborated, elaborate_file
from kcverify.elaborate.contract import Clause, Contract
from kcverify.elaborate.form import digest, kernel, pair
from kcverify.forms import write
from kcverify.forms.files import read_source
from kcverify.forms.items import CHARACTERS
from kcverify.forms.read import form_of, read
from kcverify.forms.version import LANGUAGE, is_readable
from kcverify.output.convert import convert_source
from kcverify.render import render_all
from kcverify.source import Source, Span

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted(path for folder in ("tests/data", "contracts") for path in (ROOT / folder).rglob("*.kc"))
NOWHERE = Span(Source("x", ""), 0, 0)


def _load(name: str, text: str) -> tuple[Elaborated, list[Diagnostic]]:
    report = Report()
    tree = read(Source(name, text), report)
    found = elaborate_file(tree, report, parameters={})
    return found, report.errors


def _without_places(item: Contract | object) -> object:
    """A typed contract without what differs between files that mean the same."""
    if isinstance(item, Clause):
        return replace(item, span=NOWHERE, value_span=NOWHERE)
    if not isinstance(item, Contract):
        return replace(item, span=NOWHERE)  # type: ignore[type-var]
    changes = {name: tuple(_without_places(part) for part in getattr(item, name))
               for name in ("roles", "slices", "clauses", "guarantees", "actions", "stages")}  # fmt: skip
    watched = replace(item.observability, span=None) if item.observability is not None else None
    assumptions = replace(item.assumptions, spans={})
    return replace(item, span=NOWHERE, observability=watched, assumptions=assumptions, **changes)  # type: ignore[arg-type]


def _all(found: Elaborated) -> list[object]:
    return [_without_places(item) for item in (*found.contracts, *found.kernels)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_there_and_back(path: Path, form: str) -> None:
    source = Source(str(path), path.read_text(encoding="utf-8"))
    first, errors = _load(source.name, source.text)
    if errors:
        pytest.skip("a contract that shows a fault")
    there = convert_source(source, form)
    second, errors = _load(str(path.with_suffix(f".{form}")), there)
    assert errors == []
    back = convert_source(Source(str(path.with_suffix(f".{form}")), there), "kc")
    third, errors = _load(source.name, back)
    assert errors == []
    assert _all(first) == _all(second) == _all(third)
    for one, other in zip((*first.contracts, *first.kernels), (*second.contracts, *second.kernels), strict=True):
        assert digest(one) == digest(other)
    assert convert_source(Source(f"x.{form}", there), form) == there


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_written_fits_the_schema(path: Path) -> None:
    source = Source(str(path), path.read_text(encoding="utf-8"))
    if _load(source.name, source.text)[1]:
        pytest.skip("a contract that shows a fault")
    check = jsonschema.Draft202012Validator(schema())
    check.validate(json.loads(convert_source(source, "json")))
    check.validate(yaml.safe_load(convert_source(source, "yaml")))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_canonical_form_means_the_same(path: Path) -> None:
    found, errors = _load(str(path), path.read_text(encoding="utf-8"))
    if errors:
        pytest.skip("a contract that shows a fault")
    for contract in (*found.contracts, *found.kernels):
        form = pair(contract) if isinstance(contract, Contract) else kernel(contract)
        text = write.json_text({"language": LANGUAGE, "contracts": [form]})
        jsonschema.Draft202012Validator(schema()).validate(json.loads(text))
        again, errors = _load("x.json", text)
        assert errors == []
        assert digest((again.contracts or again.kernels)[0]) == digest(contract)


def test_the_digest_is_of_the_meaning() -> None:
    one = "contract c\nparam t = 0.5\nnumerical { a: tv <= t / 50 except 1% -> L1 }\nruntime { b: p99 latency <= 0.12 s -> L1 }\n"
    other = "contract c # x\nruntime {\n b: max latency <= 120 ms except 1% -> L1 }; numerical { a: tv <= 1% except 0.01 -> L1 }"
    digests = {digest(_load("x.kc", text)[0].contracts[0]) for text in (one, other)}
    assert len(digests) == 1
    assert digests != {digest(_load("x.kc", one.replace("0.5", "0.6"))[0].contracts[0])}


HEAD = 'language: "1.0"\ncontracts:\n  - name: c\n'


def _fault(text: str, name: str = "x.yaml") -> Diagnostic:
    errors = _load(name, text)[1]
    assert errors
    return errors[0]


def test_numbers_are_read_from_their_text() -> None:
    found, errors = _load("x.yaml", f"{HEAD}    numerical:\n      a: {{metric: tv, at_most: 0.1, severity: L1}}\n")
    assert errors == []
    limit = found.contracts[0].clauses[0].limit.upper
    assert limit is not None
    assert limit.constant == Fraction(1, 10)


@pytest.mark.parametrize(
    ("body", "slug", "place", "words"),
    [
        ("    numerical:\n      a: {metric: tvv, at_most: 0.1, severity: L1}\n", "unknown_metric", "5:19", "tvv"),
        ("    numerical:\n      a: {metric: tv, at_most: 0.1 ms, severity: L1}\n", "unit_forbidden", "5:36", "tv"),
        ("    numerical:\n      a: {metric: tv, at_most: '0.1 +', severity: L1}\n", "unexpected", "5:38", "the end"),
        ("    numerical:\n      a: {metric: tv, at_most: 0.1 -> L2, severity: L1}\n", "unexpected", "5:36", "`->`"),
        ("    numerical:\n      a: {metric: tv, at_most: [1], severity: L1}\n", "form_type", "5:32", "a list"),
        ("    numerical:\n      a: {metric: tv, severity: L1}\n", "form_type", "5:10", "one of"),
        ("    numerical:\n      a: {metric: tv, at_most: 1, at_least: 0, severity: L1}\n", "form_type", "5:10", "2"),
        ("    numerical:\n      a: {metric: tv, at_mst: 1}\n", "form_key", "5:23", "at_mst"),
        ("    numerical:\n      a b: {metric: tv, at_most: 1}\n", "form_type", "5:7", "a name"),
        ("    numerical:\n      a: {at_most: 1}\n", "form_key_missing", "5:10", "metric"),
        ("    numerical:\n      a: {metric: tv, at_most: 1, severity: L1}\n      a: {}\n", "form_key_twice", "6:7", "a"),
        ("    slices: {s: 'tag(\"x'}\n", "unknown_character", "4:22", ""),
        ("    slices: {s: \"tag(\\\"x\\\") or\"}\n", "unexpected", "4:17", ""),
        ("    version: 'a\"b'\n", "form_type", "4:14", ""),
        ("    version:\n", "form_type", "4:5", "nothing"),
        ("    assume: {temperature: [1, 2, 3]}\n", "form_type", "4:27", "two"),
        ("    assume: {horizon: {at_least: 3 tokens}}\n", "form_key", "4:24", "at_least"),
        ("    kind: pairs\n", "form_type", "4:11", "pairs"),
        ("    kind: kernel\n    numerical: {}\n", "form_key", "5:5", "numerical"),
        ("    promote: {canary: {traffic: []}}\n", "form_type", "4:33", "at least one"),
        ("    escalate: {L1: {dwell: 5 s}}\n", "form_key_missing", "4:20", "action"),
        ("    pair: *x\n", "form_refused", "4:11", "alias"),
        ("    pair: &x {}\n", "form_refused", "4:11", "anchor"),
        ("    pair: !!python/object:os.system {}\n", "form_refused", "4:11", "tag"),
        ("---\na: b\n", "form_refused", "4:1", "second document"),
        ("    pair: {\n", "form_syntax", "5:1", ""),
        ("   - : :\n", "form_syntax", "4:4", ""),
        ("    ? [a]\n    : b\n", "form_syntax", "4:7", "key"),
    ],
)  # fmt: skip
def test_faults_have_their_place(body: str, slug: str, place: str, words: str) -> None:
    found = _fault(HEAD + body)
    assert found.code.slug == slug
    assert found.span is not None
    assert found.span.place == f"x.yaml:{place}"
    assert words in found.message


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("{", "form_syntax"),
        ('{"language": "1.0", "contracts": [],}', "form_syntax"),
        ('{"language": "1.0" "contracts": []}', "form_syntax"),
        ('{"language": "1.0", "contracts": [{"name": "c"}]} x', "form_syntax"),
        ('{"language": 01}', "form_syntax"),
        ('{"language": NaN}', "form_syntax"),
        ("{'language': 1}", "form_syntax"),
        ('{"language": "1.0", "contracts": [{"name": "c", "name": "d"}]}', "form_key_twice"),
        ('{"language": "1.0", "contracts": []}', "no_contract"),
        ('{"language": "1.1", "contracts": []}', "form_language"),
        ('{"language": "2.0", "contracts": []}', "form_language"),
        ('{"language": "one", "contracts": []}', "form_language"),
        ('{"contracts": []}', "form_key_missing"),
        ("[]", "form_type"),
        ("[" * 1000, "nesting_too_deep"),
        ('{"a":' * 1000, "nesting_too_deep"),
        (" " * CHARACTERS + "{}", "file_too_large"),
        ('{"a": "\\ud800"}', "form_refused"),
    ],
)
def test_broken_json(text: str, slug: str) -> None:
    assert _fault(text, "x.json").code.slug == slug


def test_hostile_yaml_is_refused_quickly() -> None:
    bomb = "a: &a [x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(50))
    assert _fault(bomb).code.slug == "form_refused"
    assert _fault("[" * 100_000).code.slug == "nesting_too_deep"
    assert _fault("- " * 100_000).code.slug == "nesting_too_deep"
    assert _fault("language: '1.0'\n" + "? " * 10_000).code.slug in ("form_syntax", "nesting_too_deep")
    assert _fault("\x07").code.slug == "form_syntax"


def test_many_keys_are_no_problem() -> None:
    body = "".join(f'"k{i}": 1,' for i in range(20_000))
    assert _fault("{" + body + '"z": 1}', "x.json").code.slug == "form_key"


def test_the_form_is_seen_from_the_text() -> None:
    assert form_of(Source("-", '  {"language"')) == "json"
    assert form_of(Source("-", '# modeline\nlanguage: "1.0"')) == "yaml"
    assert form_of(Source("-", "# note\ncontract c")) == "kc"
    assert form_of(Source("a.yml", "contract c")) == "yaml"


def test_versions() -> None:
    assert is_readable("1.0")
    assert not is_readable("1.1")
    assert not is_readable("0.9")
    assert not is_readable("1")


def test_texts_that_yaml_could_misread_are_quoted() -> None:
    text = 'contract c version "1.10"\n  "yes: # \x7f \u2028 é"\nslice s = tag("no") or tag("- x")\n'
    source = Source("x.kc", text)
    there = convert_source(source, "yaml")
    assert yaml.safe_load(there)["contracts"][0]["version"] == "1.10"
    assert _all(_load("x.yaml", there)[0]) == _all(_load("x.kc", text)[0])


BROKEN = """language: "1.0"
contracts:
  - name: c
    slices: {long: "prompt_tokens >= and"}
    numerical:
      drift: {metric: logit_spam, at_most: 0.05, severity: L2}
      tail: {metric: tv, at_most: 0.01 ms, excpt: 1%, severity: L2}
      ratio: {metric: importance_ratio, in: [1.05, 0.95], severity: L2}
    runtime:
      slow:
        metric: latency
        statistic: p99
        at_most: 0.12
        severity: L1
"""


def test_faults_of_yaml_look_like_those_of_the_language(golden) -> None:  # type: ignore[no-untyped-def]
    report = Report()
    elaborate_file(read(Source("x.yaml", BROKEN), report), report, parameters={})
    golden(render_all(report.diagnostics) + "\n")


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    endless = Path("/dev/zero")
    if endless.exists():
        with pytest.raises(InputError) as found:
            read_source(str(endless))
        assert found.value.diagnostics[0].code.slug == "file_too_large"
    with pytest.raises(InputError):
        read_source(str(tmp_path))


def test_a_quoted_word_in_a_folded_line_is_one_word() -> None:
    text = 'language: "1.0"\ncontracts:\n  - kind: kernel\n    name: k\n    version: "1"\n    class: C-ORD-02\n    scope:\n      - dtypes a -> b\n       - "m in [1, 4]"\n'
    report = Report()
    item = read(Source("x.yaml", text), report).contracts[0].items[1]
    assert not report.errors
    assert [w.text for w in item.items[0]] == ["dtypes", "a", "->", "b", "-", '"m in [1, 4]"']
