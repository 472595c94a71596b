"""Bytes of an evidence file, or a diagnostic."""

from __future__ import annotations

from pathlib import Path

from kcverify.diagnostics import input_error

LARGEST = 256 << 20


def read_bytes(path: str) -> bytes:
    """The whole file. Raises InputError: `file_unreadable`, `file_empty`, `evidence_invalid` beyond 256 MiB."""
    try:
        if Path(path).stat().st_size > LARGEST:
            raise input_error("evidence_invalid", path=path, reason=f"it is larger than {LARGEST >> 20} MiB")
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise input_error("file_unreadable", path=path, reason=reason) from None
    if not content:
        raise input_error("file_empty", path=path)
    return content
