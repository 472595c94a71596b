"""A stream that broke off under way, gone on with by another upstream: the tokens so far become the end of its prompt.

Only where that gives the client what it asked for: one choice, whose token ids are known, of a request that nothing
binds to the whole answer (a stop text, a grammar, log-probabilities). Everything else stays cut, and says so.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from kcverify.gateway.asked import Asked
from kcverify.gateway.streaming import DONE, Events, Gathered, content, event_of
from kcverify.gateway.upstream import PATHS, Fault, Upstream, parsed_event, shut, whole_events

_CARRIED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_UNBOUND = frozenset({
    *_CARRIED, "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "user",
    "metadata", "stop_token_ids",
})  # fmt: skip
"""Fields that a continuation keeps or does not need; a request with another one that is set is not continued."""


def rest_of(asked: Asked, gathered: Gathered, server: Upstream) -> dict[str, Any] | None:
    """What to ask `/v1/completions` of `server` for, to end this answer; `max_tokens` 0: only its end mark is missing.

    None where the answer cannot be continued.
    """
    kept = gathered.choices.get(0)
    fields = {k: v for k, v in asked.fields.items() if v is not None and v is not False}
    if kept is None or len(gathered.choices) != 1 or not set(fields) <= _UNBOUND | {"n"} or fields.get("n", 1) != 1:
        return None
    prompt = asked.prompt or kept.get("prompt_token_ids") or gathered.head.get("prompt_token_ids")
    tokens = kept["token_ids"]
    if not prompt or not all(type(t) is int for t in (*prompt, *tokens)) or (kept["text"] and not tokens):
        return None
    most = _most(fields, len(prompt), server)
    if most is None:
        return None
    left = 0 if kept.get("finish_reason") is not None else max(0, most - len(tokens))
    carried = {name: fields[name] for name in (*_CARRIED, "stop_token_ids") if name in fields}
    model = server.model_for(fields.get("model")) or fields.get("model")
    named = {} if model is None else {"model": model}
    return {
        **named, **carried, "prompt": [*prompt, *tokens], "max_tokens": left, "stream": True, "add_special_tokens": False
    }  # fmt: skip


def _most(fields: Mapping[str, Any], prompt: int, server: Upstream) -> int | None:
    """Tokens of the whole answer: what the client said, else what the model has room for."""
    for name in ("max_completion_tokens", "max_tokens"):
        if name in fields:
            return fields[name] if type(fields[name]) is int and fields[name] > 0 else None
    room = server.models[0].get("max_model_len") if len(server.models) == 1 else None
    return max(0, room - prompt) if type(room) is int and "messages" in fields else None


def piece(kind: str, head: Mapping[str, Any], text: str, finish: object) -> bytes:
    """An event of the answer that broke off, with a part of its continuation."""
    chat = kind == "chat"
    part: dict[str, Any] = {"delta": {"content": text} if text else {}} if chat else {"text": text}
    choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish}
    named = {k: head[k] for k in ("id", "created", "model") if k in head}
    return event_of({**named, "object": "chat.completion.chunk" if chat else "text_completion", "choices": [choice]})


def read_piece(found: Mapping[str, Any]) -> tuple[str, object]:
    """Text and reason of its end of an event of `/v1/completions`."""
    choices = found.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    text = choice.get("text")
    return text if isinstance(text, str) else "", choice.get("finish_reason")


async def texts(
    server: Upstream, headers: Mapping[str, str], fields: Mapping[str, Any]
) -> AsyncGenerator[tuple[str, object], None]:
    """Texts of a continuation as they come, and why the last one ended. Raises Fault."""
    if not fields["max_tokens"]:
        yield "", "length"
        return
    answer = await server.post(PATHS["completions"], json.dumps(fields).encode(), headers)
    if answer.status_code >= 400:
        await shut(answer)
        raise Fault(f"status_{answer.status_code}")
    cut, ended = Events(), False
    async with aclosing(server.parts(answer)) as parts:
        async for part in parts:
            for data in filter(None, map(content, whole_events(cut, part))):
                ended = ended or data == DONE
                if data != DONE:
                    yield read_piece(parsed_event(data))
    if not ended:
        raise Fault("truncated", "the stream ended without its end mark")
