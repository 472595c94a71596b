"""Intervals around stored rows contain the value of the rows that the engine had."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_files import DATA, SHARED, kld, requests

from kcverify.readers.stored import Stored, kl_interval, tv_interval


def stored(path) -> Stored:  # type: ignore[no-untyped-def]
    found = requests(path)
    return Stored(*(np.concatenate([getattr(r, name) for r in found]) for name in ("logits", "error", "floor")))


def normalised(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    high = rows.max(axis=1, keepdims=True)
    return rows - high - np.log(np.exp(rows - high).sum(axis=1, keepdims=True))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 3.0, 5.0, 8.0]), st.sampled_from([1e-4, 0.01, 0.3, 3.0]), st.integers(2, 300)
)  # fmt: skip
def test_the_truth_is_inside(tmp_path_factory, seed, spread, drift, width) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    p = (rng.normal(size=(2, width)) * spread).astype(np.float32)
    q = (p + rng.normal(size=p.shape) * drift).astype(np.float32)
    folder, tokens = tmp_path_factory.mktemp("kld"), np.zeros((1, 6), dtype=np.int32)
    sides = [stored(kld(folder / name, tokens, [list(rows)])) for name, rows in (("p", p), ("q", q))]
    lp, lq = normalised(p), normalised(q)
    tv = np.abs(np.exp(lp) - np.exp(lq)).sum(axis=1) / 2
    kl = (np.exp(lp) * (lp - lq)).sum(axis=1)
    for truth, (low, high) in ((tv, tv_interval(*sides)), (kl, kl_interval(*sides))):
        assert np.all(low <= truth + 1e-15)
        assert np.all(truth <= high + 1e-15)
    if not any(s.clipped.any() for s in sides):
        assert np.all(np.isfinite(kl_interval(*sides)[1]))


def test_a_clipped_candidate_leaves_kl_open_above(tmp_path) -> None:  # type: ignore[no-untyped-def]
    p = np.array([[0.0, 1.0, 0.5]] * 2, dtype=np.float32)
    q = np.array([[0.0, 1.0, -30.0]] * 2, dtype=np.float32)
    tokens = np.zeros((1, 6), dtype=np.int32)
    sides = [stored(kld(tmp_path / name, tokens, [list(rows)])) for name, rows in (("p", p), ("q", q))]
    low, high = kl_interval(*sides)
    truth = (np.exp(normalised(p)) * (normalised(p) - normalised(q))).sum(axis=1)
    assert np.all(high == np.inf)
    assert np.all((0.3 * truth < low) & (low <= truth))  # 16 of the 30 nats are known


def test_a_broken_row_is_known_to_nothing() -> None:
    good = Stored(np.log(np.full((1, 2), 0.5)), np.zeros(1), np.full(1, -np.inf))
    bad = Stored(np.full((1, 2), np.nan), np.full(1, np.inf), np.full(1, -np.inf))
    assert [float(x[0]) for x in tv_interval(good, bad)] == [0.0, 1.0]
    assert [float(x[0]) for x in kl_interval(good, bad)] == [0.0, np.inf]


def test_real_rows() -> None:
    ref, q8 = stored(DATA / "llamacpp_ref.kld"), stored(DATA / "llamacpp_q8_0.kld")
    low, high = tv_interval(ref, q8)
    assert np.all(high - low < 0.012)
    assert np.all(kl_interval(ref, q8)[0] > 0)
    same = kl_interval(ref, ref)
    assert np.all(same[0] == 0)


@pytest.mark.skipif(not (SHARED / "llamacpp").is_dir(), reason="needs ../shared/cases/llamacpp")
def test_renormalised_rows_are_biased_below_the_truth() -> None:
    """Clipped entries count for e^floor each; dividing by their sum moves KL and TV of the decoded rows out of the interval."""
    ref, q3 = stored(SHARED / "llamacpp" / "ref.kld"), stored(SHARED / "llamacpp" / "q3_k_s.kld")
    low, high = tv_interval(ref, q3)
    assert 0.34352922749619896 < low.mean() < high.mean() < 0.3443
    assert 0.47504920280003754 < kl_interval(ref, q3)[0].mean() < 0.4755
