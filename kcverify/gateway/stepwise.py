"""The reference's numbers where it gives no `prompt_logprobs`: asked for one next token at each position of the answer.

Each question repeats the prompt with one token more, which an engine with a prefix cache answers from its cache. What
comes back are the most probable tokens alone: the sampled token's own log-probability is not known where it is none of
them, and the intervals of `measures` are as wide as that leaves them. The lists do not depend on the token that the
engine draws for its answer; but llama-server lists nothing where that ends the answer (`ignore_eos` keeps it from that) or is
a part of a character, and then it is asked again with another seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kcverify.gateway.observed import Claims, Listed, Row, answered, listed
from kcverify.gateway.upstream import PATHS, Fault, Upstream, parsed

SEEDS = 4
"""Questions about one position, of an engine that is known to list."""


async def by_steps(
    server: Upstream, model: object, prompt: Sequence[int], tokens: Sequence[int], top: int, headers: Mapping[str, str]
) -> tuple[Listed | None, Claims]:
    """The reference's lists at each of `tokens`, and what it says it is; None where it has no such lists. Raises Fault."""
    values: list[float | None] = []
    lists: list[Row] = []
    claims = Claims()
    for position, token in enumerate(tokens):
        ids = [*prompt, *tokens[:position]]
        for seed in range(SEEDS if position or server.stepwise else 1):
            found = await _next(server, model, ids, top, headers, seed)
            read = answered(found, server.models, ids, top)
            if read.side is not None and read.side.width:
                break
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
    server: Upstream, model: object, ids: list[int], top: int, headers: Mapping[str, str], seed: int
) -> dict[str, Any]:
    body = {
        "prompt": ids, "max_tokens": 1, "temperature": 1.0, "seed": seed, "logprobs": top,
        "return_token_ids": True, "return_tokens_as_token_ids": True, "add_special_tokens": False, "ignore_eos": True,
    } | ({} if model is None else {"model": model})  # fmt: skip
    answer = await server.post(PATHS["completions"], json.dumps(body).encode(), headers)
    content = await server.body(answer, server.limits.whole)
    if answer.status_code >= 400:
        raise Fault(f"status_{answer.status_code}", content[:80].decode("utf-8", "replace"), answer.status_code)
    return parsed(content)
