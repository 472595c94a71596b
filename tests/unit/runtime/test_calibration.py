"""Calibration errors from sums by bin against numpy on the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.runtime.calibration import add_rows, bin_of, calibration_errors

torch.set_num_threads(1)
ROW = st.tuples(st.floats(0, 1), st.booleans(), st.floats(0, 1), st.booleans())


def numpy_ece(confidence: np.ndarray, correct: np.ndarray, bins: np.ndarray) -> float:
    """The sum over bins of the share of rows times |accuracy - confidence|, as it is defined."""
    total = 0.0
    for b in np.unique(bins):
        chosen = bins == b
        total += chosen.mean() * abs(correct[chosen].mean() - confidence[chosen].mean())
    return float(total)


def columns(rows: list[tuple[float, bool, float, bool]]) -> list[torch.Tensor]:
    return [torch.tensor([float(r[i]) for r in rows], dtype=torch.float64) for i in range(4)]


@given(st.lists(ROW, min_size=1, max_size=40), st.integers(2, 20), st.booleans())
@settings(max_examples=150, deadline=None)
def test_against_numpy(rows: list[tuple[float, bool, float, bool]], count: int, own: bool) -> None:
    table = torch.zeros(count, 4, dtype=torch.int64)
    given_columns = columns(rows)
    add_rows(table, given_columns, torch.ones(len(rows), dtype=torch.bool), own=own)
    found = calibration_errors(table.tolist())
    sure, right, other, other_right = (c.numpy() for c in given_columns)
    edges = np.arange(count + 1) / count
    first = np.clip(np.searchsorted(edges, sure) - 1, 0, count - 1)
    second = np.clip(np.searchsorted(edges, other) - 1, 0, count - 1) if own else first
    near_edge = np.abs(np.concatenate((sure, other)) * count - np.round(np.concatenate((sure, other)) * count)) < 1e-9
    if near_edge[(np.concatenate((sure, other)) > 0) & (np.concatenate((sure, other)) < 1)].any():
        return
    want = numpy_ece(sure, right, first), numpy_ece(other, other_right, second)
    assert found == pytest.approx(want, abs=1e-8)


@given(st.lists(ROW, min_size=2, max_size=30), st.randoms())
@settings(max_examples=50, deadline=None)
def test_any_order_and_any_split_give_the_same_integers(rows: list[tuple[float, bool, float, bool]], random) -> None:
    whole, parts = torch.zeros(15, 4, dtype=torch.int64), torch.zeros(15, 4, dtype=torch.int64)
    add_rows(whole, columns(rows), torch.ones(len(rows), dtype=torch.bool), own=False)
    shuffled = random.sample(rows, len(rows))
    cut = random.randrange(len(rows) + 1)
    for part in (shuffled[:cut], shuffled[cut:]):
        add_rows(parts, columns(part), torch.ones(len(part), dtype=torch.bool), own=False)
    assert torch.equal(whole, parts)


def test_bins_are_closed_above() -> None:
    assert bin_of(torch.tensor([0.0, 0.1, 0.25, 0.2500001, 0.5, 1.0]), 4).tolist() == [0, 0, 0, 1, 1, 3]


def test_a_mask_and_rows_that_are_not_finite_are_left_out() -> None:
    table = torch.zeros(4, 4, dtype=torch.int64)
    rows = [(0.9, True, 0.8, True), (float("nan"), True, 0.8, True), (0.3, False, 0.2, True)]
    add_rows(table, columns(rows), torch.tensor([True, True, False]), own=True)
    assert int(table[:, 0].sum()) == int(table[:, 2].sum()) == 1


def test_own_bins_may_jump_where_fixed_ones_do_not() -> None:
    """A move of 2e-6 across an edge: 0.30 with own bins, 2e-6 with the reference's."""
    rows = [(0.5 - 1e-6, False, 0.5 + 1e-6, False)] * 10 + [(0.8, True, 0.8, True)] * 10
    own, fixed = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)
    for table, flag in ((own, True), (fixed, False)):
        add_rows(table, columns(rows), torch.ones(20, dtype=torch.bool), own=flag)
    drift = [abs(b - a) for a, b in (calibration_errors(own.tolist()), calibration_errors(fixed.tolist()))]
    assert drift[0] > 0.19 and drift[1] < 2e-6


def test_no_rows() -> None:
    assert calibration_errors([[0, 0, 0, 0]]) is None
