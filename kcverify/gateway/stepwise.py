"""The reference's numbers where it gives no `prompt_logprobs`: asked for one next token at each position of the answer.

Each question repeats the prompt with one token more, which an engine with a prefix cache answers from its cache. What
comes back are the most probable tokens alone: the sampled token's own log-probability is not known where it is none of
them, and the intervals of `measures` are as wide as that leaves them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kcverify.gateway.observed import Claims, Listed, Row, answered, listed
from kcverify.gateway.upstream import PATHS, Fault, Upstream, parsed


async def by_steps(
    server: Upstream, model: object, prompt: Sequence[int], tokens: Sequence[int], top: int, headers: Mapping[str, str]
) -> tuple[Listed | None, Claims]:
    """The reference's lists at each of `tokens`, and what it says it is; None where it has no such lists. Raises Fault."""
    values: list[float | None] = []
    lists: list[Row] = []
    claims = Claims()
    for position, token in enumerate(tokens):
        ids = [*prompt, *tokens[:position]]
        found = await _next(server, model, ids, top, headers)
        read = answered(found, server.models, ids, top)
        if read.side is None or not read.side.width:
            return None, read.claims
        claims = read.claims
        row = [(int(i), float(v)) for i, v in zip(read.side.ids[0], read.side.top[0], strict=True) if i >= 0]
        if read.side.broken[0]:
            row.append((token, math.nan))
        values.append(dict(row).get(token))
        lists.append(row)
    return listed(values, lists, top), claims


async def _next(
    server: Upstream, model: object, ids: list[int], top: int, headers: Mapping[str, str]
) -> dict[str, Any]:
    body = {
        "prompt": ids, "max_tokens": 1, "temperature": 1.0, "seed": 0, "logprobs": top,
        "return_token_ids": True, "return_tokens_as_token_ids": True, "add_special_tokens": False,
    } | ({} if model is None else {"model": model})  # fmt: skip
    answer = await server.post(PATHS["completions"], json.dumps(body).encode(), headers)
    content = await server.body(answer, server.limits.whole)
    if answer.status_code >= 400:
        raise Fault(f"status_{answer.status_code}", content[:80].decode("utf-8", "replace"), answer.status_code)
    return parsed(content)
