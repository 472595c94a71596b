"""What one row of the diagnostic table states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How a finding bears on the exit code: an error of the user's input or the contract, a warning, a note."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Code:
    """One diagnostic. `message` has named holes; `bad` is a minimal contract that gives it, `good` its corrected twin.

    `bad` and `good` are empty where the code is about a file, a tensor or a command line; `input_fault` marks what is
    wrong with the user's input (exit code 2) rather than with the contract's mathematics (exit code 1).
    """

    id: str
    slug: str
    severity: Severity
    message: str
    why: str
    fix: str
    bad: str = ""
    good: str = ""
    input_fault: bool = False
