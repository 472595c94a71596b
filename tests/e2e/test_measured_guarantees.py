"""`measure` through the command line: what it says about the guarantees, one look, and clauses on several slices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "contracts" / "deploy_int8.kc"


def measure(
    contract: Path, tmp_path: Path, *options: str, candidate: str = "demo:int8"
) -> subprocess.CompletedProcess[str]:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 120, encoding="utf-8")
    command = [sys.executable, "-m", "kcverify", "measure", str(contract), "--reference", "demo:float32"]
    rest = ["--candidate", candidate, "--data", str(text), "--window", "8", *options]
    return warm.run([*command, *rest], capture_output=True, text=True, cwd=tmp_path, check=False)


def answer(*args: Any, **fields: Any) -> dict[str, Any]:
    done = measure(*args, "--format", "json", **fields)
    assert done.returncode in (0, 1, 3), done.stderr
    return json.loads(done.stdout)


def test_it_ends_with_a_measured_sentence_next_to_the_proof(tmp_path: Path) -> None:
    done = measure(CONTRACT, tmp_path, "--report", "page.html")
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(row for row in done.stdout.splitlines() if row.startswith("  measured: reward_safe"))
    assert "with confidence 99 %, measured, by drift (logit_span <= 0.6 except" in line
    assert line.endswith("if every clause holds: <= 0.157397, PROVED")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "with confidence 99 %, measured, by drift" in page and "about the traffic measured" in page


def test_one_look_is_named_and_certifies_more(tmp_path: Path) -> None:
    found = answer(CONTRACT, tmp_path, "--fixed-sample", "--limit", "300")
    peeked = answer(CONTRACT, tmp_path, "--limit", "300")
    (clause,), (other,) = found["measured"]["clauses"], peeked["measured"]["clauses"]
    assert found["measured"]["looks"] == "one look" and (found["verdict"], peeked["verdict"]) == (
        "pass",
        "inconclusive",
    )
    assert clause["evidence"]["at_most"] < other["evidence"]["at_most"]
    assert clause["evidence"]["p_pass"] <= 0.05 and clause["evidence"]["log_e_pass"] is None
    one, many = found["measured_guarantees"]["statements"][0], peeked["measured_guarantees"]["statements"][0]
    assert float(one["bound"]) < float(many["bound"])
    text = measure(CONTRACT, tmp_path, "--fixed-sample", "--limit", "2").stdout
    assert "temperature 1, one look" in text.splitlines()[0]


def test_a_clause_on_several_slices_names_its_rule(tmp_path: Path) -> None:
    source = CONTRACT.read_text(encoding="utf-8")
    slices = "\n".join(f"slice s{i} = position >= {i}" for i in range(3))
    source = source.replace("numerical {", slices + "\n\nnumerical {").replace(
        "except 1% -> L2", "except 1% on s0, s1, s2 -> L2"
    )
    (tmp_path / "many.kc").write_text(source, encoding="utf-8")
    found = answer(tmp_path / "many.kc", tmp_path, "--limit", "200", candidate="demo:int4")
    rules = {c["evidence"]["many_slices"] for c in found["measured"]["clauses"]}
    assert rules == {"e-BH over 3 slices"}
    assert [c["verdict"] for c in found["measured"]["clauses"]] == ["fail"] * 3
    assert "clause drift: which slices fail is decided by e-BH over 3 slices" in found["measured"]["notes"]
