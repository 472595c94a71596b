"""The command line: the only package that prints, asks and exits."""

from __future__ import annotations

import os
import sys
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
from kcverify.cli.common import app, guarded, say

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

_INTERRUPTED = 130
"""What the command library answers after Ctrl-C."""


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
            if code == _INTERRUPTED:
                raise KeyboardInterrupt
            return code
        except typer.Exit as stop:
            return stop.exit_code
        except typer.Abort:
            return 3
        except typer.TyperException as wrong:
            show = getattr(wrong, "show", None)
            if show is not None:
                show()
            return 2

    sys.exit(guarded(run))
