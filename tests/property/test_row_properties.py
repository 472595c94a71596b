"""Properties that row statistics have for every pair of rows."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.runtime.oracle import oracle_rows
from kcverify.runtime.rows import STATISTICS, RowPlan, row_statistics

torch.set_num_threads(1)
FULL = RowPlan(frozenset(STATISTICS) - {"token_log_ratio"}, ((1, False), (3, False), (3, True)))
LOGIT = st.one_of(st.floats(-40, 40, width=32), st.just(-math.inf), st.sampled_from([0.0, 1.0, -1.0, 30.0]))
SPECIAL = st.one_of(LOGIT, st.sampled_from([math.nan, math.inf]))


@st.composite
def pairs(draw: st.DrawFn, logit: st.SearchStrategy[float] = LOGIT) -> tuple[torch.Tensor, torch.Tensor]:
    width = draw(st.integers(1, 9))
    row = st.lists(logit, min_size=width, max_size=width)
    rows = draw(st.integers(1, 3))
    sides = [[draw(row) for _ in range(rows)] for _ in range(2)]
    return torch.tensor(sides[0]), torch.tensor(sides[1])


@given(pairs(SPECIAL), st.sampled_from([0.6, 1.0, 2.0]))
@settings(max_examples=150, deadline=None)
def test_agrees_with_the_oracle(pair: tuple[torch.Tensor, torch.Tensor], temperature: float) -> None:
    z, w = pair
    got = row_statistics(z, w, FULL, temperature=temperature)
    want = oracle_rows(z, w, temperature=temperature)
    assert got.invalid.double().tolist() == want["invalid"]
    for name in FULL.statistics:
        for a, b in zip(got.values[name].tolist(), want[name], strict=True):
            if math.isfinite(a) and math.isfinite(b):
                assert a == pytest.approx(b, rel=5e-5, abs=5e-6), name
            else:
                assert a == b or (math.isnan(a) and math.isnan(b)), (name, a, b)


@given(pairs())
@settings(max_examples=100, deadline=None)
def test_ranges_and_inequalities(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    rows = row_statistics(*pair, FULL)
    valid = ~rows.invalid
    v = {name: column[valid] for name, column in rows.values.items()}
    slack = 1e-5
    assert ((v["tv"] >= 0) & (v["tv"] <= 1)).all() and ((v["bc"] >= 0) & (v["bc"] <= 1)).all()
    for name in ("kl_reference_candidate", "kl_candidate_reference"):
        assert (v[name] >= 0).all()
        assert (v["tv"] <= torch.sqrt(v[name] / 2) + slack).all()
    assert (v["tv"] <= torch.sqrt(1 - v["bc"] ** 2) + 5e-3).all() and (1 - v["bc"] <= v["tv"] + slack).all()
    assert (v["kl_reference_candidate"] <= torch.log1p(v["chi2"]) + 1e-4).all()
    assert (v["logit_span"] <= 2 * v["logit_drift"]).all()
    assert (v["log_ratio"] <= v["logit_span"] * (1 + 1e-5) + slack).all()
    assert (v["tv"] <= torch.tanh(v["logit_span"] / 4) + slack).all()
    assert (v["agreement_3_ordered"] <= v["agreement_3"]).all()


@given(pairs())
@settings(max_examples=60, deadline=None)
def test_swapping_sides_swaps_directions(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    z, w = pair
    one, two = row_statistics(z, w, FULL), row_statistics(w, z, FULL)
    for left, right in (
        ("tv", "tv"),
        ("bc", "bc"),
        ("kl_reference_candidate", "kl_candidate_reference"),
        ("entropy_reference", "entropy_candidate"),
        ("logit_span", "logit_span"),
        ("agreement_1", "agreement_1"),
        ("agreement_3", "agreement_3"),
    ):
        a, b = one.values[left], two.values[right]
        assert torch.allclose(a, b, rtol=5e-5, atol=5e-6, equal_nan=True), (left, a, b)


@given(pairs(), st.floats(-50, 50, width=16))
@settings(max_examples=60, deadline=None)
def test_span_and_probabilities_ignore_a_constant(pair: tuple[torch.Tensor, torch.Tensor], offset: float) -> None:
    z, w = pair
    one, two = row_statistics(z, w, FULL), row_statistics(z, w + offset, FULL)
    for name in ("tv", "bc", "log_ratio", "kl_reference_candidate"):
        assert torch.allclose(one.values[name], two.values[name], rtol=2e-4, atol=2e-5, equal_nan=True), name


@given(pairs(), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_agreement_is_what_a_search_over_tie_orders_finds(pair: tuple[torch.Tensor, torch.Tensor], k: int) -> None:
    z, w = pair
    rows = row_statistics(z, w, RowPlan(frozenset({"tv"}), ((k, False),)))
    for row in range(z.shape[0]):
        if not rows.invalid[row]:
            common = tops(z[row].tolist(), k) & tops(w[row].tolist(), k)
            assert rows.values[f"agreement_{k}"][row] == float(bool(common))


def tops(values: list[float], k: int) -> set[frozenset[int]]:
    """All top-k sets that some order among ties allows."""
    k = min(k, len(values))
    out = set()
    for chosen in combinations(range(len(values)), k):
        rest = [values[i] for i in range(len(values)) if i not in chosen]
        if not rest or min(values[i] for i in chosen) >= max(rest):
            out.add(frozenset(chosen))
    return out
