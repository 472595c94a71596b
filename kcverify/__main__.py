"""`python -m kcverify` and the command `kcverify`: whatever the moment of Ctrl-C, one line and exit code 130."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""What shells answer for a command that Ctrl-C ended."""


def main() -> None:
    """Run the command line. Outside of a command, as while it is imported and while Python ends, Ctrl-C ends at once."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _unraisable
    try:
        from kcverify.cli import main as command

        _running(command)
    except BaseException as error:
        if was_interrupted(error):
            _end()
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, _interrupt)


def _running(command: Callable[[], None]) -> None:
    """While this is on the stack, Ctrl-C is an exception, with which a command keeps what it has done."""
    command()


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code is _running.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back
    _end()


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or is what a library made of it: one inside a class that is being made comes out as
    RuntimeError."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False


def _end() -> NoReturn:
    """One line, and nothing else that Python would do or say at its end."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Ctrl-C that arrives in a finalizer is lost, and needs no traceback; everything else is shown as ever."""
    if found.exc_type is None or not issubclass(found.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(found)


if __name__ == "__main__":
    main()
