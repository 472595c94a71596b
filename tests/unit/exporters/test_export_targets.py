"""Every target: its golden file, its published schema, hostile words, and the three values of a verdict."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import junitparser
import pytest
import yaml
from exporter_cases import HOSTILE, SMALL, contract, events, hostile, result
from published_schemas import ARGO, CLOUDEVENT, FLAGGER, OPENSLO

from kcverify import __version__
from kcverify.delivery import evidence
from kcverify.diagnostics import InputError
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest
from kcverify.elaborate.policy import STAGES
from kcverify.exporters import verdicts
from kcverify.exporters.names import HOOK_ROWS, hook_answer, hook_status, verdict_about
from kcverify.exporters.request import Request, address
from kcverify.exporters.table import BY_NAME, ROWS
from kcverify.exporters.text import untemplated, whole
from kcverify.prove.check import check

SARIF = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "sarif-subset.schema.json").read_text(encoding="utf-8")
)
WORDS = {"drift": "fail", "far": "inconclusive", "gap": "unobservable", "ece": "not_enforced"}
RENDERED = [row for row in ROWS if row.render is not None]
FORMATS = jsonschema.FormatChecker()
FOUR = [tuple(HOSTILE[(i + j) % len(HOSTILE)] for j in range(4)) for i in range(len(HOSTILE))]


def _request(made: Contract, words: dict[str, str] | None = None) -> Request:
    told = WORDS if words is None else words
    found = verdicts.read("result.json", result(made, told))
    return Request(made, "every.kc", checked=check(made), verdicts=found, events=events())


@pytest.fixture(scope="module")
def plain() -> Request:
    return _request(contract())


def _written(name: str, request: Request) -> str:
    render = BY_NAME[name].render
    assert render is not None
    return render(request)


def _documents(name: str, request: Request) -> list[Any]:
    return list(yaml.safe_load_all(_written(name, request)))


@pytest.mark.parametrize("row", RENDERED, ids=lambda row: row.name)
def test_golden(row: Any, golden: Any) -> None:
    made = contract(SMALL)
    told = {"drift": "fail", "far": "inconclusive", "ece": "not_enforced"}
    found = verdicts.read("result.json", result(made, told))
    request = Request(made, "small.kc", verdicts=found, events=events() if row.name == "cloudevents" else ())
    text = row.render(request)
    assert row.render(request) == text
    golden(text.replace(f'"{__version__}"', '"VERSION"'))


def _shape(value: Any) -> Any:
    """The value with its texts and numbers left out."""
    if isinstance(value, dict):
        return {k: _shape(v) for k, v in value.items()}
    return [_shape(v) for v in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize(("name", "schema"), [("argo", ARGO), ("flagger", FLAGGER), ("openslo", OPENSLO)])
@pytest.mark.parametrize("words", [None, *FOUR], ids=lambda w: "plain" if w is None else repr(w[0])[:12])
def test_documents_fit_the_published_schema(name: str, schema: dict[str, Any], words: Any, plain: Request) -> None:
    request = plain if words is None else Request(hostile(words))
    found = _documents(name, request)
    for document in found:
        jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(document)
    assert _shape(found) == _shape(_documents(name, plain))
    ids = [(d["kind"], d["metadata"]["name"]) for d in found]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("words", FOUR, ids=lambda w: repr(w[0])[:12])
def test_rules_keep_their_shape_whatever_the_words_are(words: Any, plain: Request) -> None:
    made = hostile(words)
    (ours,) = _documents("prometheus", plain)
    (theirs,) = _documents("prometheus", Request(made))
    assert _shape(theirs) == _shape(ours)
    for rule in theirs["groups"][0]["rules"]:
        for part in (
            (*rule.get("labels", {}).values(), *rule.get("annotations", {}).values()) if "alert" in rule else ()
        ):
            actions = re.findall(r"\{\{.*?\}\}", part)
            assert set(actions) <= {'{{"{{"}}', "{{ if $labels.slice }}", "{{ $labels.slice }}", "{{ end }}"}
        if "record" in rule and "labels" in rule:
            assert rule["labels"]["contract"] == whole(words[0])
            assert untemplated(rule["labels"]["contract"]).count("{{") == 2 * rule["labels"]["contract"].count("{{")


@pytest.mark.needs("prometheus")
def test_promtool_takes_hostile_rules(tmp_path: Path) -> None:
    for number, words in enumerate(FOUR):
        (tmp_path / f"{number}.yml").write_text(_written("prometheus", Request(hostile(words))), encoding="utf-8")
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["promtool", "check", "rules", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("words", [None, *FOUR], ids=lambda w: "plain" if w is None else repr(w[0])[:12])
def test_cloudevents_are_one_a_line_and_fit_their_schema(words: Any, plain: Request) -> None:
    request = plain if words is None else _request(hostile(words))
    text = _written("cloudevents", request)
    assert text.isascii()
    found = [json.loads(line) for line in text.splitlines()]
    assert len(found) == text.count("\n")
    for event in found:
        jsonschema.Draft202012Validator(CLOUDEVENT, format_checker=FORMATS).validate(event)
    assert len({(e["source"], e["id"]) for e in found}) == len(found)
    stored, run, *clauses = found[:3], *found[3:]
    assert [e["type"] for e in stored] == ["kcverify.store.started", "kcverify.store.decided", "kcverify.store.failed"]
    assert [e["data"] for e in stored] == [e.data() for e in request.events]
    assert stored[2]["time"] == "2023-11-14T22:14:21.500+00:00"
    assert request.verdicts is not None
    assert run["data"]["contract"] == whole(request.verdicts.contract)
    assert [e["data"]["clause"] for e in clauses] == [whole(c.name) for c in request.verdicts.clauses]
    assert run["data"]["verdict"] == request.verdicts.verdict


def test_an_event_keeps_the_word_of_its_verdict(plain: Request) -> None:
    found = [json.loads(line)["data"] for line in _written("cloudevents", plain).splitlines()[4:]]
    assert {d["clause"]: d["verdict"] for d in found if d["clause"] in WORDS} == WORDS
    assert [d["log_e_fail"] for d in found if d["clause"] == "drift"] == ["inf"]


def _commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Workflow commands as the runner reads them."""
    out = []
    for line in text.splitlines():
        match = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)
        assert match, line
        pairs = dict(pair.split("=", 1) for pair in match[2].split(","))
        out.append((match[1], pairs, match[3]))
    return out


