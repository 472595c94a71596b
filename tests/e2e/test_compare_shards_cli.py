"""`compare` over dumps in shards as a user types it: killed and resumed, a worker that is lost, another run's folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import held_workers
import numpy as np
import pytest
import warm

ROOT = Path(__file__).parents[2]
SHARDS, ROWS, HELD = 5, 30, 2
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
TOLD = ("--declare-a", "temperature=1", "--declare-b", "temperature=1", "--format", "json")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of logits."""
    folder, draw = tmp_path_factory.mktemp("dump"), np.random.default_rng(3)
    for side in ("ref", "cand"):
        (folder / side).mkdir()
    for i in range(SHARDS):
        logits = draw.normal(0, 3, (ROWS, 500)).astype(np.float32)
        np.save(folder / "ref" / f"p-{i}.npy", logits)
        np.save(folder / "cand" / f"p-{i}.npy", logits + draw.normal(0, 0.01, logits.shape).astype(np.float32))
    return folder


def started(folder: Path, *more: str, env: Mapping[str, str] = ENVIRONMENT) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "kcverify", "compare", "ref", "cand", *TOLD, *more]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return warm.Popen(words, cwd=folder, env=env, **pipes)


def run(folder: Path, *more: str, env: Mapping[str, str] = ENVIRONMENT) -> tuple[int, str, str]:
    process = started(folder, *more, env=env)
    out, err = process.communicate(timeout=240)
    assert "Traceback" not in out + err
    return process.returncode, out, err


def held(dump: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A run whose one worker has finished `HELD` shards and waits for ever in the next one, and its folder of records."""
    records = tmp_path / "records"
    env = held_workers.environment(tmp_path, ROOT, f"p-{HELD}.npy", "waiting")
    process = started(dump, "--workers", "1", "--resume", str(records), env=env)
    for _ in range(6000):
        if len(list(records.glob("*.state"))) == HELD:
            return process, records
        if process.poll() is not None:
            break
        time.sleep(0.01)
    pytest.fail(f"{HELD} shards were not finished: {process.communicate()}")


def test_a_killed_run_resumes_with_the_same_bytes(dump: Path, tmp_path: Path) -> None:
    whole = run(dump, "--executor", "serial")
    assert whole[0] == 0, whole[2]
    assert f"{SHARDS} shards, {SHARDS * ROWS:,} rows in" in whole[2] and "rows/s" in whole[2]
    process, records = held(dump, tmp_path)
    process.kill()
    process.communicate()
    assert len(list(records.glob("*.state"))) == HELD
    code, out, err = run(dump, "--workers", "2", "--resume", str(records))
    assert (code, out) == whole[:2] and f"{HELD} of {SHARDS} shards were compared before" in err
    code, _, err = run(dump, "--resume", str(records), "--as", "trl")
    assert code == 2 and "options" in err


def test_a_worker_that_is_killed_costs_its_shard_alone(dump: Path, tmp_path: Path) -> None:
    env = held_workers.environment(tmp_path, ROOT, f"p-{HELD}.npy", "death")
    code, out, _ = run(dump, "--workers", "1", env=env)
    found = json.loads(out)
    assert code == 3 and found["verdict"] == "incomplete" and found["shards"]["compared"] == SHARDS - 1
    (lost,) = found["shards"]["lost"]
    assert lost["shard"] == f"p-{HELD}"
    assert lost["reason"] == "its process was ended by SIGKILL, which the system sends where memory runs out"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_an_answer_for_what_is_done(dump: Path, tmp_path: Path, number: signal.Signals) -> None:
    process, _ = held(dump, tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 3 and "Traceback" not in err
    found = json.loads(out)
    assert found["verdict"] == "incomplete" and found["shards"]["compared"] == HELD and found["shards"]["lost"] == []
