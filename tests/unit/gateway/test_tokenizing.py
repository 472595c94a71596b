"""Ids of prompts that were given as text: two dialects of `/tokenize`, and answers of a real llama-server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest

from kcverify.gateway.asked import Asked
from kcverify.gateway.identity import CHECKS, Sides, checked
from kcverify.gateway.observed import UNPROMPTED, Claims, answers
from kcverify.gateway.settings import Limits
from kcverify.gateway.tokenizing import prompt_ids
from kcverify.gateway.upstream import Fault, Upstream
from kcverify.routing.table import RouteTable

ROUTED = RouteTable(1, {"candidate": Fraction(1)}).routed("r")
TEXT = {"prompt": "The capital of France is"}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [1], "temperature": 1}
Answer = Callable[[str, Mapping[str, Any]], tuple[int, Any]]


def asked(fields: Mapping[str, Any]) -> Asked:
    return Asked("r", "chat" if "messages" in fields else "completions", b"", fields, {}, 0.0, 0, ROUTED)


def vllm(path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    """As vLLM answers: the prompt or the messages in one question."""
    if path != "/tokenize":
        return 404, {}
    if "messages" in body:
        return (400, {}) if "stream" in body else (200, {"count": 2, "max_model_len": 9, "tokens": [7, 8]})
    return (200, {"count": 5, "tokens": [1, 2, 3, 4, 5]}) if body.get("add_special_tokens") is True else (400, {})


def llama(path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    """As llama-server answers: no content, no tokens; the template of a chat is another question."""
    if path == "/apply-template":
        return (200, {"prompt": f"<{body['messages'][0]['content']}>"}) if "stream" not in body else (400, {})
    if path != "/tokenize":
        return 404, {}
    special = [0] if body.get("add_special") and body.get("parse_special") else []
    return 200, {"tokens": [*special, *map(ord, body["content"])] if "content" in body else []}


def ids(answer: Answer, *fields: Mapping[str, Any], dialect: str = "") -> tuple[list[object], list[str], str]:
    """What is read for each request, the paths that were asked for, the dialect in the end."""
    paths: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        code, found = answer(request.url.path, json.loads(request.content))
        return httpx.Response(code, stream=httpx.ByteStream(json.dumps(found).encode()))

    async def all_of() -> tuple[list[object], str]:
        client = httpx.AsyncClient(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(handle))
        server = Upstream("candidate", "http://127.0.0.1:1", Limits(), client, dialect=dialect)
        return [await prompt_ids(server, asked(f)) for f in fields], server.dialect

    found, spoken = asyncio.run(all_of())
    return found, paths, spoken


def test_each_engine_is_asked_in_its_own_words_and_remembered() -> None:
    found, paths, dialect = ids(vllm, TEXT, CHAT, {"prompt": ["The capital of France is"]})
    assert (found, dialect) == ([(1, 2, 3, 4, 5), (7, 8), (1, 2, 3, 4, 5)], "vllm") and paths == ["/tokenize"] * 3
    found, paths, dialect = ids(llama, {"prompt": "ab"}, CHAT)
    assert (found, dialect) == ([(0, 97, 98), (0, 60, 104, 105, 62)], "llama-server")
    assert paths == ["/tokenize", "/tokenize", "/apply-template", "/tokenize"]


def test_an_engine_without_the_endpoint_is_not_asked_again() -> None:
    found, paths, dialect = ids(lambda path, body: (404, {}), CHAT, TEXT)
    assert (found, dialect, len(paths)) == ([None, None], "none", 2)
    found, paths, dialect = ids(lambda path, body: (400, {}), TEXT, TEXT)
    assert (found, dialect, len(paths)) == ([None, None], "", 4), "a question that was refused says nothing of the next"


@pytest.mark.parametrize(
    "fields", [{"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt": 3}, {"messages": "hi"}, {}]
)
def test_what_is_no_one_text_is_not_asked(fields: dict[str, object]) -> None:
    assert ids(vllm, fields)[:2] == ([None], [])


@pytest.mark.parametrize("tokens", [[], None, [-1], ["a"], [True], {}])
def test_no_tokens_are_none(tokens: object) -> None:
    assert ids(lambda path, body: (200, {"tokens": tokens}), TEXT)[0] == [None]


def test_a_server_that_fails_is_a_fault() -> None:
    with pytest.raises(Fault, match="status_500"):
        ids(lambda path, body: (500, {}), TEXT)


@pytest.mark.parametrize("name", ["q4_1", "q3_k_s"])
def test_a_real_answer_lacks_nothing_but_the_ids_of_its_prompt(data: Path, name: str) -> None:
    """llama-server counts the tokens of a prompt and does not name them; those of the answer have their ids."""
    found = json.loads((data / f"streams/llama_server_comp_{name}.json").read_text())
    (read,) = answers(found, (), None, 5)
    assert read.missing == UNPROMPTED and read.side is not None
    assert len(read.tokens) == 6 and read.side.width == 5 and read.usage["prompt_tokens"] == 5
    first = found["choices"][0]["logprobs"]["content"][0]
    assert (read.tokens[0], read.side.logprobs[0]) == (7042, first["logprob"])


def test_sides_that_read_a_prompt_in_two_ways_are_not_compared() -> None:
    claims = (Claims(), Claims(), Claims(), Claims())
    same = Sides(*claims, prompts=((1, 2), [1, 2]))
    assert checked(same) is None and checked(replace(same, prompts=((1, 2), ()))) is None
    for other, place in (((1, 3), 1), ((1, 2, 3), 2), ((0, 1, 2), 0)):
        failed = checked(replace(same, prompts=((1, 2), other)))
        assert failed is not None and failed[0].name == "prompt" and failed[0].blames
        assert failed[1].endswith(f"differ from token {place} on") and f"reference as {len(other)}" in failed[1]
    assert [c.name for c in CHECKS].index("prompt") < [c.name for c in CHECKS].index("sampler")
