"""Identity checks of tokens, requests, weights, steps and masks: what fires, what does not."""

from __future__ import annotations

import numpy as np
import pytest
from made_rows import logits, noisy, rng, top, whole
from made_streams import compared, drawn, request, slugs, stream

from kcverify.streams.checks_run import steps_of
from kcverify.streams.finding import Finding
from kcverify.streams.identity import CHECKS


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
