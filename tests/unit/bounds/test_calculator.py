"""The calculator against the 50-digit vectors, forwards and backwards."""

from __future__ import annotations

import json
from fractions import Fraction as F
from pathlib import Path

import pytest

from kcverify.bounds.calculator import KEYS, compute
from kcverify.bounds.graph import Parameters
from kcverify.bounds.inverse import budgets

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "bound_vectors.json").read_text(encoding="utf-8"))
TIGHTER = ("tv_seq", "reward_drift", "pg_bias")


def parameters(inputs):
    box = {
        name: (F(inputs[name]),) * 2
        for name in ("temperature", "reward_range", "advantage", "score_norm")
        if name in inputs
    }
    return Parameters({**box, "horizon": (F(1), F(inputs["horizon"]))})


def close(value, expected):
    return abs(value - expected) <= abs(expected) * F(1, 10**12)


@pytest.mark.parametrize("case", VECTORS["forward"], ids=lambda c: "-".join(str(v) for v in c["inputs"].values()))
def test_forward(case):
    inputs, expect = case["inputs"], case["expect"]
    lines = {
        line.key: line
        for line in compute("logit_drift", F(inputs["logit_drift"]), parameters(inputs), F(inputs["exceedance"]))
    }
    assert tuple(lines) == KEYS
    for key, value in expect["on_conforming_tokens"].items():
        assert close(lines[key].bound, F(value)), key
    for key in TIGHTER:
        assert lines[key].bound <= F(expect[key]) * (1 + F(1, 10**12)), key
        assert lines[key].attained <= lines[key].bound
    attained = expect["detail"]["tv_seq_attained_rho0"]
    if attained is not None:
        assert lines["tv_seq"].bound >= F(attained) * (1 - F(1, 10**12))
    if expect["ess"] is None:
        assert lines["ess"].bound is None
        assert "unbounded ratio" in lines["ess"].reason
    else:
        assert close(lines["ess"].bound, F(expect["ess"]))


@pytest.mark.parametrize("case", VECTORS["inverse"], ids=lambda c: "-".join(str(v) for v in c["inputs"].values()))
def test_inverse(case):
    inputs, expect = case["inputs"], case["expect"]
    found = {
        line.key: line
        for line in budgets("reward_drift", F(inputs["reward_tolerance"]), parameters(inputs), F(inputs["exceedance"]))
    }
    if not expect["feasible"]:
        assert found["logit_span"].budget is None
        assert "no budget is left" in found["logit_span"].reason
        return
    for key in ("logit_span", "logit_drift"):
        assert found[key].budget >= F(expect[key]) * (1 - F(1, 10**12)), key
    kept = compute("logit_span", found["logit_span"].budget, parameters(inputs), F(inputs["exceedance"]))
    assert next(line for line in kept if line.key == "reward_drift").bound <= F(inputs["reward_tolerance"])


def test_nothing_follows_without_its_assumption():
    lines = {line.key: line for line in compute("tv", F(1, 10), Parameters({"horizon": (F(1), F(8))}), F(0))}
    assert lines["logit_span"].bound is None
    assert "bounds no" in lines["logit_span"].reason
    assert lines["reward_drift"].bound is None
    assert "reward" in lines["reward_drift"].reason
    assert lines["tv_seq"].bound == lines["tv_seq"].attained or lines["tv_seq"].attained < lines["tv_seq"].bound


@pytest.mark.parametrize("given", ["logit_drift", "logit_span", "tv", "kl", "log_ratio"])
@pytest.mark.parametrize("value", [F(0), F(1, 10**9), F(1, 3)])
def test_attained_never_exceeds_the_bound(given, value):
    box = {
        "temperature": (F(7, 10), F(1)),
        "horizon": (F(1), F(12)),
        "reward_range": (F(1), F(1)),
        "advantage": (F(2), F(2)),
        "score_norm": (F(1), F(1)),
    }
    for line in compute(given, value, Parameters(box), F(1, 1000)):
        if line.bound is not None and line.attained is not None:
            assert line.attained <= line.bound if line.upper else line.attained >= line.bound


@pytest.mark.parametrize(
    ("target", "box", "reason"),
    [
        ("reward_drift", ("horizon", "reward_range"), "needs temperature"),
        ("pg_bias", ("horizon", "temperature"), "needs advantage, score_norm"),
        ("pass_rate_drift", ("temperature",), "needs horizon"),
    ],
)
def test_a_missing_assumption_is_named_backwards_too(target, box, reason):
    given = Parameters({name: (F(1), F(1)) for name in box})
    [line] = [line for line in budgets(target, F(1, 10), given, F(0)) if line.key == "logit_span"]
    assert line.reason == reason and not line.free


def test_a_tolerance_that_every_drift_keeps_needs_no_limit():
    given = Parameters({name: (F(1), F(1)) for name in ("horizon", "reward_range", "temperature")})
    lines = budgets("reward_drift", F(2), given, F(0))
    assert lines and all(line.free and "no limit is needed" in line.reason for line in lines)
