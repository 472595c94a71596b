"""How `measure` runs, as one record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol


class Watch(Protocol):
    """What looks at a run: before its first number, at every batch, and at its result."""

    @property
    def needs_rows(self) -> bool:
        """Whether it must see every batch, which a run over shards does not show it."""

    def begin(
        self, contract: Any, sides: tuple[Any, Any], requests: Sequence[Any], temperature: float, batch: int | None
    ) -> None:
        """Before anything is computed. Raises InputError where the run is void."""

    def take(self, rows: Any) -> None:
        """One batch of rows, as `run_pair` hands it on."""

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """What is added to the result."""


@dataclass
class MeasureOptions:
    """How `measure` runs: window in tokens, device, seed, requests per batch, sampling temperature.

    `observations` is a file of outcomes by request, `parse` the format of its responses (see `outcomes`), `clock` gives
    the seconds that calls are timed with. `fixed_sample`: verdicts of one look at a sample of fixed size, instead of those that survive peeking.
    `executor`, `workers` and `resume` (a folder of finished shards) are for dumps in several files (see `sharded`); `tell`
    is told how far such a run came. `watch` looks at the run (see `provenance.watch`).
    `causes` splits the drift (see `causes`), `by_layer` attributes it to modules on at most `rows` rows (see `layers`).
    """

    window: int = 64
    device: str = "cpu"
    seed: int = 0
    batch: int | None = None
    temperature: Fraction | None = None
    limit: int | None = None
    gguf: Path | None = None
    fixed_sample: bool = False
    observations: Path | None = None
    parse: str | None = None
    causes: bool = False
    by_layer: bool = False
    rows: int | None = None
    executor: str | None = None
    workers: int | None = None
    resume: Path | None = None
    tell: Callable[[str], None] | None = field(default=None, repr=False)
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)
    progress: Callable[[int, int], None] | None = field(default=None, repr=False)
    watch: Watch | None = field(default=None, repr=False)
