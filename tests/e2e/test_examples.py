"""The examples run as a user runs them, in a folder of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return warm.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder: Path, name: str, *arguments: str) -> str:
    with start(folder, name, *arguments) as child:
        out, err = child.communicate(timeout=240)
    assert child.returncode == 0, err
    return out


def test_examples_are_short_and_known() -> None:
    scripts = sorted(p.name for p in (ROOT / "examples").glob("*.py"))
    assert scripts == ["grpo_int8.py", "pg_bias.py", "training_loop.py", "transformers_generation.py"]
    for name in scripts:
        assert len((ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.needs("torch")
def test_training_loop_survives_a_kill(tmp_path: Path) -> None:
    """The run is killed once its file is there, at whatever instruction; going on gives the output of a whole run."""
    import torch

    with start(tmp_path, "training_loop.py", "--steps", "100000", "--state", "killed.pt") as child:
        while not (tmp_path / "killed.pt").exists() and child.poll() is None:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    done = torch.load(tmp_path / "killed.pt", weights_only=True)["progress"]["step"]
    steps = max(done, 15) + 5
    whole = run(tmp_path, "training_loop.py", "--steps", str(steps), "--state", "whole.pt")
    assert whole.startswith(f"{24 * steps} responses, {24 * 16 * steps} tokens, after step {steps}\n")
    assert re.findall(r"^  (\w+) +(\w+):", whole, re.MULTILINE)[0] == ("pass", "drift")
    assert run(tmp_path, "training_loop.py", "--steps", str(steps), "--state", "killed.pt") == whole


@pytest.mark.needs("torch")
def test_grpo_with_and_without_masks(tmp_path: Path) -> None:
    small = ("--steps", "2", "--prompts", "2", "--group", "4", "--tokens", "6")
    out = run(tmp_path, "grpo_int8.py", *small)
    assert out.startswith("mask: ratio: importance_ratio in [0.8, 1.25] except 5% -> L2 (token)\n")
    without, _, with_masks = out.partition("with masks\n")
    assert "no mask: kl, " in without and without.count("step ") == 2 and "kept" not in without
    assert with_masks.count("step ") == 2 and with_masks.count(", kept ") == 2 and "ess 0.9" in with_masks
    assert out.count("16 responses") == 2 and "unobservable" not in out


@pytest.mark.needs("torch")
def test_policy_gradient_bias_stays_below_every_bound(tmp_path: Path) -> None:
    out = run(tmp_path, "pg_bias.py", "--seeds", "2", "--vocabulary", "3", "--horizon", "3")
    assert out.startswith("16 runs, 3^3 responses each: 0 above their bound\n")
    assert [line[:26].rstrip() for line in out.splitlines()[2:]] == [
        "bias, its own TV",
        "bias, proved",
        "TV of responses, proved",
        "truncated, its own mass",
        "truncated, proved",
        "clip room above",
        "clip room below",
    ]


@pytest.mark.needs("transformers")
def test_transformers_generation(tmp_path: Path) -> None:
    out = run(tmp_path, "transformers_generation.py", "--prompts", "20", "--batch", "8")
    found = re.match(r"20 responses, (\d+) tokens\n", out)
    assert found and 20 * 8 < int(found.group(1)) <= 20 * 16, out
    assert out.count("in response prompt-") == 3 and "fail" not in out and "unobservable" not in out
