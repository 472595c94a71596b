"""What is in print beside ours, at the horizon, the reward and the drift that were asked for."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from kcverify.arguments import comparison
from kcverify.bounds.published import HORIZON, compared
from kcverify.bounds.trust_region import REFERENCE, ROWS, applies
from kcverify.output import compare


def test_the_horizon_and_the_reward_that_are_given_are_those_of_the_response():
    span, region, horizon = comparison("logit_drift=0.05", ["temperature=0.7", "horizon=1024", "reward=0..2"])
    assert (span, horizon, region.length, region.reward_range) == (F(1, 7), 1024, 1024, 2)
    text = compare.text(span, region, horizon)
    assert "a response of 1024 such tokens, reward in [0, 2]" in text
    rows = {r.lemma.name: r for r in compared(span, horizon, F(2))}
    assert 0.747 < rows["seq_tv_optimal"].tight < 0.749
    assert rows["reward_of_tv"].tight == 2 * rows["seq_tv_optimal"].tight
    assert compare.data(span, region, horizon)["horizon"] == 1024


def test_the_region_follows_from_the_logits_that_are_given():
    """A table without rows said nothing where logits alone were given."""
    span, region, _ = comparison("logit_span=0.2", ["horizon=8"])
    assert all(applies(row, region) for row in ROWS)
    assert region.span == span == F(1, 5) and region.tv_sum == 8 * region.tv and region.kl_sum == 8 * region.kl
    stated = comparison("logit_span=0.2", ["horizon=8", "tv=0.01"])[1]
    assert stated.tv == F(1, 100) and stated.kl == region.kl


@pytest.mark.parametrize(("words", "region"), [([], REFERENCE), (["tv=0.1", "horizon=8"], None)])
def test_without_logits_the_region_is_what_is_stated(words, region):
    span, found, horizon = comparison(None, words)
    assert span == F(1, 10) and horizon == (HORIZON if region else 8)
    assert found == region if region else (found.tv, found.kl, found.span) == (F(1, 10), None, None)
