"""Runs the battery in a child process in which one module of kcverify is replaced by a changed copy of its source."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import multiprocessing
import runpy
import sys
from pathlib import Path

PACKAGE = Path(importlib.util.find_spec("kcverify").origin).parent
HERE = Path(__file__).parent
HELPERS = (HERE.parent / "property", HERE.parent / "unit" / "prove")
FRESH = ("kcverify", "battery", "random_questions", "random_contracts", "worlds", "questions", "kernel_battery")


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module and gives it other source text."""

    def __init__(self, name: str, text: str, path: Path):
        self.name, self.text, self.path = name, text, path

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self, origin=str(self.path)) if name == self.name else None

    def exec_module(self, module):
        module.__file__ = str(self.path)
        exec(compile(self.text, str(self.path), "exec"), module.__dict__)


def _run(pipe, name: str, text: str, path: Path, checks: tuple[str, ...], battery: str) -> None:
    for known in [m for m in sys.modules if m.split(".")[0] in FRESH]:
        del sys.modules[known]
    sys.path[:0] = [str(h) for h in HELPERS]
    sys.meta_path.insert(0, _Changed(name, text, path))
    try:
        found = runpy.run_path(str(HERE / battery))["inconsistencies"](checks)
    except Exception as error:
        found = f"import: {type(error).__name__}: {error}"
    pipe.send(found)
    pipe.close()


def battery_with(
    file: str, text: str, checks: tuple[str, ...] = (), seconds: float = 240.0, battery: str = "battery.py"
) -> str:
    """What the battery (or some of its checks) finds when `kcverify/<file>` reads `text`; raises TimeoutError where it does not end."""
    path = PACKAGE / file
    name = "kcverify." + file.removesuffix(".py").replace("/", ".")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(theirs, name, text, path, checks, battery), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise TimeoutError(f"{file}: the battery did not end in {seconds:g} s")
        return ours.recv()
    except EOFError:
        return "the child process crashed"
    finally:
        child.kill()
        child.join()
        ours.close()


def source_of(file: str) -> str:
    """The text of a module as it is."""
    return (PACKAGE / file).read_text(encoding="utf-8")
