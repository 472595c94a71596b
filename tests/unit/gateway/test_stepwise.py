"""A reference that is asked token by token, and lists nothing where the token that it draws is part of a character."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kcverify.gateway.asked import Asked
from kcverify.gateway.identity import Sides, checked
from kcverify.gateway.observed import Claims, Listed
from kcverify.gateway.settings import Limits
from kcverify.gateway.stepwise import SEEDS, by_steps
from kcverify.gateway.upstream import Upstream

PROMPT, TOKENS = [7, 8], [1, 2, 3]
ROW = {"id": 1, "token": "a", "logprob": -0.5, "top_logprobs": [{"id": i, "logprob": -0.5 - i} for i in range(1, 4)]}


async def scored(silent: dict[int, int]) -> tuple[Listed | None, list[dict[str, Any]]]:
    """The lists from a server that lists nothing at position n of the answer below seed `silent[n]`; its questions."""
    questions: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                asked = json.loads(await reader.readexactly(length))
                questions.append(asked)
                mute = asked["seed"] < silent.get(len(asked["prompt"]) - len(PROMPT), 0)
                choice = {"text": "a", "logprobs": None if mute else {"content": [ROW]}}
                body = json.dumps({"model": "m", "choices": [choice]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        except asyncio.IncompleteReadError:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = Upstream.at("reference", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", Limits())
    try:
        return (await by_steps(server, "m", PROMPT, TOKENS, 3, {}))[0], questions
    finally:
        await server.client.aclose()
        listening.close()


def test_it_is_asked_again_with_another_seed() -> None:
    side, questions = asyncio.run(scored({1: 2}))
    assert side is not None and side.ids.shape == (3, 3)
    assert [(len(q["prompt"]), q["seed"]) for q in questions] == [(2, 0), (3, 0), (3, 1), (3, 2), (4, 0)]
    assert all(q["ignore_eos"] for q in questions)


def test_an_engine_without_lists_is_asked_once() -> None:
    side, questions = asyncio.run(scored({0: 99}))
    assert (side, len(questions)) == (None, 1)


def test_a_position_that_never_lists_ends_it() -> None:
    side, questions = asyncio.run(scored({2: 99}))
    assert (side, len(questions)) == (None, 2 + SEEDS)


@pytest.mark.parametrize(
    ("kind", "fields", "width"),
    [
        ("completions", {}, 20), ("completions", {"logprobs": 5}, 5), ("completions", {"logprobs": 50}, 20),
        ("completions", {"logprobs": 0}, 0), ("completions", {"logprobs": True}, 0), ("chat", {"logprobs": False}, 20),
        ("chat", {"logprobs": True}, 0), ("chat", {"logprobs": True, "top_logprobs": 3}, 3),
    ],
)  # fmt: skip
def test_lists_are_as_wide_as_the_client_asked_for(kind: str, fields: dict[str, Any], width: int) -> None:
    asked = Asked.__new__(Asked)
    asked.kind, asked.fields = kind, fields
    assert asked.width(20) == width
    wide, short = Claims(width=20), Claims(width=max(width - 1, 0))
    own = Claims(width=width)
    assert checked(Sides(own, wide, own, wide, asked=(width, 20))) is None
    failed = checked(Sides(short, wide, short, wide, asked=(width, 20)))
    assert (failed is not None) == (width > 0)
    assert checked(Sides(own, Claims(width=19), own, wide, asked=(width, 20))) is not None
