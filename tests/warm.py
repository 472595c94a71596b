"""Python in a process of its own without the wait for imports: a server that has loaded all forks one child a command.

`Popen` and `run` take what their namesakes of `subprocess` take, for commands of this interpreter. The child has its own words,
variables, folder and streams; it can be killed, and waited for as any child. What the start of Python itself shows (which
modules load, `sitecustomize`, options of the interpreter) needs `subprocess`, and so does one real start of each command.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRELOADED = (
    "torch", "pydantic", "uvicorn", "kcverify.cli", "kcverify.output.check", "kcverify.measure.session", "kcverify.measure.run",
    "kcverify.runtime.monitor", "kcverify.emit.report", "kcverify.emit.monitor", "kcverify.readers.table",
    "kcverify.streams.shard_runs", "kcverify.serving.app", "kcverify.gateway.app", "kcverify.conformance.harness", "kcverify.editor.server",
)  # fmt: skip
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: the orphans of our children become our children."""


def _subreaper(on: bool) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, int(on), 0, 0, 0)


@functools.cache
def _server() -> socket.socket:
    """Our end of the line to the server, which ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    number = theirs.fileno()
    started = subprocess.Popen([sys.executable, __file__, str(number)], pass_fds=[number], env=variables, stdin=-3)
    theirs.close()
    atexit.register(lambda: (ours.close(), started.wait()))
    return ours


_ONE = threading.Lock()


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process of this interpreter, by the words `[sys.executable, ...]`."""

    def _execute_child(self, *given: Any, **more: Any) -> None:
        """What `subprocess` does between opening the pipes and waiting: ask for a fork and become its parent."""
        if sys.platform != "linux":
            super()._execute_child(*given, **more)  # type: ignore[misc]
            return
        known = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
        start = known.bind(self, *given, **more).arguments
        words = [os.fspath(word) for word in start["args"]]
        if words[0] != sys.executable or start["shell"] or start["preexec_fn"] or start["pass_fds"]:
            raise ValueError(f"not a plain command of this interpreter: {words}")
        variables = dict(os.environ if start["env"] is None else start["env"])
        job = {"words": words[1:], "folder": os.fspath(start["cwd"] or Path.cwd()), "variables": variables}
        streams = [start[n] if start[n] != -1 else own for own, n in enumerate(("p2cread", "c2pwrite", "errwrite"))]
        with _ONE:
            _subreaper(True)
            try:
                socket.send_fds(_server(), [json.dumps(job).encode()], streams)
                number = _server().recv(64)
            finally:
                _subreaper(False)
        if not number:
            raise RuntimeError("the server that forks has ended")
        self.pid, self._child_created = int(number), True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(start[end] for end in ends))  # type: ignore[attr-defined]


def run(words: list[str], *, input: Any = None, timeout: float | None = None, check: bool = False,
        capture_output: bool = False, **more: Any) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """As `subprocess.run`."""
    more |= {"stdin": subprocess.PIPE} if input is not None else {}
    more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with Popen(words, **more) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def serve(number: int) -> None:
    """Fork a child for each job that comes, and pass on its number once it has no parent here; until the line ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in PRELOADED:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    with contextlib.suppress(Exception):
        importlib.import_module("kcverify.driver").load(ROOT / "contracts" / "rl_rollout.kc")  # tables of the grammar
    line, base = socket.socket(fileno=number), [p for p in (*sys.path[1:], sys.path[0]) if p != str(ROOT)]
    while True:
        body, streams, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if not body:
            return
        heard, said = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if not child:
                line.close()
                os._exit(_child(json.loads(body), streams, base))
            os.write(said, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        line.send(os.read(heard, 64))
        for descriptor in (heard, said, *streams):
            os.close(descriptor)


def _child(job: dict[str, Any], streams: list[int], base: list[str]) -> int:
    """Become the process that the job describes, and do it. The exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["variables"])
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    for own, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = open(own, "wb" if own else "rb", buffering=0 if own and at_once else -1, closefd=False)  # noqa: SIM115
        new = io.TextIOWrapper(raw, encoding=old.encoding, errors=old.errors, write_through=at_once)
        new.reconfigure(line_buffering=own == 2 or new.isatty())
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    code = _ended(lambda: _do(job["words"], base))
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    except ValueError:  # closed by the command
        pass
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    return code


def _do(words: list[str], base: list[str]) -> None:
    """As the interpreter does with these words: `-m module`, `-c text`, or a file."""
    kind, rest = (words[0], words[1:]) if words[0] in ("-m", "-c") else ("", words)
    first = {"-m": str(Path.cwd()), "-c": "", "": str(Path(rest[0]).resolve().parent)}[kind]
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *base]
    sys.argv[:], sys.orig_argv[:] = ["-c", *rest[1:]] if kind == "-c" else rest, [sys.executable, *words]
    importlib.invalidate_caches()
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        runpy.run_path(rest[0], run_name="__main__")


def _ended(work: Any) -> int:
    """The exit code of some work, by the rules of the interpreter."""
    try:
        work()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(int(sys.argv[1]))
