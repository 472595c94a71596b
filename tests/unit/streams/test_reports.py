"""Public reports of false or misread drift, reduced to numbers (quantization_reports.md): each gives the right behaviour."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_streams import compared, log_softmax, request, slugs


def rows(reference, candidate):
    return compared([request("r", logits=np.array(reference))], [request("r", logits=np.array(candidate))])


def table(answer):
    return {row["metric"]: row["mean"] for row in (answer["drift"] or answer["explained"])["table"]}


def test_equal_rows_have_no_divergence_and_never_a_negative_one() -> None:
    got = table(rows([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0]]))
    assert got["KL(ref||cand)"] == 0.0 == got["TV"]
    near = table(rows([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0 + 1e-12]]))
    assert near["KL(ref||cand)"] >= 0.0 and near["KL(cand||ref)"] >= 0.0


def test_zeros_of_probability() -> None:
    with np.errstate(divide="ignore"):
        log = np.log
        same = rows(log([[0.5, 0.5, 0.0]]), log([[0.5, 0.5, 0.0]]))
        assert slugs(same) == [] and table(same)["KL(ref||cand)"] == 0.0
        one = rows(log([[1.0, 0.0]]), log([[0.5, 0.5]]))
        assert table(one)["KL(ref||cand)"] == pytest.approx(math.log(2)) and slugs(one) == ["support_mismatch"]
        other = rows(log([[0.3, 0.3, 0.4]]), log([[0.5, 0.5, 0.0]]))
        assert table(other)["KL(ref||cand)"] == "inf" and slugs(other) == ["support_mismatch"]


def test_a_log_probability_far_below_float32() -> None:
    answer = rows([[0.0, -120.0]], [[0.0, -120.0]])
    assert slugs(answer) == [] and table(answer)["TV"] == 0.0


def test_a_sampler_that_keeps_two_tokens_has_a_mean_ratio_of_the_kept_mass() -> None:
    p = np.array([0.8, 0.15, 0.05])
    tokens = np.repeat([0, 1], [16, 3])
    answer = compared(
        [request("r", np.log(p)[tokens], token_ids=tokens)], [request("r", np.log(p / 0.95)[tokens], token_ids=tokens)]
    )
    assert slugs(answer) == ["support_mismatch"]
    assert answer["findings"][0]["evidence"]["missing_mass"] == pytest.approx(0.05)
    assert {r["name"]: r["value"] for r in answer["estimators"]}["mean ratio"] == pytest.approx(0.95)


def test_raw_against_scaled_logits() -> None:
    x = np.array([[math.log(2), 0.0, -1.0]])
    answer = rows(x, x / 0.5)
    assert slugs(answer) == ["temperature_mismatch"]
    assert answer["findings"][0]["evidence"]["fitted_ratio"] == pytest.approx(2.0)


def test_log_ratios_beyond_float32_and_near_zero() -> None:
    assert slugs(compared([request("r", [-1.0, -1.0])], [request("r", [-101.0, -1.0])])) == ["ratio_overflow"]
    near = compared([request("r", [-1.0 + 1e-6])], [request("r", [-1.0])])
    assert {r["name"]: r["value"] for r in near["estimators"]}["k3"] == pytest.approx(5e-13, rel=1e-3)


def test_a_beginning_of_sequence_token_on_one_side() -> None:
    def side(ids):
        return [request("r", [-1.0] * len(ids), token_ids=ids)]

    for a, b in (([5, 6], [1, 5, 6]), ([1, 5, 6], [1, 1, 5, 6])):
        answer = compared(side(a), side(b))
        assert slugs(answer) == ["token_identity"] and answer["drift"] is None


def test_a_small_drift_of_each_token_is_a_large_one_of_the_sequence() -> None:
    g = -np.random.default_rng(0).exponential(1.0, 1000) - 1
    answer = compared([request("r", g + 0.01)], [request("r", g)])
    assert answer["sequences"]["median_log_weight"] == pytest.approx(10.0)


def test_logits_that_overflow_an_exponential() -> None:
    answer = rows([[1000.0, 0.0]], [[1000.0, 0.0]])
    assert slugs(answer) == [] and table(answer)["KL(ref||cand)"] == 0.0


def test_rows_of_two_vocabularies_are_refused() -> None:
    answer = rows([[0.0, 1.0]], log_softmax(np.array([[0.0, 1.0, 2.0]])))
    assert slugs(answer) == ["vocabulary_width"] and answer["explained"]["table"] == []
