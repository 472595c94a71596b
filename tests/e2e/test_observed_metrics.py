"""Every metric beyond a row, through the command line: measured, or the missing input named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm

ROOT = Path(__file__).parents[2]
HELDOUT = ROOT / "kcverify" / "data" / "heldout.txt"
CONTRACT = """contract c
assume { temperature = 1; reward in [0, 1] }
slice s = tag("s")
numerical {
  kept: logit_span(mass = 99.9%) <= 2 except 30% -> L2
  ratio: token_ratio in [0.2, 5] except 30% -> L1
  inverse: token_inverse_ratio in [0.2, 5] except 30% -> L1
  k3: mean token_k3 <= 1 nats -> L1
  kept_share: ess >= 0.5 -> L1
}
statistical {
  rank: rank <= 3 except 30% -> L1
  flips: flip_rate(margin = 0.5) <= 30% -> L1
  ece: ece_drift(bins = reference) <= 0.05 -> L1
  own: ece_drift(bins = own, count = 10) <= 0.2 -> L1
  text: perplexity_ratio in [0.9, 1.1] -> L1
  reward: reward_delta <= 0.5 -> L2
  answers: accuracy_delta <= 50% -> L2
  parses: parse_rate >= 60% -> L2
  parses_on: parse_rate >= 60% on s -> L2
  parse_delta: parse_rate_delta <= 50% -> L2
}
runtime {
  late: p60 latency <= 10 minutes over 1 h -> L1
  first: p60 time_to_first_token <= 1 s -> L1
  speed: throughput >= 1 tokens/s -> L1
  memory: peak_memory <= 64 GiB -> L1
  cache: kv_cache <= 1 MiB -> L1
  errors: failure_rate <= 40% -> L2
}
"""
MISSING = {
    "reward": "the reward of both sides on each prompt",
    "answers": "whether each answer of both sides is correct",
    "parses": "whether each response of the candidate parsed",
    "parses_on": "whether each response of the candidate parsed",
    "parse_delta": "whether each response of both sides parsed",
    "first": "the time to the first token of each request",
    "cache": "the size of the key-value cache",
}


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "c.kc"
    path.write_text(CONTRACT, encoding="utf-8")
    sides = ("--reference", "demo:float32", "--candidate", "demo:int8", "--data", str(HELDOUT))
    command = [
        sys.executable,
        "-m",
        "kcverify",
        "measure",
        str(path),
        *sides,
        "--window",
        "8",
        "--limit",
        "64",
        *options,
    ]
    done = warm.run(
        command, capture_output=True, text=True, cwd=folder, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    return done


def clauses(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {c["name"]: c for c in json.loads(done.stdout)["measured"]["clauses"]}


def test_what_a_run_can_tell_is_measured_and_the_rest_names_its_input(tmp_path: Path) -> None:
    done = run(tmp_path, "--format", "json")
    found = clauses(done)
    assert done.returncode == 3
    for name, clause in found.items():
        if name in MISSING:
            assert clause["verdict"] == "unobservable" and clause["reason"].startswith(MISSING[name]), clause
        elif name != "k3":
            assert clause["verdict"] == "pass", (name, clause["verdict"], clause["reason"])
    assert found["k3"]["verdict"] == "inconclusive"
    for clause in found.values():
        for low, high in clause["quantiles"].values():
            assert low <= high and (clause["limit"]["lower"] is not None or high <= clause["max"]["value"])


def test_a_file_of_outcomes_gives_the_rest(tmp_path: Path) -> None:
    lines = [
        {
            "request_id": f"r{i}", "tags": ["s"] if i % 2 else [], "reward_reference": 0.5, "reward_candidate": 0.5 + 0.01 * (i % 2),
            "correct_reference": True, "correct_candidate": True, "response_candidate": "[1]" if i % 10 else "[1", "response_reference": "[]",
            "time_to_first_token_ms": 20, "kv_cache_bytes": 1024,
        }
        for i in range(160)
    ]  # fmt: skip
    path = tmp_path / "seen.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = clauses(run(tmp_path, "--observations", str(path), "--parse", "json", "--format", "json"))
    for name in MISSING:
        assert found[name]["verdict"] == "pass", (name, found[name]["reason"])
    assert found["reward"]["evidence"]["observed"] == pytest.approx(0.005)
    assert found["parses"]["evidence"]["exceeding_requests"] == 16
    assert found["parses_on"]["evidence"]["requests"] == 80
    shown = run(tmp_path, "--observations", str(path), "--parse", "json").stdout
    assert "not enforced" not in shown and "reading of all requests" in shown
    assert "mean over requests of the share of exceeding rows" in shown


def test_a_fault_in_the_file_is_shown_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "seen.jsonl"
    path.write_text('{"request_id": 1, "latency_ms": 3}\n{"request_id": 2, "latency_ms": "soon"}\n', encoding="utf-8")
    done = run(tmp_path, "--observations", str(path))
    assert done.returncode == 2 and "seen.jsonl:2: `latency_ms` is 'soon', no number" in done.stderr
