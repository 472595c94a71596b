"""States of shards add up: any order, any grouping, written and read back, give the answer of one pass, digit for digit."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_streams import drawn, log_softmax, request, stream
from test_streams_property import sides

from kcverify.streams.adding import Additive, Always, Exact, First, decoded, encoded, merged, packed, unpacked
from kcverify.streams.align import pairs
from kcverify.streams.compare import answered, setting_of
from kcverify.streams.observing import Observation, Options

OPTIONS = Options(project="verl", window=(0.99, 1.01), kept_floor=0.5)


def observed(left: Any, right: Any, number: int = 0) -> Observation:
    seen = Observation(setting_of(stream(left), stream(right), OPTIONS), OPTIONS.project, number)
    seen.take(pairs(stream(left), stream(right), seen.matching, "id"))
    return seen


def through_bytes(seen: Observation) -> Observation:
    """The state as a worker sends it."""
    out = Observation(seen.setting, OPTIONS.project)
    out.load(unpacked(packed(seen.dump())))
    return out


def text(seen: Observation, left: Any, right: Any) -> str:
    """The answer under the streams as a whole, without the numbers of requests, which go by their files."""
    seen.setting = setting_of(stream(left), stream(right), OPTIONS)
    seen.identity._setting = seen.setting
    for observer in seen.identity._observers:
        observer._setting = seen.setting
    found = answered(seen, OPTIONS, lambda *_: None)
    for worst in (found["sequences"] or {"worst": []})["worst"]:
        worst.pop("index")
    return json.dumps(found, sort_keys=True)


def grouped(parts: list[Observation], order: random.Random) -> Observation:
    """Merged two at a time, in an order and a grouping of its own."""
    while len(parts) > 1:
        one = parts.pop(order.randrange(len(parts)))
        other = parts.pop(order.randrange(len(parts)))
        one.merge(other)
        parts.append(one)
    return parts[0]


def check(left: list[Any], right: list[Any], shards: int, order: random.Random) -> None:
    whole = text(observed(left, right), left, right)
    names = sorted({r.request_id for r in (*left, *right)})
    home = {name: order.randrange(shards) for name in names}
    parts = [
        observed(*([r for r in side if home[r.request_id] == i] for side in (left, right)), i) for i in range(shards)
    ]
    assert text(grouped([through_bytes(p) for p in parts], order), left, right) == whole
    assert text(grouped(parts, order), left, right) == whole


@settings(max_examples=100, deadline=None)
@given(sides(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_numbers_in_any_shards(pair: Any, shards: int, order: random.Random) -> None:
    check(*pair, shards, order)


@pytest.mark.parametrize("seed", range(3))
def test_every_observer_at_work(seed: int) -> None:
    rng, left, right = np.random.default_rng(seed), [], []
    stale = rng.normal(size=24)
    for i in range(40):
        x = rng.normal(size=(12, 24)) * 2
        y = x / 0.8 + 0.1 * rng.normal(size=x.shape)
        if seed == 1:
            y[3:6] = stale
        if seed == 2:
            y = np.where(np.argsort(np.argsort(-y, axis=1), axis=1) < 8, y, -np.inf)
        tokens, at = drawn(y, rng), np.arange(12)
        fields = {"step": i // 4, "lag": 1, "weight_versions": [1] * 11 + [1 + (i == 7)]}
        kind = ("logits", "lists", "sampled")[i % 3]
        for side, z in ((left, x), (right, y)):
            lp = log_softmax(z)
            more: dict[str, Any] = {"logits": z} if kind == "logits" else {}
            if kind == "lists":
                ids = np.argsort(-lp, axis=1)[:, :5]
                more = {"top_ids": ids, "top_logprobs": np.take_along_axis(lp, ids, 1)}
            values = [-9999.0 if i == 5 and t == 3 else float(v) for t, v in enumerate(lp[at, tokens])]
            side.append(request(f"r{i:02}", values, token_ids=tokens, fields=fields, **more))
    check(left, right, 7, random.Random(seed))


def test_an_exact_sum_is_that_of_fsum_in_any_order() -> None:
    rng = random.Random(0)
    values = [rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300) for _ in range(500)] + [5e-324, -5e-324, 1.7e308]
    for _ in range(5):
        rng.shuffle(values)
        parts = [Exact() for _ in range(4)]
        for value in values:
            parts[rng.randrange(4)].add(value)
        total = parts[0]
        for part in parts[1:]:
            total.merge(part)
        assert total.value == math.fsum(values) and decoded(encoded(total)).value == total.value
    for odd, said in (((math.inf, 1.0), math.inf), ((math.inf, -math.inf), math.nan), ((math.nan,), math.nan)):
        total = Exact()
        for value in odd:
            total.add(value)
        assert str(total.value) == str(said)
    huge = Exact()
    for _ in range(4):
        huge.add(1.7e308)
    assert huge.value == math.inf


def test_what_does_not_say_how_it_adds_up_is_refused() -> None:
    for a, b in ((1.0, 2.0), (True, True), (None, None), ("a", "b"), (np.zeros(2), np.zeros(2)), ([], ())):
        with pytest.raises(TypeError):
            merged(a, b)
    for told in ({"kind": "Path", "parts": {}}, {"array": "d", "data": "!"}, {}):
        with pytest.raises((KeyError, ValueError, TypeError)):
            decoded(told)
    with pytest.raises(TypeError):
        encoded(object())


def test_parts_of_every_kind_come_back() -> None:
    first, always = First(), Always()
    first.add(3, {"request": "r", "position": 2, "token": None, "log_ratio": math.inf})
    always.add(False)

    class State(Additive):
        def __init__(self) -> None:
            self.values = {1.5: [(1, "a", None)], 2.0: []}
            self.first, self.always, self._passing = first, always, object()

    told = State()
    told.load(json.loads(json.dumps(State().dump())))
    assert told.values == {1.5: [(1, "a", None)], 2.0: []}
    assert told.first.place == first.place and not told.always.held
