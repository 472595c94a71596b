"""Lists of the most probable tokens: a temperature is no truncation, and its interval holds the true ratio."""

from __future__ import annotations

import numpy as np
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
