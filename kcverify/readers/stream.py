"""The record that every reader fills: one request at a time, with what its numbers mean and what is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Status(IntEnum):
    """What a log-probability in a file is, by the meaning that its format declares for it."""

    VALUE = 0
    """A number."""
    MISSING = 1
    """Not written: null, an absent key, the first token of a prompt."""
    BANNED = 2
    """Probability zero: minus infinity where the format means it."""
    PLACEHOLDER = 3
    """A number that stands for something else: -9999, -1000, -100, a row of zeros."""
    BROKEN = 4
    """NaN or plus infinity."""


@dataclass(frozen=True)
class Declared:
    """One thing that files never say by themselves; `origin` is `file`, `sidecar`, `flag` or `assumed`."""

    value: Any
    origin: str


KNOWLEDGE = (
    "temperature",
    "logprobs_mode",
    "top_p",
    "top_k",
    "min_p",
    "vocabulary",
    "dtype",
    "weights",
    "kernel",
    "rows",
)
"""Keys of `Stream.declared`. `logprobs_mode` is `raw` (before temperature, penalties and truncation) or `processed`;
`rows` is `logits`, or `logprobs` where whole rows are log-probabilities already."""


class Counted(str):
    """An id that a reader made up, by counting in one file: it means nothing beside another file."""

    __slots__ = ()


@dataclass(frozen=True)
class Request:
    """T positions of one request. `request_id` is `Counted` where the file names none.

    `token_ids` int64 `[T]`, or None where a format gives texts only, in `tokens`. `logprobs` float64 `[T]` of the
    sampled token in nats, NaN wherever `status` uint8 `[T]` is not `Status.VALUE`. `mask` bool `[T]`: positions that
    count (response tokens). `top_ids` int64 `[T, K]` (-1 where a list is shorter) or `top_tokens`, with `top_logprobs`
    float64 `[T, K]` (NaN there). `logits` float `[T, V]`, possibly a view of a mapped file. `error` float64 `[T]`:
    how far each log-probability of the row may be from the engine's, in nats; `floor` float64 `[T]`: entries of the
    row's logits at or below it are known only to be at most `floor + error` (minus infinity: none). `fields` are the
    trace's own (weights version, step, tags, `placeholders` by literal); `place` says where in the file it was.
    """

    request_id: str
    status: npt.NDArray[np.uint8]
    mask: Flags
    token_ids: Integers | None = None
    tokens: tuple[str, ...] | None = None
    logprobs: Floats | None = None
    top_ids: Integers | None = None
    top_tokens: tuple[tuple[str, ...], ...] | None = None
    top_logprobs: Floats | None = None
    logits: npt.NDArray[Any] | None = None
    error: Floats | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    floor: Floats | None = None

    def __len__(self) -> int:
        return int(self.status.shape[0])


@dataclass(frozen=True)
class Stream:
    """A file (or folder) that was recognised: what it is, what it carries, and its requests, as often as asked for.

    `carries` names fields of `Request` that may be there; `notes` say what a reader found out or had to assume.
    """

    path: Path
    format: str
    declared: Mapping[str, Declared]
    carries: frozenset[str]
    open: Callable[[], Iterator[Request]] = field(repr=False)
    notes: tuple[str, ...] = ()

    def requests(self) -> Iterator[Request]:
        """The requests in the order of the file, one at a time; raises InputError at a fault, with its place."""
        return self.open()

    def value(self, key: str) -> Any:
        """What is declared for a key of `KNOWLEDGE`; None where nothing is."""
        found = self.declared.get(key)
        return None if found is None else found.value
