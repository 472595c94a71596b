"""One `map(function, jobs)` for every way to spread work: this process, a pool of processes, and others of that form.

Answers come in the order in which they are ready. A job that fails answers with what failed, and so does one whose
process dies; neither stops the others. A pool's processes are started afresh, with pipes of their own, so that a caller
needs no guarded main module, a dead one is known by its job, and none outlives its parent.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import queue
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from kcverify.diagnostics import Diagnostic, InputError, input_error

_LENGTH = struct.Struct("<Q")
_START = "import sys; sys.path[:] = {path!r}; from kcverify.executors.pool import serve; serve()"
_BEGUN = b""
"""What a process sends before it looks at a job."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Answer:
    """What became of job `index`: its value, or the diagnostics of wrong input, or how its process was lost, or a fault."""

    index: int
    value: Any = None
    diagnostics: tuple[Diagnostic, ...] = ()
    lost: str = ""
    fault: str = ""


class Executor(Protocol):
    """Spreads jobs. Function, jobs and values must be picklable; the function is found by its module and name."""

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Generator[Answer, None, None]:
        """An answer for each job, as they are ready. Closing the iterator stops what still runs."""


def attempt(function: Callable[[Any], Any], index: int, job: Any) -> Answer:
    """The answer of a job that is run here; no exception leaves but Ctrl-C."""
    try:
        return Answer(index, function(job))
    except InputError as error:
        return Answer(index, diagnostics=error.diagnostics)
    except MemoryError:
        return Answer(index, lost="there was not enough memory")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Answer(index, fault=f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")


class Serial:
    """One job after the other, in this process."""

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Generator[Answer, None, None]:
        """See `Executor`."""
        for index, job in enumerate(jobs):
            yield attempt(function, index, job)


class Processes:
    """`workers` processes (None: one a core) with one thread of arithmetic each, so that cores are never oversubscribed.

    One thread whatever the number of workers also keeps every sum in one order, and so results equal bit for bit.
    """

    def __init__(self, workers: int | None = None) -> None:
        """Raises InputError (`option_invalid`) for a number of workers below 1."""
        if workers is not None and workers < 1:
            raise input_error("option_invalid", option="--workers", reason=f"{workers} is not a positive number")
        self.workers = workers or cores()

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Generator[Answer, None, None]:
        """See `Executor`."""
        waiting = deque(enumerate(jobs))
        idle: list[_Worker] = []
        busy: list[_Worker] = []
        try:
            with selectors.DefaultSelector() as ready:
                while waiting or busy:
                    while waiting and len(busy) < self.workers:
                        worker = idle.pop() if idle else _Worker()
                        if worker.process.poll() is not None:  # it died with nothing to do: no job is to blame
                            worker.stop()
                            continue
                        busy.append(worker)
                        worker.send(function, *waiting.popleft())
                        ready.register(worker.output, selectors.EVENT_READ, worker)
                    for event, _ in ready.select():
                        worker = event.data
                        answer = worker.receive()
                        if answer is None:
                            continue
                        ready.unregister(worker.output)
                        busy.remove(worker)
                        if not worker.dead:
                            idle.append(worker)
                            yield answer
                            continue
                        worker.stop()
                        if worker.died_idle:
                            waiting.appendleft((worker.index, jobs[worker.index]))
                        else:
                            yield answer
        finally:
            for worker in (*idle, *busy):
                worker.stop()


def cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (len(allowed(0)) if allowed is not None else os.cpu_count()) or 1


class _Worker:
    """One process of a pool and the pipes to it."""

    def __init__(self) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, env={**os.environ, **dict.fromkeys(_THREADS, "1")}, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input = self.process.stdin
        # nothing read ahead, which would be ready and not seen
        self.output = io.FileIO(self.process.stdout.fileno(), closefd=False)
        self.index, self.dead, self.answers, self.begun = -1, False, 0, False

    @property
    def died_idle(self) -> bool:
        """Whether it died between two jobs, though its end showed only when it had been given the second."""
        return self.dead and self.answers > 0 and not self.begun

    def send(self, function: Callable[[Any], Any], index: int, job: Any) -> None:
        """Hand over a job; a dead process shows when its answer is received."""
        self.index, self.begun = index, False
        try:
            _write(self.input, pickle.dumps((function, index, job)))
        except BrokenPipeError:
            self.dead = True

    def receive(self) -> Answer | None:
        """The answer of the job, or how the process was lost; None where it says that it has begun."""
        frame = _read(self.output)
        if frame is None:
            self.dead = True
            return Answer(self.index, lost=self._death())
        if frame == _BEGUN:
            self.begun = True
            return None
        self.answers += 1
        answer: Answer = pickle.loads(frame)
        return answer

    def _death(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        words = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        last = f"; its last words: {words[-1][:200]}" if words else ""
        if code >= 0:
            return f"its process ended with exit code {code}{last}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        memory = ", which the system sends where memory runs out" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{memory}{last}"

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.input, self.process.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def serve() -> None:
    """What a process of the pool does until its parent closes the pipe, or is gone: then it ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not mix with the answers
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(frames,), daemon=True).start()
    while True:
        frame = frames.get()
        _write(answers, _BEGUN)
        try:
            function, index, job = pickle.loads(frame)
        except Exception as error:
            raise SystemExit(f"the job cannot be read: {type(error).__name__}: {error}") from None
        _write(answers, pickle.dumps(attempt(function, index, job)))


def _listen(frames: queue.SimpleQueue[bytes]) -> None:
    while (frame := _read(sys.stdin.buffer)) is not None:
        frames.put(frame)
    os._exit(0)


def _write(pipe: IO[bytes], frame: bytes) -> None:
    pipe.write(_LENGTH.pack(len(frame)))
    pipe.write(frame)
    pipe.flush()


def _read(pipe: IO[bytes] | io.RawIOBase) -> bytes | None:
    """The next frame; None where the other end was closed, also in the middle of one."""
    head = _exactly(pipe, _LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    frame = _exactly(pipe, size)
    return frame if len(frame) == size else None


def _exactly(pipe: IO[bytes] | io.RawIOBase, size: int) -> bytes:
    """So many bytes, fewer at the end of what comes."""
    parts, left = [], size
    while left and (part := pipe.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
