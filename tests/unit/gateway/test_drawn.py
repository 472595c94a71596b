"""Whether tokens are drawn from the probabilities that are reported: no more evidence than there is, and soon enough."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.gateway.drawn import FACTORS, Drawn, plain, steps
from kcverify.gateway.observed import Listed

VOCABULARY = 40


def listed(logits: np.ndarray, tokens: np.ndarray, top: int) -> Listed:
    """What an engine says of these positions `[T, V]`: the sampled token, and the `top` most probable ones."""
    logp = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    ids = np.argsort(-logp, axis=1)[:, :top]
    at = np.arange(len(tokens))
    return Listed(logp[at, tokens], ids, np.take_along_axis(logp, ids, 1), np.zeros(len(tokens), bool))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, VOCABULARY), st.sampled_from([0.0, 1e-5, 1e-2]), st.booleans())
def test_the_mean_of_a_ratio_is_at_most_1(seed: int, top: int, error: float, known: bool) -> None:
    """Over all tokens of a position, from any distribution whose logs are within `error` of the reported ones."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, VOCABULARY)) * rng.choice([0.1, 1.0, 4.0])
    reported = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    true = np.exp(reported[0] + rng.uniform(-error, error, VOCABULARY) / 2)
    true /= true.sum()
    size = VOCABULARY if known else None
    found = [steps(listed(logits, np.array([t]), top), (t,), error, size) for t in range(VOCABULARY)]
    assert (true @ np.exp(found) <= 1.0 + 1e-9).all()


def answers(drawn: Drawn, factor: float, requests: int, fields: dict[str, object], seed: int = 1) -> int | None:
    """Requests of 3 tokens until the watch speaks; None if it does not."""
    rng = np.random.default_rng(seed)
    for n in range(requests):
        logits = rng.normal(size=(3, VOCABULARY)) * 2.0
        tokens = np.argmax(logits / factor + rng.gumbel(size=logits.shape), axis=1)
        asked = {"seed": seed << 32 | n << 4, **fields}
        if drawn.add(asked, [(listed(logits, tokens, 10), tuple(tokens.tolist()))], 1e-5, VOCABULARY):
            return n + 1
    return None


def test_a_right_sampler_is_never_blamed_and_a_wrong_one_soon_and_forgiven() -> None:
    assert answers(Drawn(), 1.0, 1500, {}) is None
    for factor in (0.5, 0.8, 1.3, 2.0):
        found = answers(Drawn(), factor, 400, {})
        assert found is not None and found < (60 if factor in (0.5, 2.0) else 400), (factor, found)
    drawn = Drawn()
    assert answers(drawn, 2.0, 200, {})
    for n in range(300):
        if answers(drawn, 1.0, 1, {}, seed=n + 10) is None:
            break
    assert answers(drawn, 1.0, 200, {}, seed=7) is None


def test_one_seed_is_one_draw_and_other_samplers_are_not_looked_at() -> None:
    drawn = Drawn()
    assert answers(drawn, 2.0, 200, {"seed": 42}) is None
    assert drawn.watch.seen == 1
    assert answers(drawn, 2.0, 200, {"top_p": 0.5}) is None
    assert drawn.watch.seen == 1


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [({}, True), ({"temperature": 1, "top_p": 1.0, "stop": ["x"], "n": 4}, True), ({"n": 2, "best_of": 4}, False), ({"temperature": 0.7}, False),
     ({"top_k": 5}, False), ({"logit_bias": {"1": 2}}, False), ({"response_format": {"type": "json_object"}}, False),
     ({"temperature": True}, False), ({"temperature": None, "seed": 3}, True), ({"a_field_of_the_future": 1}, False)],
)  # fmt: skip
def test_plain(fields: dict[str, object], wanted: bool) -> None:
    assert plain(fields) is wanted


