"""JSON from files that others wrote: whole, within a size, no key twice, no number that JSON does not have."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from kcverify.diagnostics import input_error

LARGEST = 64 << 20
_SHOWN = 40


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """The whole file. Raises InputError: `file_unreadable`, `file_empty`."""
    try:
        with Path(path).open("rb") as handle:
            content = handle.read(largest + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise input_error("file_unreadable", path=path, reason=reason) from None
    if len(content) > largest:
        raise input_error("file_unreadable", path=path, reason=f"it is larger than {largest >> 20} MiB")
    if not content:
        raise input_error("file_empty", path=path)
    return content


def is_there(path: str | Path, folder: bool = False) -> bool:
    """Whether a path names a file, or a folder; no where it cannot be looked at, such as a name that is too long."""
    try:
        return bool(str(path)) and (Path(path).is_dir() if folder else Path(path).is_file())
    except (OSError, ValueError):
        return False


def is_text(name: str) -> bool:
    """Whether UTF-8 can hold a name; the bytes of a file's name may be anything."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def strict(content: bytes | str) -> Any:
    """The JSON value of a text. Raises ValueError that says what is wrong: no JSON, a key twice, NaN, a number that no
    double holds, too deep."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        return json.loads(text, parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is no number")


def _finite(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"the number {text[:_SHOWN]} is larger than any double")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the key {key[:_SHOWN]!r} occurs twice")
        out[key] = value
    return out
