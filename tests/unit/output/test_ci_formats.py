"""SARIF, JUnit and GitHub annotations of `check`, and the level that fails a run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

from kcverify.diagnostics import Diagnostic, InputError, Report
from kcverify.elaborate import elaborate
from kcverify.output import check as check_output
from kcverify.output import github, junit, sarif, verdicts
from kcverify.prove.check import Checked, check
from kcverify.source import Source
from kcverify.syntax import parse

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "sarif-subset.schema.json").read_text(encoding="utf-8")
)
ASSUME = "assume { temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 8 tokens; reward in [0, 1] }\n"
PROVED = f"contract good\n{ASSUME}numerical {{ drift: logit_span <= 0.01 -> L2 }}\nguarantee {{ safe: reward_drift <= 0.4 }}\n"
REFUTED = f"contract bad\n{ASSUME}numerical {{ tail: tv <= 0.5 -> L2 }}\nguarantee {{ safe: reward_drift <= 0.01 }}\n"
FINDINGS = """contract found
slice wide = prompt_tokens >= 10
numerical {
  ratio: log_ratio <= 0.06 -> L1
  divergence: kl(candidate || reference) <= 0.05 nats -> L3
  all: tv <= 1 -> L2
}
"""
CONTRADICTION = """contract apart
numerical { tail: tv <= 0.9 -> L3 }
statistical { same: agreement(top = 1) >= 99.9% -> L1; flips: flip_rate in [1%, 5%] -> L1 }
"""
BROKEN = "contract broken\nnumerical { a: tv <= nan -> L1; b: tv <= 0.1 -> L1; b: tv <= 0.2 -> L1 }\n"


def _results(**files: str) -> list[verdicts.Result]:
    found: list[tuple[str, list[Diagnostic], list[Checked]]] = []
    for name, text in files.items():
        report = Report()
        path = f"contracts/{name}.kc"
        contracts = elaborate(parse(Source(path, text), report), report, parameters={})
        found.append((path, report.diagnostics, [] if report.errors else [check(c) for c in contracts]))
    return verdicts.results(found)


@pytest.fixture(scope="module")
def mixed() -> list[verdicts.Result]:
    return _results(good=PROVED, bad=REFUTED, found=FINDINGS, broken=BROKEN)


def test_sarif_fits_its_schema(mixed: list[verdicts.Result]) -> None:
    log = sarif.data(mixed)
    jsonschema.Draft202012Validator(SCHEMA).validate(log)
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    found = [(rules[r["ruleIndex"]]["name"], r["level"]) for r in run["results"]]
    assert ("refuted", "error") in found
    assert ("dead", "error") in found
    assert ("vacuous", "warning") in found
    assert ("number_not_finite", "error") in found
    for result in run["results"]:
        assert result["ruleId"] == rules[result["ruleIndex"]]["id"]
        for location in result["locations"]:
            assert not location["physicalLocation"]["artifactLocation"]["uri"].startswith("/")
    twice = next(r for r in run["results"] if rules[r["ruleIndex"]]["name"] == "duplicate")
    assert twice["relatedLocations"][0]["message"]["text"] == "first declared here"


def test_sarif_of_nothing_found_is_valid() -> None:
    log = sarif.data(_results(good=PROVED))
    jsonschema.Draft202012Validator(SCHEMA).validate(log)
    assert log["runs"][0]["results"] == []


def test_absolute_paths_do_not_leak() -> None:
    assert sarif.relative("/home/someone/contracts/a.kc") == "a.kc"
    assert sarif.relative("contracts/a b.kc") == "contracts/a%20b.kc"
    assert sarif.relative(str(Path.cwd() / "contracts" / "a.kc")) == "contracts/a.kc"


def test_junit(mixed: list[verdicts.Result]) -> None:
    root = ET.fromstring(junit.text(mixed))
    suites = {suite.get("name"): suite for suite in root}
    assert [case.get("name") for case in suites["contracts/good.kc"]] == ["guarantee safe"]
    assert suites["contracts/bad.kc"].get("failures") == "1"
    assert suites["contracts/broken.kc"].get("errors") == "2"
    for suite in root:
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.get(name, "")) == len(suite.findall(f"testcase/{kind}"))
        assert int(suite.get("tests", "")) == len(suite)


def test_junit_is_read_by_its_own_reader(mixed: list[verdicts.Result], tmp_path: Path) -> None:
    reader = pytest.importorskip("junitparser")
    path = tmp_path / "report.xml"
    path.write_text(junit.text(mixed), encoding="utf-8")
    assert sum(suite.tests for suite in reader.JUnitXml.fromfile(str(path))) > 4


def test_junit_holds_any_text() -> None:
    text = 'contract c\nnumerical { a: tv <= "\x1b\x00 -> L1 }\n'
    ET.fromstring(junit.text(_results(x=text)))


def test_github(mixed: list[verdicts.Result]) -> None:
    lines = github.text(mixed).split("\n")
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
    [dead] = [line for line in lines if "dead" in line]
    assert "file=contracts/found.kc,line=5" in dead
    assert "title=KC202 dead" in dead
    assert any("title=REFUTED safe" in line for line in lines)


def test_github_escapes() -> None:
    text = github._line("error", "a:b,c", "50% of\nall", None, "x.kc")
    assert text == "::error file=x.kc,title=a%3Ab%2Cc::50%25 of%0Aall"


@pytest.mark.parametrize(
    ("files", "level", "code"),
    [
        ({"apart": CONTRADICTION}, None, 1),
        ({"apart": CONTRADICTION}, "L1", 1),
        ({"apart": CONTRADICTION}, "L2", 0),
        ({"apart": CONTRADICTION}, "L3", 0),
        ({"bad": REFUTED}, "L3", 1),
        ({"apart": CONTRADICTION, "bad": REFUTED}, "L3", 1),
    ],
)
def test_the_failing_level(files: dict[str, str], level: str | None, code: int) -> None:
    assert verdicts.exit_code(_results(**files), 1, level) == code


def test_wrong_input_and_success_do_not_depend_on_the_level() -> None:
    assert verdicts.exit_code(_results(good=PROVED), 0, "L3") == 0
    assert verdicts.exit_code(_results(broken=BROKEN), 2, "L3") == 2
    assert verdicts.check_level("L2") == "L2"
    with pytest.raises(InputError):
        verdicts.check_level("L4")


SILENT = "contract quiet\nnumerical { a: tv <= 0.1 -> L1 }\n"


def test_a_contract_without_a_guarantee_passes_nothing_in_any_format() -> None:
    found = _results(quiet=SILENT)
    said = "contract quiet claims no guarantee, so nothing was proved"
    log = sarif.data(found)
    jsonschema.Draft202012Validator(SCHEMA).validate(log)
    [note] = log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == said
    [case] = ET.fromstring(junit.text(found)).iter("testcase")
    skipped = case.find("skipped")
    assert skipped is not None and skipped.get("message") == said
    [line] = github.text(found).split("\n")
    assert line.startswith("::notice file=contracts/quiet.kc,line=1") and line.endswith(said)
    [checked] = found[0].checked
    assert check_output.contract_data(checked)["claims_nothing"]
    assert check_output.closing([checked], False) == "1 contract: no guarantee is claimed, so nothing was proved"


def test_the_closing_line_counts_what_claims_nothing() -> None:
    both = [c for r in _results(quiet=SILENT, good=PROVED) for c in r.checked]
    assert check_output.closing(both, False) == "2 contracts: 1 PROVED, 1 of them claims no guarantee"
    assert check_output.closing([], False) == "0 contracts: nothing was checked"
    assert check_output.closing([], False, kernels=1) == "1 kernel contract: read and checked, not run"
    one = "2 contracts: 1 PROVED, 1 of them claims no guarantee; 2 kernel contracts: read and checked, not run"
    assert check_output.closing(both, False, kernels=2) == one
    assert not check_output.contract_data(both[1])["claims_nothing"]