def test_what_says_nothing_adds_nothing() -> None:
    none = Listed(np.array([-1.0]), np.full((1, 2), -1), np.full((1, 2), np.nan), np.zeros(1, bool))
    broken = Listed(np.array([np.nan]), np.array([[1, 2]]), np.array([[-0.7, -0.7]]), np.ones(1, bool))
    twice = Listed(np.array([0.0]), np.array([[1, 2]]), np.zeros((1, 2)), np.zeros(1, bool))
    for side in (none, broken, twice):
        assert steps(side, (1,), 1e-5, 10) == [0.0] * len(FACTORS)
    assert not any(math.isnan(x) for x in steps(none, (1,), 1e-5, None))


def several(drawn: Drawn, factor: float, requests: int, choices: int, **how: bool) -> int | None:
    """Requests of `choices` answers until the watch speaks; `same`: all of one request are one draw, `sorted`: as V0 lists them."""
    rng = np.random.default_rng(5)
    for n in range(requests):
        pairs = []
        logits = rng.normal(size=(4, VOCABULARY)) * 2.0
        for i in range(choices):
            if i == 0 or not how.get("same"):
                tokens = np.argmax(logits / factor + rng.gumbel(size=logits.shape), axis=1)
            pairs.append((listed(logits, tokens, 10), tuple(tokens.tolist())))
        if how.get("ranked"):
            pairs.sort(key=lambda pair: -float(pair[0].logprobs.sum()))
        if drawn.add({"seed": n * choices, "n": choices}, pairs, 1e-5, VOCABULARY):
            return n + 1
    return None


@pytest.mark.parametrize("how", [{}, {"same": True}, {"ranked": True}])
def test_choices_of_one_request_are_no_more_evidence_than_one_draw(how: dict[str, bool]) -> None:
    """Independent, all one and the same, or listed by their probability: a right sampler is not blamed, a wrong one is."""
    assert several(Drawn(), 1.0, 500, 4, **how) is None
    found = several(Drawn(), 2.0, 100, 4, **how)
    assert found is not None and found < 60, found


def test_the_mean_of_dependent_ratios_is_taken() -> None:
    one, three = Drawn(), Drawn()
    side = listed(np.random.default_rng(1).normal(size=(2, VOCABULARY)), np.array([3, 4]), 10)
    one.add({}, [(side, (3, 4))], 1e-5, VOCABULARY)
    three.add({}, [(side, (3, 4))] * 3, 1e-5, VOCABULARY)
    assert three.watch.seen == 1 and three.watch.wealth == pytest.approx(one.watch.wealth)


def test_a_seed_of_a_choice_is_used_up_too() -> None:
    """vLLM gives the i-th choice the seed plus i."""
    drawn, side = Drawn(), listed(np.zeros((1, VOCABULARY)), np.array([3]), 10)
    for seed, count, seen in ((10, 4, 1), (13, 1, 1), (8, 3, 1), (14, 1, 2), (8, 2, 3), (True, 1, 3)):
        drawn.add({"seed": seed}, [(side, (3,))] * count, 1e-5, VOCABULARY)
        assert drawn.watch.seen == seen, seed


def test_a_watch_goes_on_exactly_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through JSON: the sums, and the seeds that are used up, of which the oldest are forgotten."""
    monkeypatch.setattr("kcverify.gateway.drawn.SEEDS", 50)
    one = Drawn()
    assert answers(one, 1.2, 80, {}) is None
    fresh, forgotten = one.taken()
    assert (len(fresh), forgotten, one.taken()) == (80, 30, ([], 0))
    one.give_back((fresh[:2], 1))
    assert one.taken() == (fresh[:2], 1)
    two = Drawn()
    two.load_state_dict(json.loads(json.dumps(one.state_dict())), fresh[forgotten:])
    assert two.data() == one.data() and one.watch.log_e != 0.0
    for drawn in (one, two):
        answers(drawn, 2.0, 20, {}, seed=1)  # the seeds of before: those that are known count nothing
        answers(drawn, 2.0, 5, {}, seed=3)
    assert two.state_dict() == one.state_dict() and two.taken() == one.taken()
    wrong = one.state_dict()
    for change in ({"wealth": [0.0]}, {"summed": [math.inf] * 4}, {"settings": []}, {"seen": None}):
        with pytest.raises((ValueError, TypeError)):
            two.load_state_dict({**wrong, **change}, [])
    assert two.state_dict() == one.state_dict(), "what cannot be read changes nothing"