def test_annotations_are_at_the_line_of_the_clause(plain: Request) -> None:
    found = {p["title"]: (c, p["file"], p["line"]) for c, p, _ in _commands(_written("github", plain))}
    assert found["fail drift"] == ("error", "every.kc", "8")
    assert found["inconclusive far"] == ("warning", "every.kc", "9")
    assert found["unobservable gap"] == ("warning", "every.kc", "10")
    assert found["not_enforced ece"][0] == "notice"
    assert not any(title.startswith("pass") for title in found)


@pytest.mark.parametrize("words", FOUR, ids=lambda w: repr(w[0])[:12])
def test_annotations_of_hostile_words_are_one_command_each(words: Any) -> None:
    made = hostile(words)
    told = {c.name: "fail" for c in made.clauses}
    text = _written("github", _request(made, told))
    found = [p for c, p, _ in _commands(text) if c == "error" and p["title"].startswith("fail ")]
    assert len(found) == sum(max(1, len(c.slices)) for c in made.clauses)
    assert {p["file"] for p in found} == {"every.kc"}


def test_only_a_pass_passes_in_junit(plain: Request) -> None:
    suite = next(iter(junitparser.JUnitXml.fromstring(_written("junit", plain).encode())))
    kinds = {case.name: [type(r).__name__ for r in case.result] for case in suite}
    assert kinds["clause drift"] == ["Failure"]
    assert kinds["clause far"] == kinds["clause gap"] == kinds["clause ece"] == ["Skipped"]
    assert kinds["clause slow"] == []
    assert suite.failures == 1 and suite.skipped >= 3


@pytest.mark.parametrize("words", FOUR, ids=lambda w: repr(w[0])[:12])
def test_xml_and_sarif_of_hostile_words_can_be_read(words: Any) -> None:
    request = _request(hostile(words), {})
    root = ET.fromstring(_written("junit", request).encode())
    assert len(root.findall("./testsuite/testcase")) >= 10
    jsonschema.Draft202012Validator(SARIF).validate(json.loads(_written("sarif", request)))


def test_sarif_has_the_level_of_the_severity(plain: Request) -> None:
    log = json.loads(_written("sarif", plain))
    jsonschema.Draft202012Validator(SARIF).validate(log)
    levels = {
        r["message"]["text"].split(":")[0]: r["level"] for r in log["runs"][0]["results"] if r["ruleId"] >= "KC85"
    }
    assert levels == {
        "fail drift": "warning", "inconclusive far": "warning", "unobservable gap": "warning", "not_enforced ece": "note",
    }  # fmt: skip


def _argo(answer: dict[str, str], metric: dict[str, Any]) -> str:
    """The phase that Argo Rollouts gives a measurement: both conditions are stated, so neither is Inconclusive."""

    def holds(condition: str) -> bool:
        text = re.sub(r"result\.(\w+)", r'result["\1"]', condition.replace("&&", "and").replace("||", "or"))
        return bool(eval(text, {"__builtins__": {}}, {"result": answer}))

    return (
        "Failed"
        if holds(metric["failureCondition"])
        else "Successful"
        if holds(metric["successCondition"])
        else "Inconclusive"
    )


def test_argo_never_succeeds_undecided(plain: Request) -> None:
    metrics = {d["spec"]["metrics"][0]["name"]: d["spec"]["metrics"][0] for d in _documents("argo", plain)}
    assert list(metrics) == ["gate--shadow", "gate--canary", "gate--full"]
    phases = {"pass": "Successful", "fail": "Failed", "inconclusive": "Inconclusive"}
    for name, metric in metrics.items():
        asked = metric["provider"]["web"]["jsonBody"]["stage"]
        assert name == f"gate--{asked}"
        for stage in STAGES:
            for word in verdicts.OVERALL:
                found = _argo({"stage": stage, "verdict": word}, metric)
                assert found == phases[verdict_about(asked, stage, word)]
                assert (
                    found != "Successful"
                    or STAGES.index(stage) > STAGES.index(asked)
                    or (stage, word) == (asked, "pass")
                )
        assert metric["consecutiveSuccessLimit"] == 1 and metric["failureLimit"] == 0
        assert metric["inconclusiveLimit"] >= metric["count"] > 0
    assert [m["count"] for m in metrics.values()] == [120, 180, 1500]


