"""Ctrl-C, SIGTERM and readers that have gone, at any moment of a real process: no traceback, and the exit code for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcverify.__main__ import INTERRUPTED, was_interrupted

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = str(ROOT / "contracts" / "rl_rollout.kc")
CHECK = ("check", CONTRACT)
MEASURE = ("measure", CONTRACT, "--reference", "demo:float32", "--candidate", "demo:int8", "--data", CONTRACT)
RAISED = "raise KeyboardInterrupt\n"
IN_A_CLASS = (
    "class D:\n    def __set_name__(self, owner, name):\n        raise KeyboardInterrupt\nclass C:\n    d = D()\n"
)
SENT = "import os, signal\nos.kill(os.getpid(), signal.{})\nfor _ in range(1000): pass\nraise SystemExit(9)\n"
SWALLOWED = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    for _ in range(1000): pass\nexcept BaseException: pass\nraise SystemExit(9)\n"
FINALIZED = (
    "class D:\n    def __del__(self):\n        raise KeyboardInterrupt\nD()\nraise ImportError('this is a test')\n"
)
AT_THE_END = "import atexit, os, signal\natexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), [0 for _ in range(1000)]))\nraise KeyError\n"


def run(folder: Path, words: tuple[str, ...], name: str, text: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that finds a module of this text first."""
    (folder / f"{name}.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "kcverify", *words], env=environment, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.mark.parametrize(
    ("words", "module"),
    [(CHECK, "typer"), (CHECK, "lark"), (CHECK, "z3"), (MEASURE, "torch")],
    ids=lambda x: x if isinstance(x, str) else x[0],
)
@pytest.mark.parametrize("text", [RAISED, IN_A_CLASS, SENT.format("SIGINT")], ids=["raised", "class", "sent"])
def test_ctrl_c_during_an_import(tmp_path: Path, words: tuple[str, ...], module: str, text: str) -> None:
    done = run(tmp_path, words, module, text)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "interrupted\n")


def test_ctrl_c_that_the_imported_module_would_swallow(tmp_path: Path) -> None:
    done = run(tmp_path, CHECK, "typer", SWALLOWED)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "interrupted\n")


def test_ctrl_c_in_a_finalizer_and_at_the_end_of_python(tmp_path: Path) -> None:
    done = run(tmp_path, MEASURE, "torch", AT_THE_END)
    assert done.returncode == INTERRUPTED and done.stderr.endswith("interrupted\n")
    done = run(tmp_path, MEASURE, "torch", FINALIZED)
    assert "KeyboardInterrupt" not in done.stderr and "this is a test" in done.stderr


@pytest.mark.parametrize(("words", "module"), [(CHECK, "typer"), (MEASURE, "torch")], ids=["typer", "torch"])
def test_sigterm_during_an_import(tmp_path: Path, words: tuple[str, ...], module: str) -> None:
    done = run(tmp_path, words, module, SENT.format("SIGTERM"))
    assert done.returncode in (-15, INTERRUPTED) and done.stderr in ("", "interrupted\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--help",), 0), (("check", "--help"), 0), (("--version",), 0), (("explain", "list"), 0), (("nonsense",), 2)],
)
def test_a_reader_that_has_gone(words: tuple[str, ...], code: int) -> None:
    """As in `| head -1`: of standard output, of both streams; and a standard output that was never open."""
    command = [sys.executable, "-m", "kcverify", *words]
    reader, writer = os.pipe()
    os.close(reader)
    one = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    both = subprocess.run(command, stdout=writer, stderr=writer, timeout=60)
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(writer)
    assert (one.returncode, both.returncode, closed.returncode) == (code, code, code)
    assert not any(word in one.stderr + closed.stderr for word in ("Traceback", "Error:\n", "internal", "Exception"))


def test_an_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    """As under `nohup`, or of a job in the background of a script."""
    (tmp_path / "typer.py").write_text("import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\nsys.exit(9)\n")
    command = f"trap '' INT; exec '{sys.executable}' -m kcverify --version"
    done = subprocess.run(
        ["sh", "-c", command], env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (9, b"")


def test_what_is_an_interrupt() -> None:
    wrapped = RuntimeError()
    wrapped.__cause__ = KeyboardInterrupt()
    assert was_interrupted(wrapped) and was_interrupted(KeyboardInterrupt())
    wrapped.__cause__ = wrapped
    assert not was_interrupted(wrapped) and not was_interrupted(None)
