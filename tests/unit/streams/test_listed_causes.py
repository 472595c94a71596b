"""Lists of the most probable tokens: a temperature is no truncation, and its interval holds the true ratio."""

from __future__ import annotations

import numpy as np
import pytest
from made_streams import compared, log_softmax, request, slugs

MOST, TEMPERATURE = 20, 0.5


def listed(name: str, rows: np.ndarray):
    ids = np.argsort(-rows, axis=1)[:, :MOST]
    return request(name, top_ids=ids, top_logprobs=np.take_along_axis(rows, ids, 1))


def test_a_low_temperature_is_no_truncation() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(24, 30, 200)) * 2 * rng.uniform(0.3, 2, size=(24, 30, 1))
    noisy = (logits + 0.1 * rng.normal(size=logits.shape)) / TEMPERATURE
    left, right = ([listed(f"r{i}", log_softmax(rows)) for i, rows in enumerate(x)] for x in (logits, noisy))
    answer = compared(left, right)
    assert "support_mismatch" not in slugs(answer)
    (found,) = (f for f in answer["findings"] if f["slug"] == "temperature_mismatch")
    assert found["evidence"]["lower"] <= 1 / TEMPERATURE <= found["evidence"]["upper"]


@pytest.mark.parametrize("requests", [24, 3])
def test_the_ratio_of_swapped_sides_is_one_over_it(requests: int) -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(requests, 30, 200)) * 2
    noisy = (logits + 0.1 * rng.normal(size=logits.shape)) / 0.7
    left, right = ([listed(f"r{i}", log_softmax(rows)) for i, rows in enumerate(x)] for x in (logits, noisy))
    there, back = (
        next(f["evidence"] for f in compared(a, b)["findings"] if f["slug"] == "temperature_mismatch")
        for a, b in ((left, right), (right, left))
    )
    for one, other in (("fitted_ratio", "fitted_ratio"), ("lower", "upper"), ("upper", "lower")):
        assert there[one] * back[other] == pytest.approx(1, rel=1e-9)
    assert there["lower"] <= 1 / 0.7 <= there["upper"] and there["explained"] == pytest.approx(back["explained"])


def test_a_mass_from_lists_says_on_which_rows() -> None:
    rng = np.random.default_rng(7)
    rows = log_softmax(rng.normal(size=(12, 40, 30)) * 2)
    cut = np.where(np.arange(40)[:, None] % 2 == 0, np.where(np.argsort(np.argsort(-rows)) < 5, rows, -np.inf), rows)
    cut -= np.log(np.exp(cut).sum(-1, keepdims=True))
    left = [listed(f"r{i}", x) for i, x in enumerate(rows)]
    right = [listed(f"r{i}", x) for i, x in enumerate(cut)]
    for r in right:
        gone = np.isneginf(r.top_logprobs)
        r.top_ids[gone], r.top_logprobs[gone] = -1, np.nan
    (found,) = (f for f in compared(left, right)["findings"] if f["slug"] == "support_mismatch")
    assert "mass on the 240 rows whose list is complete, 95% interval" in found["message"]
    assert found["evidence"]["complete_rows"] == 240


@pytest.mark.parametrize("kind", ["rows", "lists"])
def test_rows_off_by_one_under_the_same_tokens(kind: str) -> None:
    """The token's own number comes of another row on each side, so that tokens alone agree at no lag."""
    rows = log_softmax(np.random.default_rng(9).normal(size=(120, 50)) * 3)
    ids = np.random.default_rng(10).integers(0, 50, 120)

    def side(values):
        more = {"logits": values}
        if kind == "lists":
            order = np.argsort(-values, axis=1)[:, :8]
            more = {"top_ids": order, "top_logprobs": np.take_along_axis(values, order, 1)}
        return [request("r0", values[np.arange(120), ids], token_ids=ids, **more)]

    answer = compared(side(rows), side(np.roll(rows, 1, 0)))
    assert slugs(answer) == ["shifted"] and answer["findings"][0]["evidence"]["lag"] == 1
    assert answer["verdict"] == "not_comparable"


def test_requests_without_counted_tokens_are_not_paired_by_them() -> None:
    def side(*names: str):
        return [request(n, [-1.0], token_ids=[i], mask=[0]) for i, n in enumerate(names)]

    answer = compared(side("a", "b"), side("c"))
    assert (answer["requests"]["pairs"], answer["requests"]["paired_by"]) == (0, "id")
