"""Promotion through the command line: from a measurement to full traffic, with every answer and exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from promotion_cases import TEXT, result

from kcverify.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lift.kc").write_text(TEXT)

    def one(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(stop.value.code or 0), out, err

    return one


def test_from_offline_to_full(run: Run, tmp_path: Path) -> None:
    (tmp_path / "offline.json").write_text(result(50))
    assert run("gate", "lift.kc", "--stage", "offline", "--evidence", "offline.json")[0] == 0
    code, out, err = run("promote", "lift.kc", "--store", "s.db", "--evidence", "offline.json")
    assert (code, err.strip()) == (0, "s.db: started in offline")
    assert "promoted from offline to shadow" in out
    code, out, _ = run("promote", "lift.kc", "--store", "s.db")
    assert code == 3 and "not promoted: the candidate stays in shadow" in out
    code, _, err = run("promote", "lift.kc", "--store", "s.db", "--evidence", "offline.json")
    assert code == 2 and "KC609 evidence_reused" in err
    for number, place in enumerate(("canary 1/2", "canary 2/2", "full")):
        (tmp_path / f"{number}.json").write_text(result(51 + number))
        code, out, _ = run("promote", "lift.kc", "--store", "s.db", "--evidence", f"{number}.json")
        assert code == 0 and f"to {place}" in out
    (tmp_path / "late.json").write_text(result(90))
    code, out, _ = run("promote", "lift.kc", "--store", "s.db", "--evidence", "late.json")
    assert code == 3 and "the stage must be stable for at least 1 d" in out
    assert "full" in run("status", "--store", "s.db")[1]
    assert run("rebuild", "--store", "s.db")[0] == 0
    head = json.loads(run("history", "--store", "s.db", "--format", "json")[1])["head"]
    assert run("rollback", "--store", "s.db", "--reason", "a test")[0] == 0
    assert "full -> offline (a test)" in run("history", "--store", "s.db")[1]
    assert run("rebuild", "--store", "s.db", "--anchor", head)[0] == 0
    code, _, err = run("rebuild", "--store", "s.db", "--anchor", f"99:{'0' * 64}")
    assert code == 2 and "KC605 event_tampered" in err


def test_a_failing_clause_gives_exit_code_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(result(50, bad=True))
    code, out, _ = run("gate", "lift.kc", "--stage", "offline", "--evidence", "bad.json")
    assert code == 1 and "far: fail, seen" in out
    assert run("promote", "lift.kc", "--store", "s.db", "--evidence", "bad.json")[0] == 1
    (tmp_path / "good.json").write_text(result(60))
    code, out, _ = run("promote", "lift.kc", "--store", "s.db", "--evidence", "good.json")
    assert code == 1 and "it failed earlier in this stage" in out
    code, out, _ = run("gate", "lift.kc", "--store", "s.db", "--format", "json")
    assert code == json.loads(out)["exit_code"] == 1


def test_no_stage_is_skipped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(result(50))
    for place in ("full", "canary 1/2", "offline", "settled", "nowhere"):
        code, _, err = run("promote", "lift.kc", "--store", "s.db", "--evidence", "r.json", "--to", place)
        assert code == 2 and "KC607 transition_illegal" in err and "`enter shadow`" in err
    assert run("promote", "lift.kc", "--store", "s.db", "--evidence", "r.json", "--to", "shadow")[0] == 0
    code, _, err = run("promote", "lift.kc", "--store", "s.db", "--if-version", "1")
    assert code == 2 and "KC606 stage_moved" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("gate", "lift.kc"), "--stage"),
        (("gate", "lift.kc", "--stage", "offline"), "--evidence"),
        (("gate", "lift.kc", "--stage", "later", "--evidence", "r.json"), "KC612"),
        (("gate", "lift.kc", "--stage", "offline", "--evidence", "none.json"), "KC401"),
        (("gate", "lift.kc", "--stage", "offline", "--evidence", "lift.kc"), "KC608"),
        (("gate", "lift.kc", "--stage", "offline", "--evidence", "empty"), "KC402"),
        (("gate", "lift.kc", "--stage", "offline", "--evidence", "."), "KC401"),
        (("gate", "lift.kc", "--stage", "shadow", "--evidence", "r.json", "--held", "2 requests"), "KC418"),
        (("gate", "lift.kc", "--store", "none.db"), "KC601"),
        (("status", "--store", "none.db"), "KC601"),
        (("status", "--store", "lift.kc"), "KC602"),
        (("rollback", "--store", "none.db"), "KC601"),
        (("history", "--store", "none.db"), "KC601"),
        (("rebuild", "--store", "none.db", "--anchor", "x"), "KC601"),
    ],
)
def test_wrong_input_is_told(arguments: tuple[str, ...], told: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(result(50))
    (tmp_path / "empty").touch()
    code, _, err = run(*arguments)
    assert code == 2 and told in err


def test_how_long_a_stage_has_lasted_can_be_given(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lift.kc").write_text(TEXT.replace("for 0 s", "for 2 h"))
    (tmp_path / "r.json").write_text(result(50, text=TEXT.replace("for 0 s", "for 2 h")))
    words = ("gate", "lift.kc", "--stage", "shadow", "--evidence", "r.json")
    assert run(*words)[0] == 3
    assert run(*words, "--held", "90 minutes")[0] == 3
    assert run(*words, "--held", "2 h")[0] == 0


def test_a_gate_over_json_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "lift.kc").write_text(TEXT)
    (tmp_path / "r.json").write_text(result(50))
    code = (
        "import sys\nfrom kcverify.cli import main\n"
        "try: main(['gate', 'lift.kc', '--stage', 'offline', '--evidence', 'r.json'])\n"
        "except SystemExit as stop: print(stop.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


@pytest.mark.needs("torch")
def test_a_measurement_is_evidence(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "text.txt").write_text("Measure twice, promote once. " * 200)
    words = ("measure", "lift.kc", "--reference", "demo:float32", "--candidate", "demo:bf16", "--data", "text.txt")
    code, out, err = run(*words, "--window", "32", "--format", "json")
    assert code in (0, 3), err
    (tmp_path / "result.json").write_text(out)
    code, out, _ = run("gate", "lift.kc", "--stage", "offline", "--evidence", "result.json", "--format", "json")
    measured = json.loads((tmp_path / "result.json").read_text())
    decided = {c["clause"]: c["verdict"] for c in json.loads(out)["gate"]["clauses"]}
    assert decided == {c["name"]: c["verdict"] for c in measured["measured"]["clauses"]}
    assert code == {"pass": 0, "inconclusive": 3}[measured["verdict"]]


def test_hostile_names_stay_text(run: Run, tmp_path: Path) -> None:
    name = "s'; DROP TABLE events; --?mode=ro#.db"
    (tmp_path / "r.json").write_text(result(50))
    assert run("promote", "lift.kc", "--store", name, "--evidence", "r.json")[0] == 0
    reason = "'); DROP TABLE events; \x1b[31m</script>"
    assert run("rollback", "--store", name, "--reason", reason)[0] == 0
    out = run("history", "--store", name)[1]
    assert "DROP TABLE" in out and "\x1b" not in out
    assert (tmp_path / name).is_file()
