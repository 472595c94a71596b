"""`compare` over dumps in shards as a user types it: killed and resumed, a worker that is lost, another run's folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SHARDS = 5
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
TOLD = ("--declare-a", "temperature=1", "--declare-b", "temperature=1", "--format", "json")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of logits that take a worker long enough to be killed in the middle."""
    folder, draw = tmp_path_factory.mktemp("dump"), np.random.default_rng(3)
    for side in ("ref", "cand"):
        (folder / side).mkdir()
    for i in range(SHARDS):
        logits = draw.normal(0, 3, (300, 4000)).astype(np.float32)
        np.save(folder / "ref" / f"p-{i}.npy", logits)
        np.save(folder / "cand" / f"p-{i}.npy", logits + draw.normal(0, 0.01, logits.shape).astype(np.float32))
    return folder


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "kcverify", "compare", "ref", "cand", *TOLD, *more]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, **pipes)


def run(folder: Path, *more: str) -> tuple[int, str, str]:
    process = started(folder, *more)
    out, err = process.communicate(timeout=240)
    assert "Traceback" not in out + err
    return process.returncode, out, err


def wait_for(what: str, ready: Any) -> None:
    for _ in range(3000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen")


def test_a_killed_run_resumes_with_the_same_bytes(dump: Path, tmp_path: Path) -> None:
    whole = run(dump, "--executor", "serial")
    assert whole[0] == 0, whole[2]
    assert f"{SHARDS} shards, {SHARDS * 300:,} rows in" in whole[2] and "rows/s" in whole[2]
    process = started(dump, "--workers", "1", "--resume", str(tmp_path))
    wait_for("a finished shard", lambda: list(tmp_path.glob("*.state")))
    process.kill()
    process.communicate()
    done = len(list(tmp_path.glob("*.state")))
    assert 1 <= done < SHARDS
    code, out, err = run(dump, "--workers", "2", "--resume", str(tmp_path))
    assert (code, out) == whole[:2] and f"{done} of {SHARDS} shards were compared before" in err
    code, _, err = run(dump, "--resume", str(tmp_path), "--as", "trl")
    assert code == 2 and "options" in err


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="workers are found in /proc")
def test_a_worker_that_is_killed_costs_its_shard_alone(dump: Path, tmp_path: Path) -> None:
    process = started(dump, "--workers", "1", "--resume", str(tmp_path))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def workers() -> list[int]:
        pids = [int(pid) for pid in children.read_text().split()]
        return [pid for pid in pids if b"serve()" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    wait_for("a finished shard", lambda: list(tmp_path.glob("*.state")))
    time.sleep(0.3)  # an idle worker that dies costs nothing: let it take the next shard
    os.kill(workers()[0], signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 3 and "Traceback" not in err
    found = json.loads(out)
    assert found["verdict"] == "incomplete" and found["shards"]["compared"] == SHARDS - 1
    assert len(found["shards"]["lost"]) == 1
    assert "SIGKILL" in found["shards"]["lost"][0]["reason"]


def test_ctrl_c_answers_for_what_is_done(dump: Path, tmp_path: Path) -> None:
    process = started(dump, "--workers", "1", "--resume", str(tmp_path))
    wait_for("a finished shard", lambda: list(tmp_path.glob("*.state")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 3 and "Traceback" not in err
    assert json.loads(out)["verdict"] == "incomplete"
