"""Reads the body of a completion or chat request; what is wrong with it becomes OpenAI's error JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kcverify.measure.tokenizer import Tokenizer
from kcverify.serving.engine import CONTEXT, Sequence
from kcverify.serving.faults import Behaviour
from kcverify.serving.sampling import Sampling

BODY_LIMIT = 1 << 20
"""Bytes of one request."""

PROMPTS = 64
"""Prompts of one request, each as often as it is answered."""

_CHAT_TOKENS = 64  # the model never ends by itself


class RequestError(Exception):
    """A request that is not answered: HTTP status, message, the parameter to blame, OpenAI's code."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def data(self) -> dict[str, Any]:
        """The error as OpenAI writes it."""
        return error_data(self.status, self.message, self.param, self.code)


def error_data(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error JSON."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Asked:
    """A request as it was understood; each prompt has `n` sequences, one after another."""

    chat: bool
    stream: bool
    usage: bool
    echo: bool
    ids_wanted: bool
    as_ids: bool
    logprobs: int | None
    prompt_logprobs: int | None
    sequences: tuple[Sequence, ...]
    n: int = 1


UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,),
    "logit_bias": ({},), "suffix": ("",), "use_beam_search": (False,), "tools": ([],), "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},), "guided_json": (), "guided_regex": (), "structured_outputs": (),
}  # fmt: skip
"""Parameters that this server does not have -> the values at which they do nothing; null is one of them."""


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises RequestError (400)."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise RequestError(400, "the body is not a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def read(body: Mapping[str, Any], *, chat: bool, model: str, tokenizer: Tokenizer, after: bool, b: Behaviour) -> Asked:
    """The request of a body. `after` reports log-probabilities after temperature and truncation.

    Raises RequestError: 404 for another model, 400 for a value that cannot be used, 422 for one of the wrong type.
    """
    name = body.get("model", model)
    if name != model:
        raise RequestError(
            404, f"the model {name!r:.60} does not exist; this server has {model!r}", "model", "model_not_found"
        )
    for key, neutral in UNSUPPORTED.items():
        if body.get(key) is not None and body[key] not in neutral:
            raise RequestError(400, f"{key} is not supported here", key, "unsupported_parameter")
    prompts = [_chat_prompt(body, tokenizer)] if chat else _prompts(body, tokenizer)
    tokens = _tokens(body, chat)
    sampling, n = _sampling(body, b), _whole(body, "n", 1, 1, PROMPTS) or 1
    if n * len(prompts) > PROMPTS:
        raise RequestError(400, f"{len(prompts)} prompts answered {n} times, at most {PROMPTS} answers", "n")
    logprobs, asked = _logprobs(body, chat, tokenizer.vocabulary), body.get("prompt_logprobs")
    scored = None if asked is None else _top("prompt_logprobs", asked, tokenizer.vocabulary)
    echo = not chat and _flag(body, "echo")
    if echo and logprobs is not None and scored is None:
        scored = logprobs
    for ids in prompts:
        _fits(ids, tokens, tokenizer.vocabulary)
    stream, stops, ends = _flag(body, "stream"), _stops(body), _stop_ids(body, tokenizer.vocabulary)
    sequences = tuple(
        Sequence(ids, tokens, _choice(sampling, i), logprobs, scored, stops, ends, stream, after, b.logit_factor, b.nan)
        for ids in prompts for i in range(n)
    )  # fmt: skip
    options = body.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    return Asked(
        chat, stream, usage, echo, _flag(body, "return_token_ids"),
        _flag(body, "return_tokens_as_token_ids"), logprobs, None if asked is None else scored, sequences, n,
    )  # fmt: skip


def _choice(sampling: Sampling, number: int) -> Sampling:
    """Of one of several answers to a prompt: its seed is the request's plus its number, as in vLLM."""
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + number) % (1 << 63))


