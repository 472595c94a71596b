"""The experiment on policy-gradient bias at small size: measured by enumeration, below the proved bound in every run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pg_bias.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("pg_bias_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize("kernel", ["bfloat16", "int8", "fp8", "int4"])
def test_every_measured_value_is_within_its_bound(example, kernel, adversarial):
    for seed in range(3):
        found = example.experiment(seed, kernel, 3, 3, adversarial)
        for name, (low, high) in found.items():
            assert low <= high * (1 + 1e-9) + 1e-12, (name, seed)
        measured, bound = found["bias, its own TV"]
        assert measured > 0 and bound <= found["bias, proved"][1] * (1 + 1e-9), "the proved bound covers the exact one"
        if adversarial:
            assert measured > 0.03 * bound, "an experiment that measures next to nothing shows nothing"


def test_the_enumeration_is_the_policy(example):
    """Probabilities of all responses add up to 1, and the expected score is 0."""
    features, visited, responses = example.states(3, 3)
    assert visited.shape == (27, 3) and len({tuple(row) for row in responses.tolist()}) == 27
    logits = torch.randn(len(features), 3, dtype=torch.float64, requires_grad=True)
    log_p, tokens = example.log_probability(logits, visited, responses)
    assert float(log_p.detach().exp().sum()) == pytest.approx(1) and torch.allclose(tokens.sum(1), log_p)
    (gradient,) = torch.autograd.grad((log_p.exp().detach() * log_p).sum(), logits)
    assert float(gradient.abs().max()) < 1e-12


def test_without_drift_there_is_no_bias(example):
    found = example.experiment(0, "float32", 3, 3, False, scale=0.0)
    assert found["bias, its own TV"][0] == 0
