"""What a comparison keeps does not grow with the tokens that it reads."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
from made_streams import request

from kcverify.readers.stream import Stream
from kcverify.streams.compare import compare


def _peak(requests: int, tokens: int) -> float:
    """Largest memory in MB of a comparison of generated streams."""

    def side(seed: int) -> Stream:
        def make():
            for i in range(requests):
                g = -np.random.default_rng(i).exponential(1.0, tokens) - 1
                yield request(
                    f"r{i}",
                    g + 0.01 * seed * np.random.default_rng(i + 1).normal(size=tokens),
                    token_ids=np.arange(tokens),
                )

        return Stream(Path("made"), "made", {}, frozenset({"logprobs", "token_ids"}), make)

    left, right = side(0), side(1)
    tracemalloc.start()
    answer = compare(left, right)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    assert answer["requests"]["tokens"] == requests * tokens
    return peak


def test_memory_is_that_of_requests_and_not_of_tokens() -> None:
    _peak(10, 100)
    small, long = _peak(40, 100), _peak(40, 10_000)
    assert long < small + 15
    many = _peak(440, 100)
    assert (many - small) / 400 < 0.01
