"""Every identity check in both directions: it speaks where its cause is there, and is silent where it is not."""

from __future__ import annotations

import numpy as np
import pytest
from made_streams import compared, drawn, log_softmax, request, sampled, slugs, stream

from kcverify.streams.checks_run import steps_of
from kcverify.streams.finding import Finding
from kcverify.streams.identity import CHECKS


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def logits(rows: int = 400, width: int = 64, seed: int = 0, peak: float = 2.5) -> np.ndarray:
    return rng(seed).normal(size=(rows, width)) * peak


def noisy(x: np.ndarray, size: float, seed: int = 1) -> np.ndarray:
    return x + size * rng(seed).normal(size=x.shape)


def whole(reference: np.ndarray, candidate: np.ndarray, length: int = 50, **declared):
    def side(x):
        return stream([request(f"r{i:04}", logits=x[i : i + length]) for i in range(0, len(x), length)], **declared)

    return compared(side(reference), side(candidate))


def top(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    lp = log_softmax(x)
    ids = np.argsort(-lp, axis=1)[:, :k]
    return ids, np.take_along_axis(lp, ids, 1)


def lists(reference: np.ndarray, candidate: np.ndarray, k: int = 10, length: int = 50):
    sides = []
    for x in (reference, candidate):
        ids, lp = top(x, k)
        sides.append([
            request(f"r{i:04}", top_ids=ids[i : i + length], top_logprobs=lp[i : i + length],
                    token_ids=np.zeros(len(ids[i : i + length])))
            for i in range(0, len(x), length)
        ])  # fmt: skip
    return compared(*sides)


def truncated(x: np.ndarray, top_p: float) -> np.ndarray:
    p = np.exp(log_softmax(x))
    order = np.argsort(-p, axis=1)
    kept = np.take_along_axis(p, order, 1).cumsum(1) - np.take_along_axis(p, order, 1) < top_p
    out = np.full_like(x, -np.inf)
    np.put_along_axis(out, order, np.where(kept, np.take_along_axis(x, order, 1), -np.inf), 1)
    return out


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


def test_retokenised_and_mixed_up_answers() -> None:
    def side(ids, tokens=None, lp=None):
        return [request("r", lp or [-1.0] * len(ids), token_ids=ids, tokens=tokens)]

    same_text = compared(side([1, 258, 1100, 7], ("a", "he", "llo", "!")), side([1, 31373, 7], ("a", "hello", "!")))
    assert slugs(same_text) == ["token_identity"] and "tokenised again" in same_text["findings"][0]["cause"]
    assert same_text["estimators"] == [] or same_text["requests"]["tokens"] == 1
    assert slugs(compared(side([1, 2, 3]), side([1, 9, 3]))) == ["token_identity"]
    assert slugs(compared(side([1, 2, 3]), side([1, 2]))) == ["token_identity"]
    assert slugs(compared(side([1, 2, 3]), side([1, 2, 3], lp=[-1.1, -0.9, -1.0]))) == []


def test_generations_part_ways_and_are_compared_up_to_there() -> None:
    x = logits(8, 32)
    ids, lp = top(x, 10)
    tokens = drawn(x, rng())
    other = tokens.copy()
    other[5:] = (other[5:] + 3) % 32
    a = [request("r", np.full(8, -1.0), token_ids=tokens, top_ids=ids, top_logprobs=lp)]
    b = [request("r", np.full(8, -1.1), token_ids=other, top_ids=ids, top_logprobs=lp)]
    answer = compared(a, b)
    assert slugs(answer) == ["token_divergence"] and answer["exit_code"] == 0
    assert answer["findings"][0]["evidence"]["first"]["position"] == 5
    assert answer["drift"]["bounds"][0]["rows"] == 6 and answer["requests"]["tokens"] == 5
    assert compared(a, b, fail_on="warning")["exit_code"] == 1


def test_prompts_on_one_side_alone() -> None:
    a = [request("r", [None, -3.0, -1.0, -2.0], token_ids=[8, 9, 4, 5], mask=[0, 0, 1, 1])]
    answer = compared(a, [request("r", [-1.1, -2.0], token_ids=[4, 5])])
    assert slugs(answer) == [] and answer["requests"]["tokens"] == 2


def test_requests_without_a_counterpart() -> None:
    a = [request("x", [-1.0, -2.0]), request("y", [-1.0, -2.0])]
    answer = compared(a, [request("y", [-1.0, -2.1]), request("z", [-1.0])])
    assert slugs(answer) == ["requests_unmatched"] and answer["exit_code"] == 0
    assert answer["requests"] == {
        "pairs": 1,
        "only_reference": 1,
        "only_candidate": 1,
        "repeated": 0,
        "tokens": 2,
        "paired_by": "id",
    }
    assert slugs(compared(a, [request("q", [-1.0])])) == ["not_observable"]
    assert slugs(compared([*a, a[0]], a)) == ["requests_unmatched"]


def test_requests_that_each_side_names_its_own_way() -> None:
    ids = [[1, 2, 3], [4, 5, 6], [4, 5, 6]]
    a = [request(f"a{i}", [-1.0, -2.0, -3.0 - i], token_ids=t) for i, t in enumerate(ids)]
    b = [request(f"b{i}", [-1.1, -2.0, -3.0 - i], token_ids=t) for i, t in enumerate(ids)]
    answer = compared(a, b[:1] + b[1:])
    assert answer["requests"]["pairs"] == 3 and answer["requests"]["paired_by"] == "tokens" and slugs(answer) == []
    assert any("their counted tokens" in line for line in answer["assumptions"])
    bare = [request(f"c{i}", [-1.1, -2.0, -3.0 - i]) for i in range(3)]
    assert compared(a, bare)["requests"]["paired_by"] == "order"
    assert slugs(compared(a, [request("z", [-1.0], token_ids=[9])])) == ["not_observable"]


def test_versions_of_weights_in_one_answer() -> None:
    def side(versions):
        return [request("r", [-1.0, -2.0, -3.0], mask=[0, 1, 1], fields={"weight_versions": versions})]

    assert slugs(compared(side([1, 1, 2]), side([1, 1, 1]))) == ["weight_versions"]
    assert slugs(compared(side([-1, 2, 2]), side([1, 2, 2]))) == []


def test_declared_weights_that_differ_are_a_warning() -> None:
    def side(**declared):
        return stream([request("r", [-1.0, -2.0])], **declared)

    answer = compared(side(weights="step 3"), side(weights="step 4"))
    assert slugs(answer) == ["weights_differ"] and answer["exit_code"] == 0
    assert (
        slugs(compared(side(weights="step 3"), side(weights="step 3")))
        == []
        == slugs(compared(side(), side(weights="a")))
    )


def test_repeated_rows_against_a_reference_that_moves() -> None:
    x = logits(60, 32)
    stuck = noisy(x, 0.01)
    stuck[30:40] = stuck[29]
    assert "repeated_rows" in slugs(whole(x, stuck, 10))
    peaked = np.where(np.arange(32) == x.argmax(1)[:, None] % 4, 0.0, -np.inf)
    assert slugs(whole(x, peaked, 10)) == ["support_mismatch"]
    ids = np.where(np.arange(5) == 0, x.argmax(1)[:, None] % 4, -1)
    cut = [request(f"r{i}", top_ids=ids[i : i + 10], top_logprobs=np.where(ids >= 0, 0.0, np.nan)[i : i + 10],
                   token_ids=np.zeros(10)) for i in range(0, 60, 10)]  # fmt: skip
    full_ids, lp = top(x, 10)
    full = [request(f"r{i}", top_ids=full_ids[i : i + 10], top_logprobs=lp[i : i + 10], token_ids=np.zeros(10))
            for i in range(0, 60, 10)]  # fmt: skip
    assert "repeated_rows" not in slugs(compared(full, cut))
    same = np.repeat(x[:6], 10, axis=0)
    assert slugs(whole(same, noisy(same, 0.01), 10)) == []


def test_steps_that_grow_jump_and_stay() -> None:
    def said(values, lags=None) -> list[Finding]:
        return [f.slug for f in steps_of(values, lags)]

    noise = 1 + 0.05 * rng().normal(size=30)
    assert said(np.linspace(0.01, 0.5, 30) * noise) == ["weights_stale"]
    assert said(np.full(30, 0.02) * noise) == []
    assert said(np.where(np.arange(30) < 12, 0.02, 0.2) * noise) == ["step_change"]
    lags = np.tile(np.arange(1, 6), 6)
    assert said(0.02 * lags * noise, lags) == []
    assert said(np.linspace(0.02, 0.026, 30) * noise) == []
    assert said([0.1, 0.2]) == []


def test_a_step_change_names_the_step_of_the_trainer() -> None:
    left, right = [], []
    for step in range(100, 110):
        g = -rng(step).exponential(1.0, 50) - 2
        fields = {"step": step}
        left.append(
            request(str(step), g + (0.5 if step >= 106 else 0.01) * rng(step + 1).normal(size=50), fields=fields)
        )
        right.append(request(str(step), g, fields=fields))
    answer = compared(left, right)
    assert slugs(answer) == ["step_change"] and answer["findings"][0]["evidence"]["step"] == 106


def test_a_mask_that_drops_what_disagrees() -> None:
    g = -rng().exponential(1.0, 100)
    d = np.where(np.arange(100) % 10 < 7, 3.0, 0.0)
    a = [request("r", g - d, mask=d == 0)]
    answer = compared(a, [request("r", g)], kept_floor=0.7)
    assert slugs(answer) == ["mask_hides_failure"]
    assert answer["findings"][0]["evidence"]["kept_share"] == pytest.approx(0.3)
    assert answer["findings"][0]["evidence"]["mean_abs_dropped"] == pytest.approx(3.0)
    assert slugs(compared(a, [request("r", g)])) == [] == slugs(compared(a, [request("r", g)], kept_floor=0.2))


def test_a_window_that_no_long_answer_meets() -> None:
    g = -rng().exponential(1.0, 20000) - 2
    a = [request("r", g + rng(1).normal(-0.005, 0.1, 20000))]
    assert slugs(compared(a, [request("r", g)], window=(0.999, 1.001))) == ["unsatisfiable_as_length_grows"]
    assert slugs(compared(a, [request("r", g)], window=(0.99, 1.01))) == []


def test_a_copy_is_a_note() -> None:
    a = [request("r", -rng().exponential(1.0, 40))]
    answer = compared(a, a)
    assert [f["slug"] for f in answer["findings"]] == ["identical_values"] and answer["exit_code"] == 0


def test_overflow_in_either_direction_of_sampling() -> None:
    a, b = [request("r", [-2.0, -1.0])], [request("r", [-91.0, -1.0])]
    assert slugs(compared(a, b)) == ["ratio_overflow"]
    assert slugs(compared(b, a)) == []
    assert slugs(compared(b, a, sampled_by="reference")) == ["ratio_overflow"]


def test_every_code_of_the_table_is_known_and_reached() -> None:
    from kcverify.codes import BY_SLUG

    codes = [slug for check in CHECKS for slug in check.codes]
    assert len(set(codes)) == len(codes) and all(slug in BY_SLUG for slug in codes)
    assert all(set(check.unless) <= set(codes) | {"not_normalised"} for check in CHECKS)
