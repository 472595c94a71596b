"""`rows` declares what whole rows hold: log-probabilities are taken as they are, so that what is wrong with them shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcverify.diagnostics import InputError
from kcverify.readers.inspection import inspect, observables
from kcverify.readers.opening import open_stream
from kcverify.streams.compare import compare


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - x.max(1, keepdims=True) - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, Path]:
    x = np.random.default_rng(0).normal(size=(60, 32)) * 2
    kept = {"logits": x, "logprobs": log_softmax(x), "heated": log_softmax(x / 0.7), "scaled": log_softmax(x) / 0.7}
    for name, values in kept.items():
        np.save(tmp_path / f"{name}.npy", values)
    return {name: tmp_path / f"{name}.npy" for name in kept}


def found(a: Path, b: Path) -> dict[str, Any]:
    answer = compare(open_stream(a, ["temperature=1"]), open_stream(b, ["temperature=1", "rows=logprobs"]))
    return {f["slug"]: f for f in answer["findings"]}


def test_log_probabilities_are_told_from_scaled_ones(rows: dict[str, Path]) -> None:
    assert not found(rows["logits"], rows["logprobs"])
    heated = found(rows["logits"], rows["heated"])
    assert heated["temperature_mismatch"]["evidence"]["fitted_ratio"] == pytest.approx(1 / 0.7)
    assert set(found(rows["logits"], rows["scaled"])) == {"not_normalised"}


def test_the_sidecar_declares_it_and_inspect_says_so(rows: dict[str, Path]) -> None:
    rows["logprobs"].with_name("logprobs.npy.kcverify.json").write_text(json.dumps({"rows": "logprobs"}))
    seen, other = inspect(rows["logprobs"]), inspect(rows["logits"])
    assert "row_logprobs" in seen.carries and "logits" in other.carries
    worth = [{o.metric: o.worth for o in observables(s.carries)} for s in (seen, other)]
    assert worth[0]["tv"] == worth[1]["tv"] == "exact"
    assert {o for o in worth[0] if worth[0][o] != worth[1][o]}


def test_any_other_word_is_refused(rows: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="rows"):
        open_stream(rows["logits"], ["rows=probabilities"])
