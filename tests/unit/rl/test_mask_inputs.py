"""Rounded, impossible and ill-shaped inputs: a divergence that is called a lower bound is one, wrong arguments say so."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kcverify.rl import (
    binary_kl,
    certified,
    dppo,
    policy_loss,
    stopped_prefix,
    top_k,
    truncated,
    trust_region,
    windowed,
)

torch.set_num_threads(1)
X = torch.full((2, 3), -0.5)
ONES = torch.ones(2, 3)
LISTS = X[..., None]
IDS = torch.zeros(2, 3, 1, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_list_of_the_whole_vocabulary_has_the_rows_divergence(dtype):
    """What summing and rounding leave of 1 is no mass that the trainer bans: it made the KL of whole rows infinite."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(6, 0.4), size=(40, 4))
    q = p * np.exp(0.2 * rng.normal(size=p.shape))
    q /= q.sum(-1, keepdims=True)
    truth = (q * np.log(q / p)).sum(-1)
    found = top_k(torch.tensor(np.log(p)).to(dtype), torch.tensor(np.log(q)).to(dtype), kind="kl").numpy()
    step = torch.finfo(dtype).eps
    assert (found <= truth + 40 * step).all()
    assert np.abs(found - truth).max() < 100 * step


def test_a_probability_that_rounds_to_one_is_not_certain():
    """Two confident sides that differ in the last bit of float32 are near, whatever the rest of the row is."""
    trainer, rollout = torch.tensor([[0.0]]), torch.tensor([[-1.1920929e-07]])
    assert 0 <= float(binary_kl(trainer, rollout)) < 1e-5
    weights, report = dppo(trainer, rollout, torch.ones(1, 1), advantages=torch.ones(1), delta=1e-3, kind="kl")
    assert weights.tolist() == [[1.0]]
    assert report.details["largest"] < 1e-5


def test_binary_kl_is_a_lower_bound_after_rounding():
    rng = np.random.default_rng(1)
    exact = -np.exp(rng.uniform(-25, 2, size=(200, 2)))
    q = np.exp(exact[:, 1])
    rest = -np.expm1(exact.T)
    truth = q * (exact[:, 1] - exact[:, 0]) + rest[1] * np.log(rest[1] / rest[0])
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.tensor(exact).to(dtype).T
        step = torch.finfo(dtype).eps * (1 + np.abs(exact).max(1))
        assert (binary_kl(a, b).numpy() <= truth + step).all()


def test_an_estimate_below_zero_certifies_nothing():
    """Log ratios of sampled tokens are no bounds of a divergence: negative ones made room for others."""
    divergence = torch.tensor([[0.9, -0.9, -0.9], [0.0, -1e-9, 0.1]])
    weights, _ = trust_region(X, X, ONES, mean_kl=0.05, divergence=divergence)
    assert weights.tolist() == [[0.0] * 3, [1.0] * 3]
    weights, _ = stopped_prefix(X, X, ONES, upper=divergence, budget=0.2, prefix_only=True)
    assert weights.tolist() == [[0.0] * 3, [1.0] * 3]


WRONG = {
    "mask": lambda: truncated(X, X, ONES * 0.5),
    "mask NaN": lambda: truncated(X, X, ONES * math.nan),
    "mask negative": lambda: truncated(X, X, -ONES),
    "window": lambda: windowed(X, X, ONES, low=3.0, high=2.0, weigh=False),
    "window NaN": lambda: windowed(X, X, ONES, low=math.nan, weigh=False),
    "delta NaN": lambda: dppo(X, X, ONES, advantages=torch.ones(2), delta=math.nan),
    "delta negative": lambda: dppo(X, X, ONES, advantages=torch.ones(2), delta=(0.1, -0.1)),
    "lists of another batch": lambda: dppo(X, X, ONES, advantages=torch.ones(2), top=(LISTS[:1], LISTS[:1])),
    "certified delta": lambda: certified(X, X, ONES, top=(IDS, LISTS, LISTS), delta=math.nan),
    "certified lists": lambda: certified(X, X, ONES, top=(IDS[..., :0], LISTS[..., :0], LISTS[..., :0])),
    "advantages": lambda: policy_loss(X, torch.ones(3), ONES, ONES),
    "total": lambda: policy_loss(X, torch.ones(2), ONES, ONES, total=0.0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_a_value_error(name):
    with pytest.raises(ValueError, match=r"0 or 1|window|at least 0|shape|above 0"):
        WRONG[name]()


def test_a_mask_of_ratios_may_have_no_upper_end():
    assert windowed(X, X - 9, ONES, low=0.5, high=math.inf, weigh=False)[0].tolist() == ONES.tolist()
