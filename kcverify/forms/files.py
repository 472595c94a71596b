"""Reads contract files as text."""

from __future__ import annotations

import sys
from pathlib import Path

from kcverify.diagnostics import input_error
from kcverify.source import Source

STDIN = "-"

BYTES = 16_000_000
"""Bytes of a file that are read; nothing larger is a contract, and a device or pipe may have no end."""


def read_source(path: str) -> Source:
    """Text of a file, `-` for standard input.

    Raises InputError: `file_unreadable`, `file_too_large`, `file_empty`, `not_text`.
    """
    try:
        raw = _bytes(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise input_error("file_unreadable", path=path, reason=reason.lower()) from None
    name = "<stdin>" if path == STDIN else path
    if len(raw) > BYTES:
        raise input_error("file_too_large", size=f"more than {BYTES}", limit=BYTES)
    if not raw.strip():
        raise input_error("file_empty", path=name)
    try:
        return Source(name, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise input_error("not_text", path=name, offset=error.start) from None


def _bytes(path: str) -> bytes:
    """At most one byte more than is allowed."""
    if path == STDIN:
        return sys.stdin.buffer.read(BYTES + 1)
    with Path(path).open("rb") as file:
        return file.read(BYTES + 1)
