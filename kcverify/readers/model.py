"""What one row of the table of formats states, and what a reader is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcverify.readers.faults import Place
from kcverify.readers.stream import Declared, Status

STEERING = {
    "tensor": "an array of logits among several", "side": "log-probabilities of several sides",
    "positions": "a prompt beside the response", "rows": "whole rows",
}  # fmt: skip
"""Declarations that say what of a file is read, and what a file must have for each."""


@dataclass(frozen=True)
class Meaning:
    """What a placeholder stands for in one format. `value` is how the file writes it: `null`, `-9999.0`, `nan`."""

    value: str
    status: Status
    means: str


@dataclass(frozen=True)
class Head:
    """What is known of a file before a reader is chosen.

    `container` is how its bytes are laid out (a row of `table.CONTAINERS`); `first` is the first document of JSON, or
    the names, dtypes and shapes of the arrays of a tensor file (`{name: (dtype, shape)}`).
    """

    path: Path
    size: int
    container: str
    first: Any = None


@dataclass(frozen=True)
class Format:
    """One format: how it is told, who reads it, what its placeholders and numbers mean.

    `containers` are the layouts in which it occurs. `recognises` looks at `Head.first`. `reader` is `module:function`,
    imported when a file of the format is read, so that nothing else pays for it. `normalised` marks full rows that are
    log-probabilities, so that the constant of the logits is lost. `assumed` are the meanings that the
    project's own defaults give its numbers, reported as assumptions unless a declaration says otherwise; `asks` are
    the keys of `stream.KNOWLEDGE` that no default can supply. `zero` says what exactly 0.0 is. `follows` are the
    declarations of what to read (`STEERING`) that its reader follows; the others are refused.
    """

    name: str
    title: str
    containers: tuple[str, ...]
    recognises: Callable[[Any], bool]
    reader: str
    meanings: tuple[Meaning, ...]
    source: str
    assumed: Mapping[str, Any] = field(default_factory=dict)
    asks: tuple[str, ...] = ("temperature", "weights")
    zero: str = "a probability that rounds to one"
    sides: tuple[str, ...] = ()
    normalised: bool = False
    follows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opening:
    """What a reader works on: the file, its row, and what was declared."""

    head: Head
    format: Format
    declared: Mapping[str, Declared]

    @property
    def place(self) -> Place:
        """The file, as messages name it."""
        return Place(str(self.head.path))

    def value(self, key: str, default: Any = None) -> Any:
        """A declared value; `default` where none is."""
        found = self.declared.get(key)
        return default if found is None else found.value


@dataclass(frozen=True)
class Found:
    """What a reader answers: the fields of `Request` that are there, what the file itself says, and the requests."""

    carries: frozenset[str]
    requests: Callable[[], Any]
    says: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
