"""A clause on a slice says what it says on every part of it, and nothing more."""

from __future__ import annotations

import pytest

from kcverify.driver import load_source
from kcverify.prove.check import check
from kcverify.source import Source

TEXT = """contract c
assume {{ temperature = 1; sampler = full_softmax; horizon <= 4 tokens; reward in [0, 1] }}
slice wide = prompt_tokens >= 1000
slice long = prompt_tokens >= 8000 and tag("code")
slice other = prompt_tokens >= 500
numerical {{ drift: {clause} on wide -> L2; rest: tv <= 0.5 on other -> L1; more: tv <= 0.4 on long -> L1 }}
guarantee {{ safe: {claim} on {where} }}
"""


def status(clause, claim, where):
    loaded = load_source(Source("t", TEXT.format(clause=clause, claim=claim, where=where)))
    assert not loaded.report.errors
    return check(loaded.contracts[0]).verdicts[0].status


def test_pointwise_limit_reaches_the_part():
    assert status("logit_span <= 0.1", "reward_drift <= 0.2", "long") == "PROVED"
    assert status("logit_span <= 0.1", "reward_drift <= 0.2", "wide") == "PROVED"


@pytest.mark.parametrize(
    ("clause", "claim", "where"),
    [
        ("logit_span <= 0.1", "reward_drift <= 0.2", "other"),
        ("logit_span <= 0.1 except 0.1%", "reward_drift <= 0.2", "long"),
        ("mean tv <= 0.01", "reward_drift <= 0.2", "long"),
    ],
    ids=["a larger slice", "an exception may gather", "a mean may gather"],
)
def test_nothing_else_does(clause, claim, where):
    assert status(clause, claim, where) != "PROVED"
