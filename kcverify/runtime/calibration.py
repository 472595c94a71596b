"""Expected calibration error of two sides from sums by bin: integers that add up over rows, processes and time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FRACTION = 1 << 30
"""Confidence is kept in units of 2^-30: a bin's int64 sum holds 2^33 rows."""

COLUMNS = 4
"""Of a bin: rows and sum of `confidence - correct` of the reference, then the same of the candidate."""


def bin_of(confidence: torch.Tensor, count: int) -> torch.Tensor:
    """Bin of each confidence in [0, 1] among `count` equal ones, closed above as in Naeini et al. 2015; int64 `[N]`."""
    return (torch.ceil(torch.nan_to_num(confidence) * count) - 1).clamp(0, count - 1).to(torch.int64)


def add_rows(table: torch.Tensor, columns: Sequence[torch.Tensor], mask: torch.Tensor, *, own: bool) -> None:
    """Add N rows to `table` int64 `[bins, 4]` in place, those where `mask` bool `[N]` holds; no synchronisation.

    `columns`: confidence and correctness of the reference, then of the candidate, float64 `[N]`. With `own` each side
    is binned by its own confidence, else both by the reference's. Rows that are not finite are left out: they are
    counted as invalid rows, and fail the clause there.
    """
    sure, right, other_sure, other_right = columns
    kept = mask & torch.isfinite(sure + right + other_sure + other_right)
    weight = kept.to(torch.int64)
    first = bin_of(sure, table.shape[0])
    second = bin_of(other_sure, table.shape[0]) if own else first
    for place, index, confidence, correct in ((0, first, sure, right), (2, second, other_sure, other_right)):
        gap = torch.where(kept, torch.round((confidence - correct) * FRACTION), 0.0).to(torch.int64)
        table[:, place].scatter_add_(0, index, weight)
        table[:, place + 1].scatter_add_(0, index, gap)


def calibration_errors(table: Sequence[Sequence[int]]) -> tuple[float, float] | None:
    """ECE of the reference and of the candidate from the bins; None without rows.

    `sum over bins of |sum of (confidence - correct)| / rows`: Naeini et al. 2015.
    """
    rows = sum(line[0] for line in table)
    if rows == 0:
        return None
    first, second = (sum(abs(line[place]) for line in table) for place in (1, 3))
    return first / (rows * FRACTION), second / (rows * FRACTION)
