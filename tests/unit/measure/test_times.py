"""Clauses about a window in time: where the times of requests come from, and what is said where nothing tells them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kcverify import driver
from kcverify.diagnostics import InputError
from kcverify.measure.options import MeasureOptions

REQUESTS, ROWS = 90, 2
CONTRACT = """contract c
numerical {
  span: logit_span <= 0.5 except 10% over 60 s -> L2
  worst: logit_span <= 0.5 over 60 s -> L2
  always: logit_span <= 0.5 except 10% -> L2
}
"""
NEED = "span, worst: a window in time needs the time of every request"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    z = np.random.default_rng(0).normal(size=(REQUESTS * ROWS, 8)).astype("f4")
    np.save(tmp_path / "z.npy", z)
    (tmp_path / "c.kc").write_text(CONTRACT)
    return tmp_path


def data(folder: Path, name: str, **fields: Any) -> str:
    """A file of requests; a callable field is one of the request's number."""
    lines = [
        {"request_id": f"r{i}", "token_ids": [1, 2]} | {k: v(i) if callable(v) else v for k, v in fields.items()}
        for i in range(REQUESTS)
    ]
    (folder / name).write_text("\n".join(map(json.dumps, lines)))
    return str(folder / name)


def run(folder: Path, candidate: str, source: str | None, **options: Any) -> tuple[dict[str, str], list[str]]:
    """Verdict of each clause, and the notes."""
    contract = driver.select(driver.load(str(folder / "c.kc")), None)
    sides = ([str(folder / "z.npy")], [candidate if ":" in candidate else str(folder / candidate)])
    found = driver.measure(contract, *sides, source, MeasureOptions(window=ROWS, **options))["measured"]
    return {c["name"]: c["verdict"] for c in found["clauses"]}, found["notes"]


@pytest.mark.parametrize("executor", [None, "serial"])
def test_without_times_the_note_says_what_to_give(folder: Path, executor: str | None) -> None:
    verdicts, notes = run(folder, "z.npy", data(folder, "d.jsonl"), executor=executor)
    assert verdicts == {"span": "unobservable", "worst": "unobservable", "always": "pass"}
    (note,) = (n for n in notes if n.startswith(NEED))
    assert "`time_s` in the data or the observations" in note and "`times` in a .safetensors file" in note


@pytest.mark.parametrize("executor", [None, "serial"])
def test_times_of_the_data_and_of_the_observations(folder: Path, executor: str | None) -> None:
    one = data(folder, "one.jsonl", time_s=lambda i: 120 + i / 2)
    assert set(run(folder, "z.npy", one, executor=executor)[0].values()) == {"pass"}
    several = data(folder, "several.jsonl", time_s=lambda i: 2 * i)
    verdicts, notes = run(folder, "z.npy", several, executor=executor)
    assert verdicts == {"span": "inconclusive", "worst": "inconclusive", "always": "pass"}
    assert "span, worst: measure the requests of one window at a time" in notes
    seen = folder / "seen.jsonl"
    seen.write_text("\n".join(json.dumps({"request_id": f"r{i}", "time_s": 30.5}) for i in range(REQUESTS)))
    plain = data(folder, "plain.jsonl")
    assert set(run(folder, "z.npy", plain, executor=executor, observations=seen)[0].values()) == {"pass"}
    seen.write_text("\n".join(json.dumps({"request_id": f"r{i}", "time_s": 30.5}) for i in range(REQUESTS - 1)))
    assert run(folder, "z.npy", plain, executor=executor, observations=seen)[0]["span"] == "unobservable"


@pytest.mark.parametrize("executor", [None, "serial"])
def test_times_in_a_file_of_logits(folder: Path, executor: str | None) -> None:
    logits = torch.from_numpy(np.load(folder / "z.npy"))
    for dtype, name in ((torch.float64, "a.safetensors"), (torch.int32, "b.safetensors")):
        times = torch.full((REQUESTS * ROWS,), 7, dtype=dtype)
        save_file({"logits": logits, "times": times}, folder / name)
        assert set(run(folder, name, None, executor=executor)[0].values()) == {"pass"}
    save_file({"logits": logits, "times": torch.arange(REQUESTS * ROWS).float()}, folder / "c.safetensors")
    assert run(folder, "c.safetensors", None, executor=executor)[0]["span"] == "inconclusive"


def test_the_clock_where_the_candidate_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "live_side.py").write_text(
        "import numpy, torch\nz = torch.from_numpy(numpy.load('z.npy'))\nat = 0\n"
        "def logits(ids):\n    global at\n    at += ids.numel()\n"
        "    return z[at - ids.numel() : at].reshape(*ids.shape, -1)\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    ticks = itertools.count()
    verdicts, notes = run(folder, "live_side:logits", data(folder, "d.jsonl"), clock=lambda: next(ticks) / 100)
    assert set(verdicts.values()) == {"pass"}
    assert "times of requests are those of the candidate's calls in this run" in notes


def test_times_that_are_none_are_refused(folder: Path) -> None:
    for wrong in (True, "noon", 10**400):
        with pytest.raises(InputError, match="time_s"):
            run(folder, "z.npy", data(folder, "bad.jsonl", time_s=wrong))
    logits = torch.from_numpy(np.load(folder / "z.npy"))
    for times in (torch.zeros(3), torch.zeros(REQUESTS * ROWS, dtype=torch.bool)):
        save_file({"logits": logits, "times": times}, folder / "bad.safetensors")
        with pytest.raises(InputError, match="times"):
            run(folder, "bad.safetensors", None)
