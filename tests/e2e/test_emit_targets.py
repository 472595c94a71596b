"""`kcverify emit` as a user runs it: every target, wrong input, and a Prometheus that fires the alert it was given."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kcverify import driver
from kcverify.cli import main
from kcverify.docgen.answers import answers
from kcverify.elaborate.form import digest
from kcverify.exporters.names import EXCEEDANCES, OBSERVATIONS
from kcverify.exporters.table import ROWS
from kcverify.runtime.sequential import alarm_count
from kcverify.source import Source

ROOT = Path(__file__).resolve().parents[2]
TEXT = """contract served version "1"
slice code = tag("code")
runtime {
  errors: failure_rate <= 1%  -> L2
  never:  failure_rate <= 0%  -> L3
}
statistical { parses: parse_rate >= 90% on code -> L1 }
escalate { L1 -> log; L2 -> guard, dwell 10 minutes, recover 200 requests; L3 -> rollback }
promote { offline { min 5 requests }; shadow { for 0 s }; canary { traffic 5%, 25% }; full { stable 1 h } }
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "served.kc").write_text(TEXT)
    (tmp_path / "result.json").write_text(_result())

    def one(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(stop.value.code or 0), out, err

    return one


def _result() -> str:
    made = driver.load_source(Source("served.kc", TEXT)).contracts[0]
    words = {"errors": "fail", "never": "inconclusive", "parses": "pass"}
    rows = [
        {
            "name": c.name, "slice": name, "severity": c.severity, "text": c.text, "verdict": words[c.name], "reason": "seen",
            "evidence": {"kind": "binary", "requests": 90, "log_e_fail": 4.0, "log_e_pass": -1.0},
        }
        for c in made.clauses
        for name in c.slices or (None,)
    ]  # fmt: skip
    measured = {"contract": made.name, "digest": digest(made), "requests": 90, "clauses": rows}
    return json.dumps({"verdict": "fail", "complete": True, "measured": measured})


def test_every_target_writes_its_file(run: Run, tmp_path: Path) -> None:
    for row in ROWS:
        if row.name == "otel":
            pytest.importorskip("opentelemetry.exporter.otlp", reason="needs opentelemetry")
        arguments = ["emit", row.name]
        if "contract" in (*row.needs, *row.takes):
            arguments.append("served.kc")
        if "result" in (*row.needs, *row.takes):
            arguments += ["--result", "result.json"]
        code, out, err = run(*arguments)
        assert (code, err) == (0, "") and out
        code, said, err = run(*arguments, "-o", row.file)
        assert (code, err) == (0, "") and said.startswith(f"{row.file}: {row.title}, ")
        if row.name != "otel":
            assert (tmp_path / row.file).read_text() == out
    list(yaml.safe_load_all((tmp_path / "analysis-templates.yaml").read_text()))
    ET.parse(tmp_path / "kcverify.xml")
    assert "::error file=served.kc,line=4," in (tmp_path / "annotations.txt").read_text()


def test_the_list_is_the_table(run: Run) -> None:
    code, out, _ = run("emit", "--list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [row.name for row in ROWS]
    answer = json.loads(run("emit", "--list", "--format", "json")[1])
    assert [row["name"] for row in answer["targets"]] == [row.name for row in ROWS]
    jsonschema.Draft202012Validator(answers()).validate(answer)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "is not one of prometheus"),
        ([], "no target is named"),
        (["argo"], "CONTRACT: `argo` needs it"),
        (["argo", "served.kc", "--store", "s.db"], "does not read it"),
        (["argo", "served.kc", "--gateway", "http://{{x}}"], "is no address"),
        (["cloudevents"], "needs one of them"),
        (["cloudevents", "--result", "gone.json"], "cannot read gone.json"),
        (["cloudevents", "--store", "gone.db"], "holds no store"),
        (["otel"], "--result: `otel` needs it"),
        (["prometheus", "gone.kc"], "cannot read gone.kc"),
        (["prometheus", "served.kc", "--format", "json"], "only `--list` has JSON"),
        (["prometheus", "served.kc", "-o", "no/such/folder/x"], "cannot write"),
        (["github", "result.json"], "result.json"),
        (["prometheus", "served.kc", "--contract", "other"], "no contract `other`"),
    ],
)
def test_wrong_input_is_told(run: Run, arguments: list[str], said: str) -> None:
    code, out, err = run("emit", *arguments)
    assert code == 2 and said in err and "hint: " in err and not out


