"""A forked command is what a started one is: words, streams, variables, folder, exit code, death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm

SHOWN = "import os, sys; print(sys.argv, sys.path[:2], os.getcwd(), os.environ.get('X'), __name__, sys.stdin.read())"
ENDS = {
    "nothing": "",
    "a number": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "a text": "import sys; sys.exit('why')",
    "at the end": "import atexit; atexit.register(print, 'last')",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
    "a closed stream": "import sys; sys.stdout.close()",
    "at once": "import os; print('lost', end=''); os._exit(7)",
}


def both(*words: str, **more: object) -> list[tuple[int, str, str]]:
    given = {"capture_output": True, "text": True, "timeout": 60, "check": False} | more
    ways = (subprocess.run, warm.run)
    done = [way([sys.executable, *words], **given) for way in ways]  # type: ignore[operator]
    return [(one.returncode, one.stdout, one.stderr) for one in done]


def test_words_variables_and_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SHOWN)
    variables = {**os.environ, "X": "a b", "PYTHONPATH": str(tmp_path)}
    for words in (["-c", SHOWN, "x", "--y"], ["-m", "mine", "x"], [str(tmp_path / "mine.py"), "z"]):
        started, forked = both(*words, input="given", cwd=tmp_path, env=variables)
        assert started == forked and started[1].endswith("__main__ given\n"), forked


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_ends(code: str) -> None:
    started, forked = both("-c", code)
    assert started == forked


def test_an_exception_is_told() -> None:
    started, forked = both("-c", "1 / 0")
    assert started[0] == forked[0] == 1
    assert started[2].splitlines()[-1] == forked[2].splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_signals(number: signal.Signals) -> None:
    code = "import time; print('here', flush=True); time.sleep(60)"
    with warm.Popen([sys.executable, "-c", code], stdout=-1, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "here\n"
        assert child.poll() is None and Path(f"/proc/{child.pid}").exists()
        child.send_signal(number)
        assert child.wait(20) == -number


def test_what_is_no_command_of_this_interpreter_is_refused() -> None:
    with pytest.raises(ValueError, match="not a plain command"):
        warm.run(["true"])
