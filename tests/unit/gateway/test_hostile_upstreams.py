"""What an upstream says that no engine says: bounded, a fault of the upstream, never one of the gateway."""

from __future__ import annotations

import json
import math
import shlex
import time
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("transitions")

from kcverify.gateway.asked import DEEPEST, AskedError, read_fields
from kcverify.gateway.log import _plain
from kcverify.gateway.observed import answered, scored
from kcverify.gateway.shown import first_request
from kcverify.gateway.streaming import Events
from kcverify.gateway.upstream import Fault, parsed_event, whole_events


@pytest.mark.parametrize("choices", ["7", '"x"', '{"a": 1}', "true"])
def test_choices_that_are_no_list_are_a_fault_of_the_upstream(choices: str) -> None:
    with pytest.raises(Fault, match="invalid"):
        parsed_event(f'{{"choices": {choices}}}'.encode())


@pytest.mark.parametrize("choices", ["null", "[]", '[{"index": 0}]'])
def test_events_of_engines_are_read(choices: str) -> None:
    assert "choices" in parsed_event(f'{{"choices": {choices}}}'.encode())


def test_an_event_that_never_ends_is_a_fault_and_costs_little() -> None:
    events, began = Events(), time.process_time()
    with pytest.raises(Fault, match="invalid"):
        for _ in range(200_000):
            whole_events(events, b"data: aaaaaaaaaaaaaaaaaaaaaaaaaa")
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ends_are_seen_wherever_the_parts_are_cut(size: int) -> None:
    text = b"data: 1\r\n\r\ndata: 2\n\ndata: 3\r\n\r\n\n\ndata: 4"
    events, found = Events(), []
    for at in range(0, len(text), size):
        found += whole_events(events, text[at : at + size])
    assert b"".join(found).split() == b"data: 1 data: 2 data: 3".split()
    assert events.rest == b"data: 4"


def test_bodies_nested_beyond_reason_are_the_clients_fault() -> None:
    for depth in (DEEPEST + 1, 500, 900):
        with pytest.raises(AskedError):
            read_fields(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    assert read_fields(json.dumps({"a": [[1]] * 500}).encode())["a"][0] == [1]


def answer(token: Any, logprob: Any) -> dict[str, Any]:
    content = [
        {
            "token": "x",
            "id": token,
            "logprob": logprob,
            "top_logprobs": [{"token": "x", "id": token, "logprob": logprob}],
        }
    ]
    return {"choices": [{"text": "x", "prompt_token_ids": [1], "logprobs": {"content": content}}]}


def test_numbers_beyond_a_float_are_broken_ones() -> None:
    read = answered(answer(3, 10**400), (), [1], 5)
    assert read.side is not None and bool(read.side.broken[0])
    read = answered(answer(3, -(10**400)), (), [1], 5)
    assert read.side is not None and float(read.side.logprobs[0]) == -math.inf


def test_ids_beyond_a_vocabulary_are_none() -> None:
    assert "no token ids" in answered(answer(10**30, -1.0), (), [1], 5).missing


@pytest.mark.parametrize("key", ["²", "9" * 5000, "-1", "٣", "x"])
def test_keys_that_are_no_ids_are_passed_over(key: str) -> None:
    found = {"prompt_logprobs": [None, {"3": {"logprob": -1.0}, key: {"logprob": -2.0}}]}
    side = scored(found, 1, [3], 5)
    assert side is not None and side.ids[0].tolist() == [3]


def test_what_is_nested_too_deeply_is_not_written_down() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert _plain(deep) == "nested too deeply"


@pytest.mark.parametrize("name", ["m", "'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "a\nb\x1b[2J\u202e"])
def test_a_request_to_copy_is_one_word_of_a_shell(name: str) -> None:
    shown = first_request([name])
    (word,) = shlex.split(shown)
    assert json.loads(word)["model"] == name
    assert shown.isascii() and shown.isprintable()
