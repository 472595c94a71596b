"""Whatever the numbers are: no traceback, no NaN in a denominator, the order of requests changes nothing."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_streams import compared, log_softmax, request

VERDICTS = ("comparable", "partly_comparable", "not_comparable", "unobservable")
VALUES = st.sampled_from(
    [None, 0.0, -0.0, -1.0, -1e-9, -30.0, -100.0, -9999.0, -1e300, 0.5, float("nan"), float("inf"), float("-inf")]
)
NUMBERS = st.one_of(st.floats(-40, 0), VALUES)


@st.composite
def sides(draw):
    left, right = [], []
    for i in range(draw(st.integers(0, 5))):
        n = draw(st.integers(1, 8))
        ids = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
        for side in (left, right):
            kind = draw(st.integers(0, 4))
            if kind == 0:
                continue
            more = {
                "token_ids": ids if kind != 2 else ids[::-1],
                "mask": draw(st.lists(st.booleans(), min_size=n, max_size=n)),
            }
            if kind == 3:
                more["logits"] = np.array(
                    draw(st.lists(st.lists(NUMBERS, min_size=4, max_size=4), min_size=n, max_size=n)), dtype=float
                )
            if kind == 4:
                more["top_ids"] = draw(
                    st.lists(st.lists(st.integers(-1, 5), min_size=3, max_size=3), min_size=n, max_size=n)
                )
                lp = np.array(
                    draw(st.lists(st.lists(st.floats(-9, 0.5), min_size=3, max_size=3), min_size=n, max_size=n))
                )
                more["top_logprobs"] = np.where(np.array(more["top_ids"]) < 0, np.nan, lp)
            values = draw(st.lists(NUMBERS, min_size=n, max_size=n)) if kind != 3 or draw(st.booleans()) else None
            side.append(request(f"r{i}", values, **more))
    return left, right


@settings(max_examples=150, deadline=None)
@given(
    sides(),
    st.sampled_from(["reference", "candidate"]),
    st.sampled_from([None, "verl", "trl", "nemo", "slime", "prime-rl"]),
)
def test_any_numbers_give_an_answer_with_finite_denominators(pair, sampled_by, project) -> None:
    answer = compared(*pair, sampled_by=sampled_by, project=project, window=(0.9, 1.1), kept_floor=0.5)
    assert answer["exit_code"] in (0, 1, 3) and answer["verdict"] in VERDICTS
    assert answer["requests"]["tokens"] >= 0
    for row in answer["estimators"]:
        assert row["value"] != "nan"
    numbers = answer["drift"] or answer["explained"]
    for row in (numbers or {"table": []})["table"]:
        assert row["mean"] != "nan" and row["rows"] > 0
    for part in (numbers or {"bounds": []})["bounds"]:
        assert 0 <= part["lower"] <= part["upper"] <= 1


@settings(max_examples=60, deadline=None)
@given(sides(), st.randoms(use_true_random=False))
def test_the_order_of_requests_changes_nothing(pair, random) -> None:
    def answer(left, right):
        found = compared(left, right, project="verl")
        for worst in (found["sequences"] or {"worst": []})["worst"]:
            worst.pop("index")
        return json.dumps(found, sort_keys=True)

    before = answer(*pair)
    shuffled = [list(side) for side in pair]
    for side in shuffled:
        random.shuffle(side)
    assert answer(*shuffled) == before


def test_many_requests_in_another_order_give_the_same_digits() -> None:
    rng = np.random.default_rng(0)
    left, right = [], []
    for i in range(60):
        x = rng.normal(size=(12, 24)) * 2
        y = x + 0.1 * rng.normal(size=x.shape)
        tokens = rng.integers(0, 24, 12)
        at = np.arange(12)
        left.append(request(f"r{i:02}", log_softmax(x)[at, tokens], logits=x, token_ids=tokens))
        right.append(request(f"r{i:02}", log_softmax(y)[at, tokens], logits=y, token_ids=tokens))
    order = rng.permutation(60)
    first = compared(left, right)
    second = compared([left[i] for i in order], [right[i] for i in rng.permutation(60)])
    for found in (first, second):
        for worst in found["sequences"]["worst"]:
            worst.pop("index")
    assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
