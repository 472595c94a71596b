"""What a finding means for the numbers is its row's: which it voids, and which stay without the rows it is about."""

from __future__ import annotations

from typing import Any

import numpy as np
from made_streams import compared, drawn, log_softmax, request

from kcverify.streams.bearing import FAMILIES
from kcverify.streams.identity import BEARINGS, CHECKS


def listed(values: np.ndarray, again: bool = False, **more: Any) -> Any:
    ids = np.argsort(-values, axis=1)[:, :5]
    if again:
        ids[:, 4] = ids[:, 3]
    return request("r", top_ids=ids, top_logprobs=np.take_along_axis(values, ids, 1), **more)


def test_every_code_has_one_bearing() -> None:
    assert set(BEARINGS) == {slug for check in CHECKS for slug in check.codes}
    assert all(set(b.voids) <= set(FAMILIES) and 0 <= b.most <= 1 for b in BEARINGS.values())


def test_a_repeated_token_moves_no_number() -> None:
    x = log_softmax(np.random.default_rng(0).normal(size=(40, 12)))
    answer = compared([listed(x, again=True)], [listed(x + 1e-3)])
    assert [f["slug"] for f in answer["findings"]] == ["duplicate_token"]
    assert (answer["verdict"], answer["exit_code"], answer["void"]) == ("partly_comparable", 1, {})
    assert answer["explained"] is None and answer["drift"]["bounds"][0]["rows"] == 40


def test_a_few_placeholders_are_left_out_and_many_void_their_kind() -> None:
    g = -np.random.default_rng(0).exponential(1.0, 400) - 1
    for count, verdict in ((4, "partly_comparable"), (5, "not_comparable")):
        values = [-9999.0 if i < count else float(v) for i, v in enumerate(g)]
        answer = compared([request("r", g + 0.01)], [request("r", values)])
        assert answer["verdict"] == verdict and answer["exit_code"] == 1
        assert answer["left_out"] == [{"slug": "placeholder_value", "family": "sampled", "rows": count, "of": 400}]
        standing = answer["drift"] if count == 4 else answer["explained"]
        assert standing["bounds"][0]["rows"] == 400 - count
        assert answer["void"] == ({} if count == 4 else {"sampled": ["placeholder_value"]})


def test_one_broken_row_voids_rows_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 8))
    y = x + 0.01 * rng.normal(size=x.shape)
    tokens = drawn(y, rng)
    a = request("r", log_softmax(x)[np.arange(200), tokens], logits=x, token_ids=tokens)
    g = log_softmax(y)[np.arange(200), tokens]
    y[7, 2] = np.nan
    answer = compared([a], [request("r", g, logits=y, token_ids=tokens)])
    assert answer["void"] == {"rows": ["non_finite"]} and answer["verdict"] == "partly_comparable"
    assert answer["drift"]["table"] == [] and [p["family"] for p in answer["drift"]["bounds"]] == ["sampled"]
    assert answer["explained"]["table"][0]["rows"] == 199 and answer["exit_code"] == 1


def test_answers_of_two_weight_versions_are_left_out() -> None:
    def side(shift: float, mixed: int) -> list[Any]:
        g = -np.random.default_rng(2).exponential(1.0, (200, 4)) - 1
        fields = [{"weight_versions": [1, 1, 1, 2 if i < mixed else 1]} for i in range(200)]
        return [request(f"r{i:03}", g[i] + shift * (100 if i < mixed else 1), fields=fields[i]) for i in range(200)]

    answer = compared(side(0.01, 2), side(0.0, 2))
    assert answer["verdict"] == "partly_comparable" and answer["requests"]["tokens"] == 792
    assert {r["name"]: r["value"] for r in answer["estimators"]}["mean |d|"] < 0.0101
    assert answer["left_out"][0] == {"slug": "weight_versions", "family": "sampled", "rows": 8, "of": 800}
    assert compared(side(0.01, 3), side(0.0, 3))["verdict"] == "not_comparable"


def test_what_is_no_fault_of_the_numbers_leaves_them() -> None:
    g = -np.random.default_rng(3).exponential(1.0, 20000) - 2
    d = np.random.default_rng(4).normal(-0.005, 0.1, 20000)
    answer = compared([request("r", g + d)], [request("r", g)], window=(0.999, 1.001))
    assert answer["verdict"] == "partly_comparable" and answer["drift"] is not None and answer["exit_code"] == 1
