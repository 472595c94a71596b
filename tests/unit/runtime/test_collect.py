"""Times around callables, formats, pairs and memory, with a clock that the test turns."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from kcverify.runtime.collect import Pairs, cache_bytes, parser, peak_bytes, reset_peak, timed

torch.set_num_threads(1)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_call_is_timed() -> None:
    clock = Clock()

    def work(seconds: float) -> str:
        clock.now += seconds
        return "done"

    watched = timed(work, clock=clock)
    assert [watched(0.5), watched(0.25)] == ["done", "done"]
    assert [c.seconds for c in watched.take()] == [0.5, 0.25] and watched.take() == []


def test_a_failure_is_recorded_and_raised() -> None:
    clock = Clock()

    def work() -> None:
        clock.now += 2.0
        raise ValueError("broken")

    watched = timed(work, clock=clock)
    with pytest.raises(ValueError, match="broken"):
        watched()
    (call,) = watched.take()
    assert call.failed and call.seconds == 2.0


def test_the_first_item_of_a_stream() -> None:
    clock = Clock()

    def tokens(count: int):
        clock.now += 0.3
        for i in range(count):
            yield i
            clock.now += 0.1

    watched = timed(tokens, clock=clock)
    assert list(watched.stream(3)) == [0, 1, 2]
    assert list(watched.stream(0)) == []
    three, none = watched.take()
    assert (three.first, three.items) == (pytest.approx(0.3), 3) and three.seconds == pytest.approx(0.6)
    assert none.first is None and not none.failed


def test_a_stream_that_fails_or_is_abandoned() -> None:
    clock = Clock()

    def tokens():
        yield 1
        raise RuntimeError("gone")

    watched = timed(tokens, clock=clock)
    with pytest.raises(RuntimeError):
        list(watched.stream())
    abandoned = watched.stream()
    next(abandoned)
    abandoned.close()
    failed, left = watched.take()
    assert failed.failed and not left.failed and left.items == 1


@pytest.mark.parametrize(
    ("text", "accepted"),
    [('{"a": [1, null]}', True), ("3", True), ("{a: 1}", False), ("", False), ("NaN", False), ('{"a":1,"a":2}', False), ("[" * 100_000, False)],
)  # fmt: skip
def test_json(text: str, accepted: bool) -> None:
    assert parser("json")(text) is accepted


def test_patterns_and_callables() -> None:
    assert parser(re.compile(r"\d+"))("12") and not parser(re.compile(r"\d+"))("12 ")
    assert parser(int)("0") and not parser(int)("x")
    assert not parser(lambda text: text.startswith("a"))("b")
    assert not parser(lambda text: None)("b")
    with pytest.raises(ValueError, match="xml"):
        parser("xml")


def test_pairs_come_in_any_order() -> None:
    pairs: Pairs[str] = Pairs()
    pairs.add("reference", "a", 0.5)
    pairs.add("candidate", "b", 0.25)
    assert pairs.take()["request_ids"] == []
    pairs.add("candidate", "a", 1.0)
    assert pairs.take() == {"request_ids": ["a"], "reference": [0.5], "candidate": [1.0]}
    pairs.add("reference", "c", 0.0)
    assert pairs.rest() == {"request_ids": ["c", "b"], "reference": [0.0, None], "candidate": [None, 0.25]}
    assert pairs.rest()["request_ids"] == []
    pairs.add("reference", "a", 0.5)
    with pytest.raises(ValueError, match="already"):
        pairs.add("reference", "a", 0.5)
    with pytest.raises(ValueError, match="side"):
        pairs.add("left", "a", 0.5)


def test_memory_of_the_process() -> None:
    found = peak_bytes("cpu")
    assert found is None or found > 1 << 20
    assert peak_bytes("meta") is None and not reset_peak("cpu")


def test_bytes_of_a_cache() -> None:
    keys, values = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.bfloat16)
    legacy = ((keys, values), (keys, values))
    assert cache_bytes(legacy) == 24 * 4 + 24 * 2
    layers = SimpleNamespace(layers=[SimpleNamespace(keys=keys, values=values, is_initialized=True)], seen=3)
    layers.self = layers
    assert cache_bytes(layers) == 24 * 4 + 24 * 2
    assert cache_bytes({"k": keys[:1], "v": keys[1:]}) == 96
    assert cache_bytes(None) == cache_bytes("text") == 0
