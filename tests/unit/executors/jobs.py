"""Jobs for the tests of executors: importable in another process."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from kcverify.diagnostics import input_error


def double(value: int) -> int:
    return 2 * value


def mixed(what: str) -> object:
    """Does what its name says."""
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "exits":
        print("printed by the job")
        sys.stderr.write("last line\n")
        sys.stderr.flush()
        os._exit(7)
    if what == "input":
        raise input_error("file_empty", path="x.npy")
    if what == "memory":
        raise MemoryError
    if what == "fault":
        raise KeyError("nobody expected this")
    if what == "prints":
        print("noise " * 1000)
    if what == "threads":
        import torch

        return torch.get_num_threads()
    return what


def process(job: object) -> int:
    return os.getpid()


def slow(path: str) -> None:
    """Says who it is and then takes forever."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(3600)
