"""The command line: the only package that prints, asks and exits."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from kcverify import __version__
from kcverify.cli import (
    allocation,
    certificates,
    checking,
    conformance,
    delivery,
    emit,
    gateway,
    language,
    measurement,
    proof,
    provenance,
    serving,
    streams,
)
from kcverify.cli.common import INTERRUPTED, app, guarded, say

__all__ = [
    "allocation",
    "app",
    "certificates",
    "checking",
    "conformance",
    "delivery",
    "emit",
    "gateway",
    "language",
    "main",
    "measurement",
    "proof",
    "provenance",
    "serving",
    "streams",
]


def _version(value: bool) -> None:
    if value:
        say(f"kcverify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's idle threads would spin, and slow a busy machine down

    def run() -> int:
        try:
            code = int(app(args=arguments, standalone_mode=False) or 0)
            if code == INTERRUPTED:  # what the command library answers after Ctrl-C
                raise KeyboardInterrupt
            return code
        except typer.Exit as stop:
            return stop.exit_code
        except typer.Abort as stop:
            if isinstance(stop.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            return 3
        except typer.TyperException as wrong:
            show = getattr(wrong, "show", None)
            if show is not None:
                with suppress(OSError):  # where nobody reads, the exit code alone tells
                    show()
            return 2
        except SystemExit as stop:
            if isinstance(stop.__context__, BrokenPipeError):  # who read the help has seen enough
                return 0
            raise

    sys.exit(guarded(run))
