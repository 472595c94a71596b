"""How `measure` runs, as one record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path


@dataclass
class MeasureOptions:
    """How `measure` runs: window in tokens, device, seed, requests per batch, sampling temperature.

    `observations` is a file of outcomes by request, `parse` the format of its responses (see `outcomes`), `clock` gives
    the seconds that calls are timed with. `fixed_sample`: verdicts of one look at a sample of fixed size, instead of those that survive peeking.
    `executor`, `workers` and `resume` (a folder of finished shards) are for dumps in several files (see `sharded`); `tell`
    is told how far such a run came.
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