def test_events_of_a_store(run: Run) -> None:
    pytest.importorskip("transitions")
    assert run("promote", "served.kc", "--store", "s.db")[0] == 3
    code, out, _ = run("emit", "cloudevents", "served.kc", "--store", "s.db")
    (event,) = map(json.loads, out.splitlines())
    assert code == 0 and event["type"] == "kcverify.store.started" and event["data"]["seq"] == 1
    Path("other.kc").write_text(TEXT.replace("served", "other"))
    code, _, err = run("emit", "cloudevents", "other.kc", "--store", "s.db")
    assert code == 2 and "it follows the contract" in err


def test_telemetry_that_nobody_takes_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    otel = pytest.importorskip("kcverify.exporters.otel", reason="needs opentelemetry")
    monkeypatch.setattr(otel, "TIMEOUT", 0.5)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        code, _, err = run("emit", "otel", "--result", "result.json", "--endpoint", address)
    assert code == 2 and "KC850 telemetry_refused" in err


@pytest.mark.needs("prometheus")
def test_promtool_takes_the_rules_of_every_contract(run: Run, tmp_path: Path) -> None:
    files = []
    for path in sorted((ROOT / "contracts").glob("*.kc")):
        code, out, err = run("emit", "prometheus", str(path))
        if code:
            assert code == 2 and ("hole_open" in err or "--contract" in err), err
            continue
        files.append(tmp_path / f"{path.stem}.yml")
        files[-1].write_text(out)
    assert len(files) >= 4
    done = subprocess.run(["promtool", "check", "rules", *map(str, files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def prometheus(run: Run, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real Prometheus with the generated rules that scrapes a real page of metrics; its address, and the page's file."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus")
    metrics = tmp_path / "metrics.txt"
    metrics.write_text("")
    assert run("emit", "prometheus", "served.kc", "-o", "kcverify.rules.yml")[0] == 0
    page = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("metrics_file_server.py")), str(metrics)], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert page.stdout is not None
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["kcverify.rules.yml"],
        "scrape_configs": [
            {"job_name": "gateway", "static_configs": [{"targets": [f"127.0.0.1:{page.stdout.readline().strip()}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = _free_port()
    with (tmp_path / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            [
                "prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
            ],
            cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}", metrics
        finally:
            for started in (server, page):
                started.send_signal(signal.SIGKILL)
                started.wait()


def _page(metrics: Path, errors: tuple[int, int], never: tuple[int, int]) -> None:
    lines = []
    for clause, (bad, seen) in (("errors", errors), ("never", never)):
        labels = f'{{contract="served",clause="{clause}",slice=""}}'
        lines += [f"{OBSERVATIONS}{labels} {seen}", f"{EXCEEDANCES}{labels} {bad}"]
    partial = metrics.with_suffix(".new")
    partial.write_text("\n".join(lines) + "\n")
    partial.replace(metrics)


def _ask(address: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"{address}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)["data"]
    except (OSError, urllib.error.URLError):
        return None


def _value(address: str, query: str) -> float | None:
    data = _ask(address, "query?" + urllib.parse.urlencode({"query": query}))
    return float(data["result"][0]["value"][1]) if data and data["result"] else None


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "Prometheus did not get there"
        time.sleep(0.1)


def _firing(address: str) -> set[str]:
    alerts = (_ask(address, "alerts") or {"alerts": []})["alerts"]
    return {
        a["labels"]["clause"]
        for a in alerts
        if a["state"] == "firing" and a["labels"]["alertname"] == "KcverifyClauseFails"
    }


@pytest.mark.needs("prometheus")
def test_a_real_prometheus_fires_at_the_count_of_the_table(prometheus: tuple[str, Path]) -> None:
    """One exceedance below the integer table's number it is silent and says inconclusive, at the number it fires."""
    address, metrics = prometheus
    seen = 1000
    turn = alarm_count(seen, 0.01)
    assert turn == 21

    def verdict(clause: str) -> float | None:
        return _value(address, f'kcverify:verdict:sign{{contract="served",clause="{clause}"}}')

    _page(metrics, (0, seen), (0, seen))
    _wait(lambda: verdict("errors") == 1 and verdict("never") == 1)
    assert _firing(address) == set()
    _page(metrics, (turn - 1, seen), (0, seen))
    _wait(lambda: verdict("errors") == 0)
    assert _firing(address) == set()
    _page(metrics, (turn, seen), (1, seen))
    _wait(lambda: _firing(address) == {"errors", "never"})
    assert verdict("errors") == verdict("never") == -1


def test_what_is_read_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    for words in (("junit", "served.kc", "-o", "served.kc"), ("cloudevents", "--result", "result.json", "-o", "result.json")):  # fmt: skip
        before = (tmp_path / words[-1]).read_text()
        code, _, err = run("emit", *words)
        assert (code, "KC403 file_unwritable" in err, (tmp_path / words[-1]).read_text() == before) == (2, True, True)
