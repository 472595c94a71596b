"""How `measure` runs, as one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path


@dataclass
class MeasureOptions:
    """How `measure` runs: window in tokens, device, seed, requests per batch, sampling temperature."""

    window: int = 64
    device: str = "cpu"
    seed: int = 0
    batch: int | None = None
    temperature: Fraction | None = None
    limit: int | None = None
    gguf: Path | None = None
    progress: Callable[[int, int], None] | None = field(default=None, repr=False)
