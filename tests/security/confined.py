"""Runs commands in this process under limits of memory and time; one line of JSON a command. Started by the tests.

Arguments: bytes of address space, seconds of processor time. Standard input: a list of lists of words.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import time
from typing import Any


def peak() -> int:
    """Bytes of resident memory at the highest so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def one(words: list[str]) -> dict[str, Any]:
    from kcverify.cli import main

    out, err = io.StringIO(), io.StringIO()
    before, began = peak(), time.process_time()
    code: object = "returned"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    told = {"words": words, "code": code, "out": out.getvalue(), "err": err.getvalue()}
    return {**told, "grown": peak() - before, "seconds": time.process_time() - began}


def confined() -> None:
    memory, seconds = int(sys.argv[1]), int(sys.argv[2])
    commands = json.load(sys.stdin)
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for words in commands:
        print(json.dumps({"starts": words}), flush=True)
        print(json.dumps(one(words)), flush=True)


if __name__ == "__main__":
    confined()
