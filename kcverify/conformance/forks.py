"""A process that has torch loaded and forks one child a job: each job is alone, none waits for the import of torch again.

The caller's own process cannot fork: threads that torch started do not survive it. Protocol on the pipes: a job as one line of
JSON in; the child's number out, then, when it ended, its status.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PRELOADED = ("kcverify.conformance.isolate", "kcverify.conformance.ranks")


@cache
def _server(number: int) -> subprocess.Popen[bytes]:
    """The process that forks; `number` counts those that ended."""
    path = os.pathsep.join(p for p in sys.path if p)
    started = subprocess.Popen(
        [sys.executable, "-m", "kcverify.conformance.forks", *PRELOADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, start_new_session=True, bufsize=0,
    )  # fmt: skip
    atexit.register(close, started)
    return started


def close(parent: subprocess.Popen[bytes]) -> None:
    """End it: no job follows."""
    assert parent.stdin is not None
    parent.stdin.close()
    try:
        parent.wait(10)
    except subprocess.TimeoutExpired:
        parent.kill()
        parent.wait()


def server() -> subprocess.Popen[bytes]:
    """The process that forks, started at the first call, and again after it ended."""
    number = 0
    while _server(number).poll() is not None:
        number += 1
    return _server(number)


@dataclass
class Child:
    """A running job; `status` once it ended: exit code, negative for a signal."""

    parent: subprocess.Popen[bytes]
    pid: int
    status: int | None = None

    def wait(self, seconds: float | None) -> int | None:
        """Its status, None where it still runs after so many seconds."""
        if self.status is None:
            line = _line(self.parent, seconds)
            self.status = None if line is None else int(line or -signal.SIGKILL)
        return self.status


@contextmanager
def child(module: str, function: str, arguments: list[Any], said: Path, environment: dict[str, str]) -> Iterator[Child]:
    """`module.function(*arguments)` in a child, what it says in a file. At the end it is killed with all that it started.

    It works in the caller's directory and looks for modules where the caller does. Raises RuntimeError where none starts.
    """
    job = {
        "module": module, "function": function, "arguments": arguments, "said": str(said), "environment": environment, "alone": True,
        "folder": str(Path.cwd()), "path": [str(Path.cwd()), *(p for p in sys.path if p)],
    }  # fmt: skip
    with _ONE:
        parent = server()
        assert parent.stdin is not None
        parent.stdin.write(json.dumps(job).encode() + b"\n")
        first = _line(parent, None)
        if not first:
            raise RuntimeError("no process for a kernel starts")
        running = Child(parent, int(first))
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait(None)


_ONE = threading.Lock()
"""One job at a time."""


def _line(parent: subprocess.Popen[bytes], seconds: float | None) -> bytes | None:
    """The next line of the parent, empty where it ended, None where there is none in time."""
    assert parent.stdout is not None
    ready, _, _ = select.select([parent.stdout], [], [], seconds)
    return parent.stdout.readline() if ready else None


def forked(job: dict[str, Any]) -> int:
    """The number of a child that does a job, and nothing else of this process; `alone`, in a group of processes of its own."""
    pid = os.fork()
    if pid:
        if job["alone"]:
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pid)
        return pid
    status = 1
    try:
        if job["alone"]:
            os.setpgid(0, 0)
        _redirect(job["said"])
        os.chdir(job["folder"])
        os.environ.update(job["environment"])
        sys.path[:] = list(dict.fromkeys(job["path"]))
        importlib.invalidate_caches()
        getattr(importlib.import_module(job["module"]), job["function"])(*job["arguments"])
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status & 0xFF)


def _redirect(said: str) -> None:
    """Nothing is read, what is printed is lost, what is complained of goes to a file."""
    nothing, told = os.open(os.devnull, os.O_RDWR), os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for old, new in ((nothing, 0), (nothing, 1), (told, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(told)


def serve(preloaded: list[str]) -> None:
    """One job after another, until the pipe is closed."""
    for name in preloaded:
        importlib.import_module(name)
    for line in sys.stdin.buffer:
        pid = forked(json.loads(line))
        os.write(1, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve(sys.argv[1:])
