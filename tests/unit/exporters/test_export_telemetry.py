"""Verdicts as OpenTelemetry: in memory, as lines of OTLP JSON, and to a receiver that runs as a process of its own."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs opentelemetry")

from exporter_cases import HOSTILE, SMALL, contract, result
from opentelemetry.trace import StatusCode

from kcverify.diagnostics import InputError
from kcverify.exporters import otel, verdicts
from kcverify.exporters.verdicts import Verdicts

TOLD = {"drift": "fail", "far": "inconclusive", "parses": "unobservable"}


@pytest.fixture
def found() -> Verdicts:
    return verdicts.read("result.json", result(contract(SMALL), TOLD))


def _points(made: otel.Telemetry) -> dict[tuple[str, str, str], float]:
    """(metric, clause, slice) -> value."""
    out = {}
    for resource in made.metrics.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    a = point.attributes
                    out[metric.name, a.get("kcverify.clause", ""), a.get("kcverify.slice", "")] = point.value
    return out


def test_three_values_stay_three(found: Verdicts) -> None:
    made = otel.telemetry(found)
    points = _points(made)
    clauses = {(c, s): v for (name, c, s), v in points.items() if name == "kcverify.clause.verdict"}
    assert clauses == {
        ("drift", ""): -1, ("far", ""): 0, ("parses", "long"): 0, ("parses", "code"): 0, ("ece", ""): 1,
    }  # fmt: skip
    assert points["kcverify.verdict", "", ""] == -1
    assert points["kcverify.clause.log_e_fail", "drift", ""] == sys.float_info.max
    assert ("kcverify.clause.log_e_pass", "drift", "") not in points
    assert {name for name, _, _ in points} == set(otel.GAUGES)
    spans = {s.name: s for s in made.spans}
    assert {name: s.status.status_code for name, s in spans.items()} == {
        "kcverify measure": StatusCode.ERROR,
        "clause drift": StatusCode.ERROR,
        "clause far": StatusCode.UNSET,
        "clause parses on long": StatusCode.UNSET,
        "clause parses on code": StatusCode.UNSET,
        "clause ece": StatusCode.OK,
    }
    root = spans["kcverify measure"].context
    assert root is not None
    assert all(
        s.parent is not None and s.parent.span_id == root.span_id for n, s in spans.items() if n.startswith("clause")
    )
    attributes = spans["clause drift"].attributes
    assert attributes is not None
    assert attributes["kcverify.log_e_fail"] == "inf" and attributes["kcverify.verdict"] == "fail"


def test_undecided_is_neither(found: Verdicts) -> None:
    made = otel.telemetry(verdicts.read("r.json", result(contract(SMALL), {"far": "inconclusive"})))
    assert _points(made)["kcverify.verdict", "", ""] == 0
    assert next(s for s in made.spans if s.name == "kcverify measure").status.status_code is StatusCode.UNSET


def test_lines_are_otlp_json(found: Verdicts, golden: Any) -> None:
    text = otel.lines(found)
    metrics, trace = (json.loads(line) for line in text.splitlines())
    spans = trace["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert all(re.fullmatch("[0-9a-f]{32}", s["traceId"]) and re.fullmatch("[0-9a-f]{16}", s["spanId"]) for s in spans)
    root = next(s for s in spans if "parentSpanId" not in s or not s["parentSpanId"])
    assert {s["parentSpanId"] for s in spans if s is not root} == {root["spanId"]}
    still = re.sub(r'(UnixNano": )"\d+"', r'\1"0"', json.dumps([metrics, trace], indent=1, sort_keys=True))
    still = re.sub(r'((?:trace|span|parentSpan)Id": )"[0-9a-f]+"', r'\1"0"', still)
    still = re.sub(r'("service.version",\s*"value": \{\s*"stringValue": )"[^"]+"', r'\1"VERSION"', still)
    golden(re.sub(r'("name": "kcverify",\s*"version": )"[^"]+"', r'\1"VERSION"', still) + "\n")


def test_hostile_words_are_carried(found: Verdicts) -> None:
    clauses = tuple(dataclasses.replace(found.clauses[0], name=word, reason=word, slice=word) for word in HOSTILE)
    hostile = dataclasses.replace(found, contract=HOSTILE[9], clauses=clauses)
    text = otel.lines(hostile)
    assert text.count("\n") == 2 and text.isascii()
    assert len(json.loads(text.splitlines()[1])["resourceSpans"][0]["scopeSpans"][0]["spans"]) == len(HOSTILE) + 1


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    script = Path(__file__).with_name("otlp_receiver.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(request.param)], stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        yield f"http://127.0.0.1:{started.stdout.readline().strip()}", started
        started.kill()


@pytest.mark.parametrize("receiver", [200], indirect=True)
def test_a_receiver_gets_all_of_it(found: Verdicts, receiver: tuple[str, subprocess.Popen[str]]) -> None:
    endpoint, started = receiver
    assert otel.send(found, endpoint) == f"{endpoint} took 6 spans and the metrics of 5 clauses"
    assert started.stdout is not None
    got = dict(json.loads(started.stdout.readline()) for _ in range(2))
    names = {m["name"] for m in got["/v1/metrics"]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
    assert names == set(otel.GAUGES)
    assert len(got["/v1/traces"]["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 6


@pytest.mark.parametrize("receiver", [400], indirect=True)
def test_a_receiver_that_refuses_is_told(found: Verdicts, receiver: tuple[str, subprocess.Popen[str]]) -> None:
    with pytest.raises(InputError, match="did not take the metrics"):
        otel.send(found, receiver[0])
