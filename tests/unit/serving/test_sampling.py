"""The sampler draws from the distribution that it says, and rows are scored as their definition has it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kcverify.serving.sampling import Sampling, draw, log_softmax, most_probable, processed, score, score_prompt

LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 1.0, -30.0])


def support(s: Sampling) -> set[int]:
    return {i for i, z in enumerate(processed(LOGITS, s)) if z != -math.inf}


def test_truncation_keeps_what_its_definition_keeps():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()  # .0845 .3787 .0189 .3787 .1393 0
    assert support(Sampling()) == set(range(6))
    assert support(Sampling(top_k=1)) == {1, 3}  # a tie at the border stays, as in vLLM
    assert support(Sampling(top_k=3)) == {1, 3, 4}
    assert support(Sampling(top_p=0.37)) == {1}
    assert support(Sampling(top_p=p[1] + 1e-9)) == {1, 3}
    assert support(Sampling(min_p=0.3)) == {1, 3, 4}
    assert support(Sampling(top_k=4, top_p=0.9)) == {1, 3, 4}
    assert support(Sampling(temperature=1e6, top_p=0.99)) == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    "s", [Sampling(), Sampling(temperature=0.5), Sampling(temperature=2.0, top_p=0.8), Sampling(top_k=3)]
)
def test_frequencies_are_those_of_the_distribution(s):
    z, noise, n = processed(LOGITS, s), np.random.default_rng(5), 20_000
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    counts = np.bincount([draw(z, s, noise) for _ in range(n)], minlength=6)
    assert np.all(np.abs(counts - n * p) <= 4.5 * np.sqrt(n * p * (1 - p)) + 1e-9)


def test_greedy_takes_the_first_of_the_largest_and_nan_gives_token_zero():
    noise = np.random.default_rng(0)
    greedy = Sampling(temperature=0.0, top_k=1)
    assert draw(processed(LOGITS, greedy), greedy, noise) == 1
    nan = np.full(6, math.nan)
    for s in (greedy, Sampling(), Sampling(top_p=0.5, top_k=2, min_p=0.1)):
        assert draw(processed(nan, s), s, noise) == 0
    scored = score(log_softmax(nan), 0, 3)
    assert (scored.rank, scored.top) == (0, ())
    assert math.isnan(scored.logprob)


def test_scores_ranks_and_lists():
    row = log_softmax(LOGITS)
    exact = [x - math.log(sum(math.exp(y) for y in LOGITS)) for x in LOGITS]
    assert row.tolist() == pytest.approx(exact, rel=1e-6)
    assert all(float(np.float32(x)) == x for x in row)
    assert [i for i, _ in most_probable(row, 4)] == [1, 3, 4, 0]
    assert score(row, 0, 2).rank == 4
    cut = log_softmax(processed(LOGITS, Sampling(top_k=3)))
    assert len(most_probable(cut, 6)) == 3
    assert [s.rank for s in score_prompt(np.stack([row, row]), [9, 1, 5], 0)] == [1, 6]