def tokenized(body: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """What `/tokenize` answers: for `prompt` or `messages` as vLLM does, for `content` as llama-server does.

    Raises RequestError (400, 422).
    """
    if "content" in body:
        return {"tokens": _prompt(body["content"], tokenizer)}
    ids = _chat_prompt(body, tokenizer) if "messages" in body else _prompt(body.get("prompt"), tokenizer)
    return {"count": len(ids), "max_model_len": CONTEXT, "tokens": ids}


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise RequestError(422, f"{key} must be true or false", key)
    return bool(value)


def _real(body: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(422, f"{key} must be a number", key)
    if not low <= value <= high or not math.isfinite(value):
        raise RequestError(400, f"{key} must be from {low:g} to {high:g}", key)
    return float(value)


def _whole(body: Mapping[str, Any], key: str, default: int | None, low: int, high: int) -> int | None:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(422, f"{key} must be a whole number", key)
    if not low <= value <= high:
        raise RequestError(400, f"{key} must be from {low} to {high}", key)
    return value


def _sampling(body: Mapping[str, Any], b: Behaviour) -> Sampling:
    temperature = _real(body, "temperature", 1.0, 0.0, 100.0) * b.temperature_factor
    top_p, min_p = _real(body, "top_p", 1.0, 0.0, 1.0), _real(body, "min_p", 0.0, 0.0, 1.0)
    if top_p == 0.0:
        raise RequestError(400, "top_p must be above 0", "top_p")
    top_k = _whole(body, "top_k", 0, -1, 1 << 31) or 0
    return Sampling(temperature, top_p, max(top_k, 0), min_p, _whole(body, "seed", None, 0, (1 << 63) - 1))


def _tokens(body: Mapping[str, Any], chat: bool) -> int:
    key = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    found = _whole(body, key, _CHAT_TOKENS if chat else 16, 0, CONTEXT)
    assert found is not None
    return found


def _top(key: str, value: Any, vocabulary: int) -> int:
    """How many most probable tokens; -1 is all, as vLLM has it."""
    found = _whole({key: value}, key, 0, -1, vocabulary)
    return vocabulary if found == -1 else found or 0


def _logprobs(body: Mapping[str, Any], chat: bool, vocabulary: int) -> int | None:
    value = body.get("logprobs")
    if not chat:
        return None if value is None or value is False else _top("logprobs", value, vocabulary)
    top = body.get("top_logprobs")
    if not _flag(body, "logprobs"):
        if top:
            raise RequestError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
        return None
    return 0 if top is None else _top("top_logprobs", top, vocabulary)


def _prompts(body: Mapping[str, Any], tokenizer: Tokenizer) -> list[list[int]]:
    value = body.get("prompt")
    if value is None:
        raise RequestError(422, "prompt is missing", "prompt")
    several = isinstance(value, list) and value and not all(_is_id(i) for i in value)
    found = value if several else [value]
    if len(found) > PROMPTS:
        raise RequestError(400, f"{len(found)} prompts, at most {PROMPTS}", "prompt")
    return [_prompt(item, tokenizer) for item in found]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt(value: Any, tokenizer: Tokenizer) -> list[int]:
    if isinstance(value, str):
        return tokenizer.encode(value.encode("utf-8", "replace"))
    if isinstance(value, list) and all(_is_id(i) for i in value):
        return value
    raise RequestError(422, "prompt must be a text, a list of token ids, or a list of either", "prompt")


def _chat_prompt(body: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    """The demo model knows no roles: each message is a paragraph that starts with its role."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(422, "messages must be a list that is not empty", "messages")
    lines = []
    for m in messages:
        if not isinstance(m, dict) or not isinstance(m.get("role"), str):
            raise RequestError(422, "each message needs a role and a content", "messages")
        lines.append(f"{m['role']}: {_content(m.get('content'))}\n")
    return tokenizer.encode(("".join(lines) + "assistant:").encode("utf-8", "replace"))


def _content(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in value):
        return "".join(p["text"] for p in value)
    raise RequestError(422, "the content of a message must be text", "messages")


def _fits(ids: list[int], tokens: int, vocabulary: int) -> None:
    if not ids:
        raise RequestError(400, "the prompt is empty", "prompt")
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise RequestError(400, f"a token id is outside the vocabulary of {vocabulary}", "prompt")
    if len(ids) + tokens > CONTEXT:
        message = f"{len(ids)} tokens of prompt and {tokens} to come, but the context is {CONTEXT}"
        raise RequestError(400, message, "max_tokens", "context_length_exceeded")


def _stops(body: Mapping[str, Any]) -> tuple[bytes, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(s, str) for s in found):
        raise RequestError(422, "stop must be a text or a list of texts", "stop")
    if len(found) > 16 or not all(0 < len(s) <= 1000 for s in found):
        raise RequestError(400, "stop takes up to 16 texts of 1 to 1000 characters", "stop")
    return tuple(s.encode("utf-8", "replace") for s in found)


def _stop_ids(body: Mapping[str, Any], vocabulary: int) -> frozenset[int]:
    value = body.get("stop_token_ids")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(_is_id(i) for i in value):
        raise RequestError(422, "stop_token_ids must be a list of token ids", "stop_token_ids")
    return frozenset(value)
