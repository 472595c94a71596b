"""A stream that broke off: what another upstream is asked for, what the client gets of it, and when nothing can be done."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import httpx
import pytest

from kcverify.gateway.asked import Asked
from kcverify.gateway.continued import piece, read_piece, rest_of
from kcverify.gateway.settings import Limits
from kcverify.gateway.streaming import Gathered, content, unnumbered
from kcverify.gateway.upstream import Upstream
from kcverify.routing.table import RouteTable

ROUTED = RouteTable(1, {"candidate": Fraction(1)}).routed("r")
SAFE = Upstream(
    "safe", "http://127.0.0.1:1", Limits(), httpx.AsyncClient(), models=({"id": "m", "max_model_len": 100},)
)


def asked(kind: str, fields: dict[str, Any]) -> Asked:
    return Asked("r", kind, b"", fields, {}, 0.0, 0, ROUTED)


def gathered(kind: str, tokens: list[int], **more: Any) -> Gathered:
    """Two prompt tokens, and so far these tokens."""
    out = Gathered(kind)
    text = "".join(map(chr, tokens))
    part = {"delta": {"content": text}} if kind == "chat" else {"text": text}
    out.add(
        {
            "id": "a",
            "model": "m",
            "choices": [{"index": 0, **part, "token_ids": tokens, "prompt_token_ids": [7, 8], **more}],
        }
    )
    return out


def test_the_tokens_so_far_end_the_prompt() -> None:
    fields = {"messages": [], "max_tokens": 5, "seed": 3, "temperature": 0.5, "stream": True, "user": "u"}
    found = rest_of(asked("chat", fields), gathered("chat", [97, 98]), SAFE)
    assert found == {
        "model": "m", "temperature": 0.5, "seed": 3, "prompt": [7, 8, 97, 98], "max_tokens": 3, "stream": True,
        "add_special_tokens": False,
    }  # fmt: skip
    ended = gathered("chat", [97, 98], finish_reason="stop")
    assert rest_of(asked("chat", fields), ended, SAFE)["max_tokens"] == 0  # type: ignore[index]
    del fields["max_tokens"]
    assert rest_of(asked("chat", fields), gathered("chat", [97]), SAFE)["max_tokens"] == 97  # type: ignore[index]
    given = asked("completions", {"prompt": [1], "max_tokens": 2})
    assert rest_of(given, gathered("completions", [97]), SAFE)["prompt"] == [1, 97]  # type: ignore[index]


@pytest.mark.parametrize("more", [{"stop": ["x"]}, {"n": 2}, {"logprobs": 1}, {"response_format": {}}, {"tools": [1]},
                                  {"max_tokens": 2.5}, {"max_tokens": None}, {"echo": True}, {"a_new_field": 1}])  # fmt: skip
def test_what_binds_the_whole_answer_is_not_continued(more: dict[str, Any]) -> None:
    fields = {"prompt": "x", "max_tokens": 5, **more}
    assert rest_of(asked("completions", fields), gathered("completions", [97]), SAFE) is None


def test_tokens_that_are_not_known_are_not_continued() -> None:
    without = Gathered("completions")
    without.add({"choices": [{"index": 0, "text": "a"}]})
    assert rest_of(asked("completions", {"prompt": [1], "max_tokens": 5}), without, SAFE) is None
    assert rest_of(asked("completions", {"prompt": [1], "max_tokens": 5}), Gathered("completions"), SAFE) is None


def test_a_part_looks_like_the_answer_that_it_continues() -> None:
    chat = json.loads(content(piece("chat", {"id": "a", "model": "m"}, "x", None)) or b"")
    assert (chat["id"], chat["choices"][0]["delta"], chat["object"]) == ("a", {"content": "x"}, "chat.completion.chunk")
    text = json.loads(content(piece("completions", {}, "", "length")) or b"")
    assert (text["choices"][0]["text"], text["choices"][0]["finish_reason"]) == ("", "length")
    assert read_piece({"choices": [{"text": "y", "finish_reason": "stop"}]}) == ("y", "stop")
    assert read_piece({"choices": 3}) == ("", None)


@pytest.mark.parametrize(
    ("logprobs", "wanted"),
    [(None, False), ({"content": [{"token": "a", "logprob": -1.0}]}, False), ({"content": [{"token": "a", "logprob": None}]}, True),
     ({"token_logprobs": [-1.0, None]}, True), ({"token_logprobs": [-1.0]}, False), ({"content": [{"token": "a"}]}, False)],
)  # fmt: skip
def test_null_is_no_log_probability(logprobs: object, wanted: bool) -> None:
    assert unnumbered({"choices": [{"logprobs": logprobs}]}) is wanted
