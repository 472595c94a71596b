"""Digests of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kcverify.diagnostics import input_error


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes. Raises InputError: `file_unreadable`."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise input_error("file_unreadable", path=path, reason=reason) from None
