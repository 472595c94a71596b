"""Where answers go: a reader that leaves, a closed or full output change no verdict, and no message is lost among answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from promotion_cases import TEXT, result

COMMANDS = {
    ("gate", "lift.kc", "--stage", "offline", "--evidence", "bad.json"): 1,
    ("gate", "lift.kc", "--stage", "offline", "--evidence", "bad.json", "--format", "json"): 1,
    ("emit", "prometheus", "lift.kc"): 0,
    ("status", "--store", "none.db"): 2,
}
RUN = "import sys\nfrom kcverify.cli import main\n{before}\nmain(sys.argv[1:])"
AFTERS = {
    "a closed output": "import os; os.close(1); sys.stdout = None",
    "closed errors": "import os; os.close(2); sys.stderr = None",
    "full errors": "sys.stderr = open('/dev/full', 'w')",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lift.kc").write_text(TEXT)
    (tmp_path / "bad.json").write_text(result(50, bad=True))
    return tmp_path


def started(folder: Path, command: tuple[str, ...], before: str, out: int) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(before=before), *command], cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:2]))
def test_a_reader_that_has_gone_changes_no_verdict(command: tuple[str, ...], folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert started(folder, command, "", write)[0] == COMMANDS[command]
    finally:
        os.close(write)


@pytest.mark.parametrize("before", AFTERS)
def test_closed_outputs_change_no_verdict(before: str, folder: Path) -> None:
    for command in (next(iter(COMMANDS)), list(COMMANDS)[-1]):
        assert started(folder, command, AFTERS[before], subprocess.DEVNULL)[0] == COMMANDS[command]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_the_answer_is_told(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        code, told = started(folder, next(iter(COMMANDS)), "", full.fileno())
    assert (code, "KC403 file_unwritable" in told, "internal error" in told) == (2, True, False)
