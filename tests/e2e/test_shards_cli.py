"""`measure` over dumps in shards as a user types it: killed and resumed, a worker that is lost, Ctrl-C, wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.needs("torch")

ROOT = Path(__file__).parents[2]
CONTRACT = """contract c
assume { temperature = 1; sampler = full_softmax; horizon <= 4 tokens; reward in [0, 1] }
numerical { drift: logit_span <= 0.5 except 2% -> L2 }
guarantee { safe: reward_drift <= 0.6 }
"""
SHARDS = 6
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def dumped(folder: Path, shards: int, rows: int, width: int) -> Path:
    draw = np.random.default_rng(3)
    (folder / "c.kc").write_text(CONTRACT, encoding="utf-8")
    for side in ("ref", "cand"):
        (folder / side).mkdir()
    for i in range(shards):
        logits = draw.normal(0, 3, (rows, width)).astype(np.float32)
        np.save(folder / "ref" / f"p-{i}.npy", logits)
        np.save(folder / "cand" / f"p-{i}.npy", logits + draw.normal(0, 0.01, logits.shape).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards that take a worker long enough to be killed in the middle."""
    return dumped(tmp_path_factory.mktemp("large"), SHARDS, 500, 8000)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return dumped(tmp_path, 2, 20, 50)


def command(*more: str) -> list[str]:
    sides = ("--reference", "ref", "--candidate", "cand", "--workers", "1", "--window", "8", "--format", "json")
    return [sys.executable, "-m", "kcverify", "measure", "c.kc", *sides, *more]


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*more), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*more), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def workers(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in found]


def wait_for(what: str, ready: object) -> None:
    for _ in range(3000):
        if ready():  # type: ignore[operator]
            return
        time.sleep(0.02)
    pytest.fail(f"{what} did not come")


def finished(folder: Path) -> int:
    return len(list((folder / "done").glob("shard-*.state")))


def test_a_killed_run_resumes_with_the_same_answer(large: Path) -> None:
    whole = run(large)
    assert whole.returncode == 0, whole.stderr
    victim = started(large, "--resume", "done")
    wait_for("a finished shard", lambda: finished(large) >= 1 or victim.poll() is not None)
    victim.kill()
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    kept = finished(large)
    assert 1 <= kept < SHARDS
    again = run(large, "--resume", "done")
    assert f"{kept} of {SHARDS} shards were measured before" in again.stderr
    assert f"{SHARDS - kept} shards, {500 * (SHARDS - kept):,} rows in " in again.stderr
    assert "rows/s" in again.stderr
    assert again.stdout == whole.stdout
    assert again.returncode == 0


def test_a_worker_that_is_killed_costs_its_shard_alone(large: Path) -> None:
    process = started(large, "--resume", "lost")
    wait_for("a worker", lambda: workers(process.pid) or process.poll() is not None)
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    found = json.loads(out)
    assert process.returncode == found["exit_code"] == 3
    assert not found["complete"]
    (lost,) = found["shards"]["lost"]
    assert lost["shard"] == "p-0"
    assert lost["reason"] == "its process was ended by SIGKILL, which the system sends where memory runs out"
    assert "shard p-0 was lost" in err
    assert "Traceback" not in err
    assert found["shards"]["measured"] == SHARDS - 1
    assert found["measured"]["rows"]["total"] == 500 * (SHARDS - 1)
    again = run(large, "--resume", "lost")
    assert f"{SHARDS - 1} of {SHARDS} shards were measured before" in again.stderr
    assert again.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_workers_and_reports_what_is_done(large: Path, number: signal.Signals) -> None:
    folder = f"stopped-{number}"
    process = started(large, "--resume", folder)
    wait_for("a finished shard", lambda: list((large / folder).glob("shard-*")) or process.poll() is not None)
    pool = workers(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Traceback" not in err
    found = json.loads(out)
    assert not found["complete"]
    assert found["shards"]["lost"] == []
    assert 1 <= found["shards"]["measured"] < SHARDS
    wait_for("the end of the workers", lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pool))


def test_a_missing_shard_is_wrong_input(small: Path) -> None:
    (small / "cand" / "p-1.npy").unlink()
    done = run(small)
    assert done.returncode == 2
    assert "the candidate has no shard of the same name as ref/p-1.npy" in done.stderr


def test_a_damaged_shard_is_wrong_input(small: Path) -> None:
    path = small / "ref" / "p-1.npy"
    path.write_bytes(path.read_bytes()[:100])
    done = run(small)
    assert done.returncode == 2
    assert "p-1.npy" in done.stderr


def test_another_contract_is_refused(small: Path) -> None:
    assert run(small, "--resume", "done").returncode in (0, 3)
    (small / "c.kc").write_text(CONTRACT.replace("0.5", "0.6"), encoding="utf-8")
    done = run(small, "--resume", "done")
    assert done.returncode == 2
    assert "done holds finished shards of another run: contract c sha256:" in done.stderr


def test_the_text_says_how_many_shards(small: Path) -> None:
    arguments = [word if word != "json" else "text" for word in command("--candidate", "cand/p-1.npy")]
    arguments[arguments.index("cand")] = "cand/p-0.npy"
    done = subprocess.run(
        arguments, cwd=small, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
    )
    assert "  2 of 2 shards, matched by name\n" in done.stdout
    assert "cand/p-0.npy, cand/p-1.npy against ref" in done.stdout
