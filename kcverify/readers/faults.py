"""Faults of a file: where, which code, what to do. Every reader raises these and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kcverify.diagnostics import InputError, input_error

_SHOWN = 40
"""Characters of a wrong value that a message shows."""


@dataclass(frozen=True)
class Place:
    """Where in a file something stands: the file, the record (`line 3`, `row 7`), and the key inside it."""

    path: str
    record: str = ""
    key: str = ""

    def at(self, key: object) -> Place:
        """One key or index deeper."""
        step = f"[{key}]" if isinstance(key, int) else f"{'.' if self.key else ''}{key}"
        return Place(self.path, self.record, self.key + step)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.record, self.key) if part)

    def invalid(self, reason: str, hint: str = "") -> InputError:
        """`stream_invalid`: the record is not what it must be."""
        return input_error("stream_invalid", place=self, reason=reason, hint=hint)

    def length(self, reason: str, hint: str = "") -> InputError:
        """`stream_length`: two lists that must line up do not."""
        return input_error("stream_length", place=self, reason=reason, hint=hint)

    def value(self, reason: str, hint: str = "") -> InputError:
        """`stream_value`: a number is of the wrong kind or out of range."""
        return input_error("stream_value", place=self, reason=reason, hint=hint)

    def repeated(self, reason: str) -> InputError:
        """`token_repeated`: one token stands twice with different numbers."""
        return input_error("token_repeated", place=self, reason=reason)


def unknown(path: object, reason: str, hint: str = "") -> InputError:
    """`stream_unknown`: no reader recognises the file."""
    return input_error("stream_unknown", path=path, reason=reason, hint=hint)


def too_large(path: object, what: str, size: int, limit: int, hint: str = "") -> InputError:
    """`stream_too_large`: a file that can only be read whole is over the limit."""
    reason = f"{what} of {size:,} bytes; it can only be read whole, and the limit is {limit:,}"
    return input_error("stream_too_large", path=path, reason=reason, hint=hint)


def undeclared(path: object, reason: str, hint: str) -> InputError:
    """`stream_undeclared`: the file leaves open what only its owner knows."""
    return input_error("stream_undeclared", path=path, reason=reason, hint=hint)


def declaration(place: object, reason: str, hint: str = "") -> InputError:
    """`declaration_invalid`: a key or a value of a declaration is not usable."""
    return input_error("declaration_invalid", place=place, reason=reason, hint=hint)


def shown(value: Any) -> str:
    """A value as a message shows it: short, of one line, without control characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a message, the first few of many."""
    found = list(names)
    text = ", ".join(f"`{n[:60]}`" for n in found[:most])
    return text + (f" and {len(found) - most} more" if len(found) > most else "") if found else "nothing"
