"""`measure` over dumps in shards as a user types it: killed and resumed, a worker that is lost, Ctrl-C, wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import held_workers
import numpy as np
import pytest
import warm

pytestmark = pytest.mark.needs("torch")

ROOT = Path(__file__).parents[2]
CONTRACT = """contract c
assume { temperature = 1; sampler = full_softmax; horizon <= 4 tokens; reward in [0, 1] }
numerical { drift: logit_span <= 0.5 except 2% -> L2 }
guarantee { safe: reward_drift <= 0.6 }
"""
SHARDS, ROWS, HELD = 6, 500, 2
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
    """More shards than a run gets through that is stopped in the middle."""
    return dumped(tmp_path_factory.mktemp("large"), SHARDS, ROWS, 500)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return dumped(tmp_path, 2, 20, 50)


def command(*more: str) -> list[str]:
    sides = ("--reference", "ref", "--candidate", "cand", "--workers", "1", "--window", "8", "--format", "json")
    return [sys.executable, "-m", "kcverify", "measure", "c.kc", *sides, *more]


def run(folder: Path, *more: str, env: Mapping[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    done = warm.run(command(*more), cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def held(folder: Path, hook: Path, records: str) -> subprocess.Popen[str]:
    """A run whose one worker has finished `HELD` shards and waits for ever in the next one."""
    env = held_workers.environment(hook, ROOT, f"p-{HELD}.npy", "waiting")
    process = warm.Popen(
        command("--resume", records), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for("a finished shard", lambda: finished(folder, records) == HELD or process.poll() is not None)
    return process


def workers(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in found]


def wait_for(what: str, ready: object) -> None:
    for _ in range(3000):
        if ready():  # type: ignore[operator]
            return
        time.sleep(0.02)
    pytest.fail(f"{what} did not come")


def finished(folder: Path, records: str) -> int:
    return len(list((folder / records).glob("shard-*.state")))


def test_a_killed_run_resumes_with_the_same_answer(large: Path, tmp_path: Path) -> None:
    whole = run(large)
    assert whole.returncode == 0, whole.stderr
    victim = held(large, tmp_path, "done")
    victim.kill()
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert finished(large, "done") == HELD
    again = run(large, "--resume", "done")
    assert f"{HELD} of {SHARDS} shards were measured before" in again.stderr
    assert f"{SHARDS - HELD} shards, {ROWS * (SHARDS - HELD):,} rows in " in again.stderr
    assert "rows/s" in again.stderr
    first, second = json.loads(whole.stdout), json.loads(again.stdout)
    assert first.pop("run") != second.pop("run") and first == second
    assert again.returncode == 0


def test_a_worker_that_is_killed_costs_its_shard_alone(large: Path, tmp_path: Path) -> None:
    env = held_workers.environment(tmp_path, ROOT, "p-0.npy", "death")
    done = run(large, "--resume", "lost", env=env)
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == 3
    assert not found["complete"]
    (lost,) = found["shards"]["lost"]
    assert lost["shard"] == "p-0"
    assert lost["reason"] == "its process was ended by SIGKILL, which the system sends where memory runs out"
    assert "shard p-0 was lost" in done.stderr
    assert found["shards"]["measured"] == SHARDS - 1
    assert found["measured"]["rows"]["total"] == ROWS * (SHARDS - 1)
    again = run(large, "--resume", "lost")
    assert f"{SHARDS - 1} of {SHARDS} shards were measured before" in again.stderr
    assert again.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_workers_and_reports_what_is_done(large: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = held(large, tmp_path, f"stopped-{number}")
    pool = workers(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Traceback" not in err
    found = json.loads(out)
    assert not found["complete"]
    assert found["shards"]["lost"] == []
    assert found["shards"]["measured"] == HELD
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
    done = warm.run(arguments, cwd=small, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)
    assert "  2 of 2 shards, matched by name\n" in done.stdout
    assert "cand/p-0.npy, cand/p-1.npy against ref" in done.stdout
