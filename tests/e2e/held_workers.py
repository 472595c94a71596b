"""Workers of a run that stop or die at a shard of one's choice, with no clock: a hook on their opening of its file.

The hook is a `sitecustomize` module, which Python loads at its start; it acts in processes of the pool alone.
"""

from __future__ import annotations

import os
from pathlib import Path

_HOOK = """
import os, signal, sys

def seen(event, arguments):
    if event == "open" and str(arguments[0]).endswith(os.environ["HELD_SHARD"]):
        if os.environ["HELD_BY"] == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            signal.pause()

if "serve()" in " ".join(sys.orig_argv):
    sys.addaudithook(seen)
"""


def environment(folder: Path, root: Path, shard: str, by: str) -> dict[str, str]:
    """Variables under which each worker that opens a file whose name ends in `shard` waits for ever, or dies.

    `by` is `waiting` or `death`; `folder` holds the hook, `root` is where kcverify is.
    """
    (folder / "sitecustomize.py").write_text(_HOOK, encoding="utf-8")
    paths = os.pathsep.join((str(folder), str(root)))
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "HELD_SHARD": shard,
        "HELD_BY": by,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
