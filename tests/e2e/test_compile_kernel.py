"""`kcverify compile --kernel`: the C++ that a monitor builds, as a user gets it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kcverify.cli import app

ROOT = Path(__file__).parents[2]


def test_the_kernel_is_written_beside_the_monitor(tmp_path: Path) -> None:
    monitor, kernel = tmp_path / "monitor.py", tmp_path / "rows.cpp"
    contract = ROOT / "contracts" / "rl_rollout.kc"
    done = CliRunner().invoke(app, ["compile", str(contract), "-o", str(monitor), "--kernel", str(kernel)])
    assert done.exit_code == 0, done.output
    assert "tv_limit=0.009999999999999998" in monitor.read_text()
    text = kernel.read_text()
    assert "TV_LIMIT = 0.009999999999999998;" in text and "kcverify_rows" in text


@pytest.mark.needs("compiler")
def test_the_kernel_compiles_alone(tmp_path: Path) -> None:
    kernel = tmp_path / "rows.cpp"
    contract = ROOT / "contracts" / "deploy_int8.kc"
    done = CliRunner().invoke(app, ["compile", str(contract), "-o", str(tmp_path / "m.py"), "--kernel", str(kernel)])
    assert done.exit_code == 0, done.output
    command = [
        shutil.which("c++") or shutil.which("g++") or "clang++",
        "-std=c++17",
        "-fsyntax-only",
        "-Wall",
        str(kernel),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr


def test_an_unwritable_kernel_is_an_error(tmp_path: Path) -> None:
    contract, where = ROOT / "contracts" / "deploy_int8.kc", tmp_path / "missing" / "rows.cpp"
    command = [sys.executable, "-m", "kcverify", "compile", str(contract), "-o", str(tmp_path / "m.py")]
    done = subprocess.run([*command, "--kernel", str(where)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "KC" in done.stderr and "Traceback" not in done.stderr
