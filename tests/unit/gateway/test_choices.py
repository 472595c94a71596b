"""Answers with several choices: one request, all of whose tokens count, and whose worst choice must hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from kcverify import driver
from kcverify.gateway.cells import Facts, planned_cells, values_of
from kcverify.gateway.guard import Guard
from kcverify.gateway.measures import Rows
from kcverify.gateway.observed import UNPROMPTED, Listed, answered, answers, joined, listed
from kcverify.gateway.streaming import Events, Gathered, content
from kcverify.routing.health import Where
from kcverify.source import Source

TEXT = """contract several version "1"
assume { temperature = 1; vocabulary = 8 }
numerical {
  share: tv <= 0.1 except 50%             -> L2
  worst: tv <= 0.9                        -> L2
  mean:  mean tv <= 0.5                   -> L2
  whole: sequence_ratio <= 2 except 20%   -> L2
  ratio: mean sequence_ratio <= 2         -> L2
}
"""
MADE = driver.load_source(Source("several.kc", TEXT)).contracts[0]
CELLS = planned_cells(MADE)[0]


def side(shifts: list[float], width: int = 8) -> Listed:
    """Positions at which token 0 has the probability `1/8 e^shift`, and the other seven share the rest."""
    rows = []
    for shift in shifts:
        own = math.exp(shift) / 8
        rows.append([(0, math.log(own)), *((i, math.log((1 - own) / 7)) for i in range(1, 8))][:width])
    return listed([row[0][1] for row in rows], rows, 8)


def rows(choices: list[list[float]]) -> Rows:
    """The reference is uniform; the candidate shifts token 0, which was drawn everywhere, at each position of each choice."""
    spans, start = [], 0
    for choice in choices:
        spans.append((start, start + len(choice)))
        start += len(choice)
    own, uniform = (joined([side(c) for c in given]) for given in (choices, [[0.0] * len(c) for c in choices]))
    return Rows((0,) * start, uniform, own, 1e-9, 1.0, True, 8, tuple(spans) if len(choices) > 1 else ())


def values(choices: list[list[float]]):  # type: ignore[no-untyped-def]
    return values_of(CELLS, {}, Facts("r", 1, 1.0, rows(choices)))


def test_a_share_is_that_of_all_tokens_of_the_request() -> None:
    far = -2.0  # total variation about 0.108
    found = values([[0.0] * 3, [far]])["share"]
    assert (found.low, found.high, found.record.rows, found.record.wealth.requests) == (0.25, 0.25, 4, 1)
    assert found.at == 3
    assert values([[0.0, 0.0, 0.0, far]])["share"].record == found.record


def test_the_worst_token_of_any_choice_counts() -> None:
    assert values([[0.0], [0.0, 0.0]])["worst"].low == 0.0
    found = values([[0.0], [0.0, math.log(8 * 0.999999)]])
    assert found["worst"].low == 0.0 and found["worst"].worst == pytest.approx(0.875, abs=1e-3)
    assert found["mean"].low == pytest.approx(0.875 / 3, abs=1e-3), "the mean over all tokens"


@pytest.mark.parametrize(
    ("choices", "exceeds", "mean"),
    [([[0.0], [0.0]], 0.0, 1.0), ([[-0.5, -0.5], [0.0]], 1.0, (math.e + 1) / 2), ([[0.0], [-0.5, -0.5]], 1.0, (1 + math.e) / 2),
     ([[-0.5], [-0.5]], 0.0, math.exp(0.5)), ([[-0.5, -0.5]], 1.0, math.e)],
)  # fmt: skip
def test_a_ratio_of_sequences_must_hold_for_every_choice(
    choices: list[list[float]], exceeds: float, mean: float
) -> None:
    """Two halves of different choices are no whole; one request is one unit, however many choices it has."""
    found = values(choices)
    assert (found["whole"].low, found["whole"].high, found["whole"].record.rows) == (exceeds, exceeds, 1)
    assert found["whole"].record.wealth.requests == 1
    assert found["ratio"].low == pytest.approx(mean, rel=1e-6)


def test_a_choice_that_is_not_decided_leaves_the_request_open_and_a_broken_one_fails_it() -> None:
    whole = rows([[0.0], [0.0]])
    unknown = Listed(np.array([-math.log(8), math.nan]), whole.candidate.ids, whole.candidate.top, np.zeros(2, bool))
    open_ = Rows(whole.tokens, whole.reference, unknown, 1e-9, 1.0, True, 8, whole.spans)
    found = values_of(CELLS, {}, Facts("r", 1, 1.0, open_))["whole"]
    assert (found.low, found.high, found.record.missing) == (0.0, 1.0, 1)
    bad = Listed(unknown.logprobs, unknown.ids, unknown.top, np.array([False, True]))
    broken = values_of(
        CELLS, {}, Facts("r", 1, 1.0, Rows(whole.tokens, whole.reference, bad, 1e-9, 1.0, True, 8, whole.spans))
    )
    assert (broken["whole"].low, broken["whole"].record.invalid) == (1.0, 1)
    assert broken["ratio"].low == math.inf and broken["share"].record.invalid == 1


def test_sides_of_different_width_stand_one_after_another() -> None:
    both = joined([side([0.0, -1.0], 3), side([-2.0], 8)])
    assert both.ids.shape == (3, 8) and both.width == 3 and both.ids[0].tolist()[3:] == [-1] * 5
    assert np.isnan(both.top[0, 3:]).all() and both.logprobs[2] == side([-2.0]).logprobs[0]
    assert both.texts == ()


def test_a_witness_says_in_which_choice_it_is() -> None:
    guard = Guard(MADE, ())
    guard.add(Facts("r", 1, 1.0, rows([[0.0] * 30, [0.0, 0.0, -3.0, 0.0]])), Where("candidate", "", 0))
    witness = guard.witnesses()["share"][0]
    assert (witness["choice"], witness["position"], witness["first"], len(witness["tokens"])) == (1, 2, 0, 4)
    alone = Guard(MADE, ())
    alone.add(Facts("r", 1, 1.0, rows([[0.0, -3.0]])), Where("candidate", "", 0))
    assert alone.witnesses()["share"][0]["choice"] is None


def choice(index: int, tokens: list[int], **more: object) -> dict[str, object]:
    names = [f"token_id:{t}" for t in tokens]
    lists = {"tokens": names, "token_logprobs": [-0.5] * len(tokens), "top_logprobs": [{n: -0.5} for n in names]}
    return {"index": index, "text": "x" * len(tokens), "token_ids": tokens, "logprobs": lists, **more}


def test_a_stream_of_several_choices_reads_as_the_whole_answer() -> None:
    """Their events come in turns; each choice keeps its own tokens and its own prompt."""
    gathered, cut = Gathered("completions"), Events()
    parts = [
        (1, [5], {"prompt_token_ids": [1, 2]}),
        (0, [6], {"prompt_token_ids": [1, 2]}),
        (1, [7], {}),
        (0, [8, 9], {}),
    ]
    for index, tokens, more in parts:
        event = {"id": "a", "model": "m", "choices": [choice(index, tokens, **more)]}
        for found in cut.feed(b"data: " + json.dumps(event).encode() + b"\n\n"):
            gathered.add(json.loads(content(found) or b""))
    read = answers(gathered.answer(), (), None, 1)
    assert [r.tokens for r in read] == [(6, 8, 9), (5, 7)]
    assert all(r.prompt == (1, 2) and not r.missing and r.side is not None for r in read)
    assert [r.count for r in read] == [3, 2]


def test_several_prompts_must_name_their_own_and_one_question_has_one_choice() -> None:
    found = {
        "prompt_token_ids": [9],
        "choices": [choice(0, [5], prompt_token_ids=[1]), choice(1, [6])],
        "usage": {"completion_tokens": 2},
    }
    read = answers(found, (), (), 1)
    assert [(r.prompt, r.missing, r.count) for r in read] == [((1,), "", 1), ((), UNPROMPTED, 1)]
    assert "2 choices" in answered(found, (), None, 1).missing
    for wrong in ({}, {"choices": []}, {"choices": [3]}, {"choices": 3}):
        assert "no choices" in answers(wrong, (), None, 1)[0].missing
