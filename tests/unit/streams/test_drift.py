"""The drift table against the formulas, bounds from partial rows against the true total variation, and the witnesses."""

from __future__ import annotations

import numpy as np
import pytest
from made_streams import compared, drawn, log_softmax, request

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 40)) * 2.5
Y = X + 0.2 * RNG.normal(size=X.shape)
A, B = log_softmax(X), log_softmax(Y)
P, Q = np.exp(A), np.exp(B)
TV = np.abs(P - Q).sum(1) / 2
TOKENS = drawn(Y, RNG)


def split(make, n: int = 10):
    return [make(f"r{i:02}", slice(i, i + n)) for i in range(0, 60, n)]


def whole(x):
    return split(lambda name, at: request(name, logits=x[at], token_ids=TOKENS[at]))


def listed(lp, k: int):
    ids = np.argsort(-lp, axis=1)[:, :k]
    values = np.take_along_axis(lp, ids, 1)
    return split(lambda name, at: request(name, top_ids=ids[at], top_logprobs=values[at], token_ids=TOKENS[at]))


def test_whole_rows_are_exact() -> None:
    table = {row["metric"]: row for row in compared(whole(X), whole(Y))["drift"]["table"]}
    expected = {
        "TV": TV, "KL(ref||cand)": (P * (A - B)).sum(1), "KL(cand||ref)": (Q * (B - A)).sum(1),
        "logit span": np.ptp(X - Y, axis=1), "other top-1": (P.argmax(1) != Q.argmax(1)).astype(float),
    }  # fmt: skip
    for name, values in expected.items():
        assert table[name]["mean"] == pytest.approx(values.mean()) and table[name]["max"] == pytest.approx(values.max())
        assert table[name]["rows"] == 60 and table[name]["requests"] == 6
    worst = table["TV"]["worst"][0]
    row = int(TV.argmax())
    assert (worst["request"], worst["position"], worst["token"]) == (f"r{row // 10 * 10:02}", row % 10, TOKENS[row])
    means = TV.reshape(6, 10).mean(1)
    half = 2.5706 * means.std(ddof=1) / np.sqrt(6)
    assert table["TV"]["upper"] - table["TV"]["mean"] == pytest.approx(half, rel=1e-3)
    assert table["TV"]["quantiles"]["p50"] == pytest.approx(np.sort(TV)[29], rel=0.03)


@pytest.mark.parametrize("k", [1, 5, 20, 40])
@pytest.mark.parametrize("kind", ["lists", "left whole", "right whole"])
def test_bounds_enclose_and_tighten(kind, k) -> None:
    left = whole(X) if kind == "left whole" else listed(A, k)
    right = whole(Y) if kind == "right whole" else listed(B, k)
    answer = compared(left, right)
    [part] = answer["drift"]["bounds"]
    assert part["lower"] - 1e-5 <= TV.mean() <= part["upper"] + 1e-5 and part["rows"] == 60
    for row in part["requests"]:
        at = int(row["request"][1:])
        assert row["lower"] - 1e-5 <= TV[at : at + 10].mean() <= row["upper"] + 1e-5
        assert row["sum_upper"] == pytest.approx(10 * row["upper"])
    if k == 40:
        assert part["upper"] - part["lower"] < 1e-4


def test_bounds_from_sampled_tokens() -> None:
    at = np.arange(60)
    left, right = (split(lambda name, s, lp=lp: request(name, lp[at, TOKENS][s], token_ids=TOKENS[s])) for lp in (A, B))
    [part] = compared(left, right)["drift"]["bounds"]
    p, q = P[at, TOKENS], Q[at, TOKENS]
    assert part["lower"] == pytest.approx(np.abs(p - q).mean(), abs=1e-5)
    assert part["upper"] == pytest.approx((1 - np.minimum(p, q)).mean(), abs=1e-5)


def test_a_declared_error_widens_the_bounds() -> None:
    def rough(lp):
        ids = np.argsort(-lp, axis=1)[:, :5]
        values = np.take_along_axis(lp, ids, 1)
        return split(
            lambda name, s: request(
                name, top_ids=ids[s], top_logprobs=values[s], token_ids=TOKENS[s], error=np.full(10, 0.05)
            )
        )

    [narrow] = compared(listed(A, 5), listed(B, 5))["drift"]["bounds"]
    [wide] = compared(rough(A), rough(B))["drift"]["bounds"]
    assert wide["lower"] < narrow["lower"] and wide["upper"] > narrow["upper"]


def test_lists_of_texts() -> None:
    words = np.array([f"w{i}" for i in range(40)])

    def side(lp):
        ids = np.argsort(-lp, axis=1)[:, :8]
        values = np.take_along_axis(lp, ids, 1)
        return split(lambda name, s: request(
            name, top_logprobs=values[s], tokens=tuple(words[TOKENS[s]]), top_tokens=tuple(map(tuple, words[ids[s]]))
        ))  # fmt: skip

    [part] = compared(side(A), side(B))["drift"]["bounds"]
    [by_id] = compared(listed(A, 8), listed(B, 8))["drift"]["bounds"]
    assert (part["lower"], part["upper"]) == pytest.approx((by_id["lower"], by_id["upper"]))