def test_a_hook_answers_2xx_for_its_own_verdict_alone(plain: Request) -> None:
    for hook in HOOK_ROWS:
        open_for = {word for word in verdicts.VERDICTS if 200 <= hook_status(hook, word) <= 202}
        assert open_for == {"fail" if hook.type == "rollback" else "pass"}
        assert hook_answer(hook.type, "nowhere", "canary", "pass") is None
        assert not {hook_status(hook, word) for word in verdicts.VERDICTS} & {429, *range(500, 600)}
    (canary,) = _documents("flagger", plain)
    assert canary["spec"]["analysis"]["stepWeights"] == [5, 12]
    text = _written("flagger", plain)
    assert "the share of 0.5 % is left out" in text and "the share of 12.5 % became 12 %" in text


def test_openslo_names_what_it_cannot_say(plain: Request) -> None:
    text = _written("openslo", plain)
    for name in ("drift", "gap", "open", "ece"):
        assert f"# clause {name} has no SLO: " in text
    assert "# clause far allows no exception" in text
    found = {(d["kind"], d["metadata"]["displayName"]): d["spec"] for d in yaml.safe_load_all(text)}
    assert found["AlertPolicy", "far"]["conditions"][0]["spec"]["condition"] == {
        "kind": "burnrate", "op": "gt", "threshold": 0, "lookbackWindow": "5m",
    }  # fmt: skip
    said = {title.split(" on ")[0] for kind, title in found if kind == "SLO"}
    assert said == {"far", "tokens", "parses", "strict", "slow", "coarse", "recent"}
    assert found["SLO", "coarse"]["objectives"][0]["target"] == 0.8
    assert all(spec["alertWhenNoData"] for (kind, _), spec in found.items() if kind == "AlertPolicy")


def test_a_hole_and_a_contract_without_stages_are_told() -> None:
    holed = contract('contract c version "1"\nnumerical { drift: logit_span <= ? -> L2 }\n')
    for name in ("prometheus", "argo", "flagger", "openslo"):
        with pytest.raises(InputError, match="drift"):
            _written(name, Request(holed))
    bare = contract(
        'contract c version "1"\nruntime { f: failure_rate <= 1% -> L1 }\npromote { offline { min 5 requests } }\n'
    )
    for name in ("argo", "flagger"):
        with pytest.raises(InputError, match="no stage"):
            _written(name, Request(bare))
    empty = contract('contract c version "1"\nstatistical { e: ece_drift(bins = reference) <= 0.01 -> L1 }\n')
    assert _documents("prometheus", Request(empty)) == [{"groups": [{"name": "kcverify c", "rules": []}]}]


@pytest.mark.parametrize(
    "change",
    [
        b"{", b"[]", b"null", b'{"gate": 1}', b'{"measured": {"clauses": [{}]}}', b'{"clauses": []}', b"[" * 100_000,
        result(contract(), {"drift": "great"}), result(contract(), measured=None), result(contract(), verdict="yes"),
        result(contract(), {}, complete=False),
    ],
)  # fmt: skip
def test_a_file_that_is_no_result_is_told(change: bytes) -> None:
    with pytest.raises(InputError, match=r"r\.json"):
        verdicts.read("r.json", change)


def test_a_result_is_about_its_contract() -> None:
    made = contract()
    assert verdicts.read("r.json", result(made), digest(made)).verdict == "pass"
    with pytest.raises(InputError, match="it is about the contract"):
        verdicts.read("r.json", result(made), "sha256:other")
    report = json.loads(result(made, {"far": "unobservable"}))["measured"]
    assert verdicts.read("r.json", json.dumps(report).encode()).verdict == "inconclusive"


@pytest.mark.parametrize(
    "text", ["http://a{{b}}", "ftp://a", "http://", "http://a b", "http://a:99999", "http://a/\n", "a", "http://u@h"]
)
def test_an_address_is_one(text: str) -> None:
    with pytest.raises(InputError):
        address(text)
    assert address("https://gate.local:8443/x/") == "https://gate.local:8443/x"


def test_the_table_says_what_becomes_of_each_verdict() -> None:
    for row in ROWS:
        assert row.passes and row.fails and row.undecided and row.limits and row.checked and row.gives
        assert set(row.any_of) <= set(row.takes)
    assert len({row.file for row in ROWS}) == len(ROWS)
    assert verdicts.VERDICTS == evidence.VERDICTS


def test_rules_need_no_extra_and_no_torch() -> None:
    code = "import sys, kcverify.exporters.table; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transitions", "opentelemetry", "starlette"} & set(done.stdout.split())
