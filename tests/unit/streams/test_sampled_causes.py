"""Temperature and truncation from sampled tokens alone: each, both where each is needed, else what explains the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_streams import compared, log_softmax, request


def truncated(p: np.ndarray, top_p: float) -> np.ndarray:
    order = np.argsort(-p, 1)
    ranked = np.take_along_axis(p, order, 1)
    keep = np.zeros_like(p, dtype=bool)
    np.put_along_axis(keep, order, ranked.cumsum(1) - ranked < top_p, 1)
    return np.where(keep, p, 0) / np.where(keep, p, 0).sum(1, keepdims=True)


def answer(temperature: float, top_p: float, seed: int = 3) -> dict[str, Any]:
    """The trainer at temperature 1 against an engine whose rounding is that of a coarse kernel."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2000, 200)) * rng.uniform(2, 4.4, size=(2000, 1))
    p = truncated(np.exp(log_softmax(x / temperature + 0.03 * rng.normal(size=x.shape))), top_p)
    tokens = np.minimum((p.cumsum(1) < rng.random((2000, 1))).sum(1), 199)
    at = np.arange(2000)
    t, g = log_softmax(x)[at, tokens], np.log(p[at, tokens])
    sides = [
        [request(f"r{i:04}", v[i : i + 50], token_ids=tokens[i : i + 50]) for i in range(0, 2000, 50)] for v in (t, g)
    ]
    return compared(*sides)


def found(temperature: float, top_p: float) -> dict[str, Any]:
    return {f["slug"]: f for f in answer(temperature, top_p)["findings"]}


@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 0.95), (0.9, 0.95), (1.2, 0.8)])
def test_two_findings_where_each_is_needed(temperature: float, top_p: float) -> None:
    both = found(temperature, top_p)
    assert set(both) == {"support_mismatch", "temperature_mismatch"}
    heat, cut = both["temperature_mismatch"]["evidence"], both["support_mismatch"]["evidence"]
    assert heat["lower"] - 0.02 <= 1 / temperature <= heat["upper"] + 0.02
    assert 0.02 < cut["lower"] <= cut["missing_mass"] <= cut["upper"] < 0.4


@pytest.mark.parametrize("temperature", [0.7, 0.9, 1.2, 1.5])
def test_a_temperature_alone_is_one_and_says_how_much_may_be_cut_off(temperature: float) -> None:
    one = found(temperature, 1.0)
    assert set(one) == {"temperature_mismatch"}
    evidence = one["temperature_mismatch"]["evidence"]
    assert evidence["lower"] <= 1 / temperature <= evidence["upper"] and evidence["missing_mass_at_most"] < 0.1
    assert "a truncation" in one["temperature_mismatch"]["cause"]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 0.95), (1.0, 0.8), (0.7, 0.8), (0.9, 0.8)])
def test_a_truncation_that_may_hide_a_temperature_says_so(temperature: float, top_p: float) -> None:
    one = found(temperature, top_p)
    assert set(one) == {"support_mismatch"}
    low, high = one["support_mismatch"]["evidence"]["consistent_ratios"]
    assert low <= 1 / temperature <= high and low <= 1 <= high
    assert "cannot be told from sampled tokens alone" in one["support_mismatch"]["cause"]


def test_equal_policies_have_no_finding() -> None:
    assert not found(1.0, 1.0)
