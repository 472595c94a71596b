"""A hard stop: a function run in a child process, whose crash or time-out is a failure with a reason, never a result."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What the child returned, or why it returned nothing (`failure` is empty exactly where `value` counts)."""

    value: Any = None
    failure: str = ""


def _child(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send(Outcome(function(*arguments)))
    except Exception as error:
        pipe.send(Outcome(failure=f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A child that is started here never sees Ctrl-C, which goes to every process of a terminal: its parent ends it."""
    mask = getattr(signal, "pthread_sigmask", None)
    before = mask(signal.SIG_BLOCK, {signal.SIGINT}) if mask is not None else None
    try:
        yield
    finally:
        if mask is not None:
            mask(signal.SIG_SETMASK, before)


def guarded(function: Callable[..., Any], *arguments: Any, seconds: float) -> Outcome:
    """`function(*arguments)` in a child process that is killed after `seconds` of wall-clock time.

    The function, its arguments and its result must be picklable. Raises nothing that the child raised.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, function, arguments), daemon=True)  # type: ignore[attr-defined]
    with _without_ctrl_c():
        child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return Outcome(failure=f"stopped after {seconds:g} s")
        outcome: Outcome = ours.recv()
    except EOFError:
        child.join(seconds)
        return Outcome(failure=f"the solver crashed (exit code {child.exitcode})")
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        ours.close()
    return outcome
