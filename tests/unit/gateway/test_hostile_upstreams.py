"""What an upstream says that no engine says: bounded, a fault of the upstream, never one of the gateway."""

from __future__ import annotations

import asyncio
import json
import math
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("transitions")

import httpx

from kcverify.gateway.app import App
from kcverify.gateway.asked import DEEPEST, AskedError, forwarded, read_fields
from kcverify.gateway.attempts import Attempt, read_event
from kcverify.gateway.log import RequestLog, _plain
from kcverify.gateway.observed import answered, scored
from kcverify.gateway.settings import Limits
from kcverify.gateway.shown import first_request
from kcverify.gateway.streaming import Events, Gathered
from kcverify.gateway.upstream import Fault, Upstream, parsed_event, whole_events


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


@pytest.mark.parametrize("choices", ["['a']", "[1, null]", "[null]"])
def test_choices_of_an_event_are_objects(choices: str) -> None:
    with pytest.raises(Fault, match="no object"):
        parsed_event(b'{"choices": %b}' % choices.replace("'", '"').encode())


def test_a_stream_of_its_end_mark_alone_is_no_answer() -> None:
    gathered = Gathered("completions")
    attempt = Attempt(None, "candidate", {}, True, 1.0)  # type: ignore[arg-type]
    with pytest.raises(Fault, match="no choices"):
        read_event(b"data: [DONE]\n\n", attempt, gathered)
    assert read_event(b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n', attempt, gathered)
    assert read_event(b"data: [DONE]\n\n", attempt, gathered) and gathered.done


def test_bytes_of_a_header_reach_the_upstream_as_they_came() -> None:
    server = Upstream.at("candidate", "http://127.0.0.1:9", Limits())
    sent: list[httpx.Request] = []

    async def send(request: httpx.Request, **_: object) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    server.client.send = send  # type: ignore[method-assign,assignment]
    headers = forwarded({b"authorization": b"Bearer \xff\xe9", b"cookie": b"x"}, "r1")
    asyncio.run(server.post("/v1/completions", b"{}", headers))
    assert dict(sent[0].headers.raw)[b"authorization"] == b"Bearer \xff\xe9"
    assert b"cookie" not in dict(sent[0].headers.raw)


@pytest.mark.parametrize("path", ["/v1/completions", "/admin/rollback", "/nothing"])
def test_a_request_with_two_ends_is_refused_and_its_connection_closed(path: str) -> None:
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")]}
    asyncio.run(App.__new__(App)(scope, None, send))  # type: ignore[arg-type]
    assert told[0]["status"] == 400 and (b"connection", b"close") in told[0]["headers"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_that_finds_no_room_counts_it_and_ends() -> None:
    log = RequestLog("/dev/full")
    log.line({"a": 1})
    log.close()
    assert log.lost and not log.on
