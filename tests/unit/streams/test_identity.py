"""Every identity check in both directions: it speaks where its cause is there, and is silent where it is not."""

from __future__ import annotations

import numpy as np
import pytest
from made_rows import lists, logits, noisy, rng, top, truncated, whole
from made_streams import compared, log_softmax, request, sampled, slugs, stream


@pytest.mark.parametrize("ratio", [0.5, 0.8, 0.95, 1.05, 1.5])
def test_a_temperature_is_found_from_rows_lists_and_sampled_tokens(ratio) -> None:
    x = logits()
    for answer, room in (
        (whole(x, noisy(x * ratio, 0.02)), 0.002),
        (lists(x, noisy(x * ratio, 0.02)), 0.01),
        (compared(*sampled(logits(8000), logits(8000) * ratio, rng())), 0.04),
    ):
        assert slugs(answer) == ["temperature_mismatch"]
        evidence = answer["findings"][0]["evidence"]
        assert evidence["fitted_ratio"] == pytest.approx(ratio, rel=room)
        assert evidence["lower"] <= evidence["fitted_ratio"] <= evidence["upper"]
        assert answer["drift"] is None and answer["explained"] is not None


@pytest.mark.parametrize("size", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_rounding_is_no_temperature_and_no_truncation(size) -> None:
    x = logits()
    assert slugs(whole(x, noisy(x, size))) == []
    assert slugs(lists(x, noisy(x, size))) == []
    assert slugs(compared(*sampled(logits(8000), noisy(logits(8000), size), rng()))) == []


@pytest.mark.parametrize("name", ["bfloat16", "int8", "fp8", "int4"])
def test_real_kernels_give_no_finding(demo_logits, name) -> None:
    reference, candidate = demo_logits["float32"], demo_logits[name]
    for a, b in ((reference, candidate), (candidate, reference)):
        answer = whole(a, b, 64)
        assert slugs(answer) == [] and answer["drift"]["table"][0]["mean"] > 0
        assert slugs(lists(a, b, 20, 64)) == []
        assert slugs(compared(*sampled(a, b, rng(), 64))) == []


@pytest.mark.parametrize("name", ["float32", "int8"])
def test_a_real_model_tells_temperature_truncation_and_drift_apart(demo_logits, name) -> None:
    reference, candidate = demo_logits["float32"], demo_logits[name]
    warm = compared(*sampled(reference, candidate * 0.8, rng(), 64))
    assert slugs(warm) == ["temperature_mismatch"]
    assert warm["findings"][0]["evidence"]["lower"] <= 0.8 <= warm["findings"][0]["evidence"]["upper"]
    cut = truncated(candidate, 0.8)
    answer = compared(*sampled(reference, cut, rng(), 64))
    assert slugs(answer) == ["support_mismatch"]
    evidence = answer["findings"][0]["evidence"]
    p = np.exp(log_softmax(reference))
    assert evidence["lower"] <= float(p[np.isneginf(cut)].sum() / len(p)) <= evidence["upper"]
    assert slugs(whole(reference, cut, 64)) == ["support_mismatch"]


def test_one_truncation_on_both_sides_is_no_mismatch(demo_logits) -> None:
    a, b = demo_logits["float32"], demo_logits["int8"]
    assert slugs(whole(truncated(a, 0.9), truncated(b, 0.9), 64)) == []
    assert slugs(whole(truncated(a, 0.95), truncated(b, 0.8), 64)) == ["support_mismatch"]


def test_truncation_is_found_from_complete_lists() -> None:
    x = logits()
    cut = truncated(noisy(x, 0.02), 0.8)
    sides = []
    for y, k in ((x, 40), (cut, 40)):
        ids, lp = top(y, k)
        sides.append([
            request(f"r{i:04}", top_ids=np.where(np.isneginf(lp), -1, ids)[i : i + 50],
                    top_logprobs=np.where(np.isneginf(lp), np.nan, lp)[i : i + 50], token_ids=np.zeros(50))
            for i in range(0, len(x), 50)
        ])  # fmt: skip
    answer = compared(*sides)
    assert slugs(answer) == ["support_mismatch"]
    evidence = answer["findings"][0]["evidence"]
    p = np.exp(log_softmax(x))
    assert evidence["lower"] <= float(p[np.isneginf(cut)].sum() / len(p)) <= evidence["upper"]


def test_a_broken_minority_is_no_truncation() -> None:
    left, right = [], []
    for i in range(40):
        g = -rng(i).exponential(1.0, 60)
        left.append(request(f"r{i}", g - (2.0 if i < 8 else 0.0)))
        right.append(request(f"r{i}", g))
    answer = compared(left, right)
    assert slugs(answer) == [] and answer["sequences"]["bad"] == 8


@pytest.mark.parametrize("lag", [-2, -1, 1, 2])
def test_a_shift_is_found_with_its_sign(lag) -> None:
    left, right = [], []
    for i in range(4):
        g = -rng(i).exponential(1.0, 40) - 0.5
        left.append(request(f"r{i}", np.roll(g, -lag) + 0.01 * rng(9).normal(size=40)))
        right.append(request(f"r{i}", g))
    answer = compared(left, right)
    assert slugs(answer) == ["shifted"] and answer["findings"][0]["evidence"]["lag"] == lag
    low, high = answer["findings"][0]["evidence"]["lag_interval"]
    assert (
        low <= lag <= high
        and high - low <= 1
        and f"interval of the lag [{low}, {high}]" in answer["findings"][0]["cause"]
    )


def test_rows_that_are_one_late() -> None:
    x = logits(120, 32) * np.linspace(0.3, 1.5, 8)[np.arange(120) % 8, None]
    late = [request("r", logits=np.roll(noisy(x, 0.01), 1, axis=0))]
    answer = compared([request("r", logits=x)], late)
    assert slugs(answer)[0] == "shifted" and answer["findings"][0]["evidence"]["lag"] == 1
    assert slugs(compared([request("r", logits=x)], [request("r", logits=noisy(x, 0.01))])) == []


def test_unrelated_numbers_are_no_shift() -> None:
    answer = compared([request("r", -rng(1).exponential(1.0, 200))], [request("r", -rng(2).exponential(1.0, 200))])
    assert "shifted" not in slugs(answer)


@pytest.mark.parametrize("value", [-9999.0, -1000.0, -100.0, 0.0])
@pytest.mark.parametrize("side", [0, 1])
def test_placeholders_on_either_side_are_counted_and_not_averaged(value, side) -> None:
    sides = [[-1.0, -2.0, -8.0, -1.5], [-1.1, -2.0, -7.9, -1.4]]
    sides[side][2] = value
    answer = compared([request("r", sides[0])], [request("r", sides[1])])
    assert slugs(answer) == ["placeholder_value"]
    assert answer["findings"][0]["evidence"]["first"]["position"] == 2 and answer["requests"]["tokens"] == 3
    assert max(row["value"] for row in answer["estimators"]) < 3
    sides[side][2] = -8.05
    assert slugs(compared([request("r", sides[0])], [request("r", sides[1])])) == []


def test_a_probability_that_rounds_to_one_is_no_placeholder() -> None:
    assert slugs(compared([request("r", [-1e-7, -1.0])], [request("r", [0.0, -1.0])])) == []


def test_minus_infinity_of_a_sampled_token() -> None:
    assert slugs(compared([request("r", [-1.0, -2.0])], [request("r", [-1.0, -np.inf])])) == ["placeholder_value"]
    answer = compared([request("r", [-1.0, -np.inf])], [request("r", [-1.0, -2.0])])
    assert slugs(answer) == ["support_mismatch"] and answer["findings"][0]["evidence"]["side"] == "reference"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_number_stays_in_the_denominator(bad) -> None:
    answer = compared([request("r", [-1.0, -2.0, -3.0])], [request("r", [-1.0, bad, -3.0])])
    assert slugs(answer) == ["non_finite"]
    evidence = answer["findings"][0]["evidence"]
    assert (evidence["count"], evidence["denominator"], evidence["first"]["position"]) == (1, 3, 1)
    assert slugs(compared([request("r", [-1.0, -2.0])], [request("r", [-1.0, bad], mask=[1, 0])])) == []


def test_a_broken_whole_row_against_lists_is_counted() -> None:
    x = logits(10, 32)
    ids, lp = top(x, 5)
    y = x.copy()
    y[3, 0] = np.nan
    listed = [request("r", top_ids=ids, top_logprobs=lp, token_ids=np.zeros(10))]
    answer = compared(listed, [request("r", logits=y, token_ids=np.zeros(10))])
    assert slugs(answer) == ["non_finite"]
    assert answer["findings"][0]["evidence"]["denominator"] == 10 and answer["explained"]["bounds"][0]["rows"] == 9


def test_positive_logprobs() -> None:
    assert slugs(compared([request("r", [-1.0, -2.0])], [request("r", [-1.0, 0.4])])) == ["positive_logprob"]
    assert slugs(compared([request("r", [-1.0, -1e-9])], [request("r", [-1.0, 1e-7])])) == []


def test_a_counted_position_without_a_number() -> None:
    answer = compared([request("r", [-1.0, -2.0, -3.0])], [request("r", [-1.0, None, -3.0])])
    assert slugs(answer) == ["unsampled_token"]
    assert slugs(compared([request("r", [None, -2.0, -3.0])], [request("r", [None, -2.1, -3.0])])) == []
    padded = compared(
        [request("r", [-1.0, -2.0, -0.1, -0.2, -0.3], token_ids=[5, 6, 0, 0, 0])],
        [request("r", [-1.0, -2.0, -100.0, -100.0, -100.0], token_ids=[5, 6, 0, 0, 0])],
    )
    assert "unsampled_token" in slugs(padded)


@pytest.mark.parametrize("value", [0.0, -np.inf, -1e9])
def test_a_wider_head(value) -> None:
    x = logits(20, 32)
    answer = whole(x, np.concatenate((x, np.full((20, 8), value)), 1), 10)
    assert slugs(answer) == ["vocabulary_width"]
    evidence = answer["findings"][0]["evidence"]
    assert (evidence["reference"], evidence["candidate"]) == (32, 40) and (evidence["extra_mass"] > 0) == (value == 0.0)
    low, high = evidence["vocabulary_interval"]
    assert 1 <= low <= high == (40 if value == 0.0 else 32)
    assert f"{low} to {high} tokens" in answer["findings"][0]["cause"]


def test_a_padded_head_of_the_same_width() -> None:
    x = logits(20, 32)
    y = noisy(x, 0.01)
    y[:, 28:] = 0.0
    answer = whole(x, y, 10)
    assert slugs(answer)[0] == "vocabulary_width" and answer["findings"][0]["evidence"]["columns"] == 4
    x[:, 28:] = 0.0
    assert slugs(whole(x, y, 10)) == []


def test_declared_widths_that_differ() -> None:
    a = stream([request("r", [-1.0, -2.0])], vocabulary=100)
    assert slugs(compared(a, stream([request("r", [-1.0, -2.1])], vocabulary=104))) == ["vocabulary_width"]
    assert slugs(compared(a, stream([request("r", [-1.0, -2.1])], vocabulary=100))) == []


def test_rows_that_do_not_sum_to_one() -> None:
    x = logits(20, 32)
    lp = log_softmax(x)
    assert slugs(whole(lp, lp / 0.6, 10)) == ["not_normalised"]
    assert slugs(whole(lp, log_softmax(x / 0.6), 10)) == ["temperature_mismatch"]
    assert slugs(whole(x - 40, noisy(x, 0.01) - 40, 10)) == []
    ids, values = top(x, 32)
    whole_lists = [request("r", top_ids=ids, top_logprobs=values, token_ids=np.zeros(20))]
    scaled = [request("r", top_ids=ids, top_logprobs=values / 0.6, token_ids=np.zeros(20))]
    assert slugs(compared(stream(whole_lists, vocabulary=32), stream(scaled, vocabulary=32))) == ["not_normalised"]
