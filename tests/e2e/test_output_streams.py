"""Where answers go: a reader that leaves, a closed or full output change no verdict, and no message is lost among answers."""

from __future__ import annotations

import io
import json
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


NAMED = 'contract named version "1"\n  "naïve 😀 ≤"\nassume { temperature = 1 }\nnumerical { a: tv <= 0.1 -> L1 }\n'


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_encoding_that_lacks_a_sign_changes_no_verdict(encoding: str, tmp_path: Path) -> None:
    """What the output cannot hold is escaped as JSON does it: readable as text, and the same data as JSON."""
    (tmp_path / "named.kc").write_text(NAMED, encoding="utf-8")
    answers = []
    for form in ("text", "json"):
        command = [sys.executable, "-c", RUN.format(before=""), "check", "named.kc", "--format", form]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        answers.append(done.stdout.decode(encoding))
    assert "na\\u00efve" in answers[0] if encoding == "ascii" else "naïve" in answers[0]
    assert ("\\u2264" in answers[0]) is (encoding != "utf-8")
    contract = json.loads(answers[1])["files"][0]["contracts"][0]
    assert contract["name"] == "named"


@pytest.mark.parametrize(
    ("name", "value", "wanted"), [("TERM", "xterm", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False)]
)
def test_a_terminal_without_colours_gets_none(
    name: str, value: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kcverify.cli import common

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for variable in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Terminal())
    assert common.color() is wanted
