"""Token ids of a prompt that was given as text, from an engine whose answers do not carry them.

A row a dialect of `/tokenize`. The engine is asked beside the traffic, once a request, and what it says is used only
where it counts as many tokens as the answer says its prompt had.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kcverify.gateway.asked import Asked
from kcverify.gateway.observed import token_ids
from kcverify.gateway.upstream import Fault, Upstream, parsed

TOKENIZE, TEMPLATE = "/tokenize", "/apply-template"
_ABSENT = (404, 405, 501)
_TEMPLATED = ("tools", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
Asking = Callable[[Upstream, Asked], Awaitable[list[int] | None]]


@dataclass(frozen=True)
class Dialect:
    """How an engine is asked for the ids of a request's prompt; what answers None does not speak it."""

    name: str
    ask: Asking


async def prompt_ids(server: Upstream, asked: Asked) -> tuple[int, ...] | None:
    """The ids that `server` reads a request's prompt as; None where it does not say. Raises Fault.

    An engine keeps the dialect that it was first understood in, and one without `/tokenize` is not asked again.
    """
    if server.dialect == "none" or asked.several or asked.text is None:
        return None
    silent = True
    for dialect in DIALECTS:
        if server.dialect in ("", dialect.name):
            try:
                found = await dialect.ask(server, asked)
            except _Absent:
                continue
            silent = False
            if found:
                server.dialect = dialect.name
                return tuple(found)
    if silent:
        server.dialect = "none"
    return None


class _Absent(Exception):  # noqa: N818
    """The engine has no such endpoint."""


async def _vllm(server: Upstream, asked: Asked) -> list[int] | None:
    model = server.model_for(asked.fields.get("model")) or asked.fields.get("model")
    body: dict[str, Any] = {} if model is None else {"model": model}
    if asked.kind == "chat":
        body |= {"messages": asked.text} | {k: asked.fields[k] for k in _TEMPLATED if k in asked.fields}
    else:
        body |= {"prompt": asked.text, "add_special_tokens": asked.fields.get("add_special_tokens", True)}
    return token_ids((await _posted(server, TOKENIZE, body, asked)).get("tokens"))


async def _llama(server: Upstream, asked: Asked) -> list[int] | None:
    text = asked.text
    if asked.kind == "chat":
        kept = {k: v for k, v in asked.fields.items() if k not in ("stream", "stream_options", "n")}
        text = (await _posted(server, TEMPLATE, kept, asked)).get("prompt")
    body = {"content": text, "add_special": True, "parse_special": True}
    return token_ids((await _posted(server, TOKENIZE, body, asked)).get("tokens")) if isinstance(text, str) else None


DIALECTS = (Dialect("vllm", _vllm), Dialect("llama-server", _llama))


async def _posted(server: Upstream, path: str, body: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """An object, empty where the engine refuses the question. Raises Fault, and _Absent where it has no such endpoint."""
    answer = await server.post(path, json.dumps(body).encode(), asked.headers)
    content = await server.body(answer, server.limits.whole)
    if answer.status_code in _ABSENT:
        raise _Absent
    if answer.status_code >= 500:
        raise Fault(f"status_{answer.status_code}", content[:80].decode("utf-8", "replace"))
    return parsed(content) if answer.status_code < 400 else {}
