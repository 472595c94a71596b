"""The tutorial does what it says: its files are written, its commands run in order, its Python runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command of the tutorial has been run."""
    where = tmp_path_factory.mktemp("tutorial")
    for kind, name, body in BLOCKS:
        if kind == "kc":
            (where / name).write_text(body, encoding="utf-8")
        elif kind == "console":
            _console(body, where)
    return where


def _run(words: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(where)])}
    return subprocess.run(words, cwd=where, env=environment, capture_output=True, text=True, timeout=120, check=False)


def _console(body: str, where: Path) -> None:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        command, _, note = line.partition("#")
        assert command.startswith("kcverify ")
        expected = re.search(r"exit (\d)", note)
        done = _run([sys.executable, "-m", *shlex.split(command)], where)
        assert done.returncode == (int(expected[1]) if expected else 0), done.stdout + done.stderr
        for wanted in shown.strip().splitlines():
            assert wanted.strip() in done.stdout, f"`{command}` does not print {wanted!r}:\n{done.stdout}"


def test_the_commands(folder: Path) -> None:
    assert (folder / "rollout_monitor.py").is_file()


@pytest.mark.needs("torch")
def test_the_monitor_runs(folder: Path) -> None:
    [code] = [body for kind, _, body in BLOCKS if kind == "python"]
    done = _run([sys.executable, "-c", code], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "drift inconclusive"


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (ROOT / "docs" / target).resolve().is_file()
