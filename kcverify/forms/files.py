"""Reads contract files as text."""

from __future__ import annotations

import sys
from pathlib import Path

from kcverify.diagnostics import input_error
from kcverify.source import Source

STDIN = "-"


def read_source(path: str) -> Source:
    """Text of a file, `-` for standard input. Raises InputError: `file_unreadable`, `file_empty`, `not_text`."""
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise input_error("file_unreadable", path=path, reason=reason.lower()) from None
    name = "<stdin>" if path == STDIN else path
    if not raw.strip():
        raise input_error("file_empty", path=name)
    try:
        return Source(name, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise input_error("not_text", path=name, offset=error.start) from None
