"""What one answer of the candidate says about itself: tokens, log-probabilities, who computed them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kcverify.streams.decisions import padded
from kcverify.streams.known import Flags, Floats, Integers

_AS_ID = re.compile(r"token_id:([0-9]{1,10})\Z")
Row = list[tuple[int, float]]
_LONGEST = 200
"""Characters of a token that are kept to be shown."""


@dataclass(frozen=True)
class Claims:
    """What a side says it is. Empty or None: it does not say."""

    model: str = ""
    fingerprint: str = ""
    weight_version: str = ""
    tokenizer: str = ""
    vocabulary: int | None = None
    width: int | None = None
    kernel: str = ""


@dataclass(frozen=True)
class Listed:
    """Positions of one side: log-probability `[T]` of each sampled token (NaN: not known), its top lists `[T, K]`.

    `broken` bool `[T]`: a value of the position is no number, NaN included, or plus infinity. `texts` of the sampled
    tokens, for eyes alone, none where the side does not say.
    """

    logprobs: Floats
    ids: Integers
    top: Floats
    broken: Flags
    texts: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Entries of the shortest list."""
        return int((self.ids >= 0).sum(axis=1).min()) if len(self.ids) and self.ids.shape[1] else 0


@dataclass(frozen=True)
class Answered:
    """One answer. `missing` says why numbers cannot be had of it, empty where they can."""

    claims: Claims
    prompt: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    side: Listed | None = None
    texts: tuple[str, ...] = ()
    text: str = ""
    count: int = 0
    missing: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)


def claims_of(found: Mapping[str, Any], models: Sequence[Mapping[str, Any]] = ()) -> Claims:
    """Identity in an answer, and in the list of models where the answer says less."""
    name = str(found.get("model") or "")
    row = next((m for m in models if m.get("id") == name), models[0] if len(models) == 1 else {})

    def word(*keys: str) -> str:
        for source in (found, row):
            for key in keys:
                value = source.get(key)
                if isinstance(value, str | int) and not isinstance(value, bool):
                    return str(value)
        return ""

    vocabulary = row.get("vocabulary", row.get("vocab_size"))
    return Claims(
        name, word("system_fingerprint"), word("weight_version"), word("tokenizer", "tokenizer_digest"),
        vocabulary if isinstance(vocabulary, int) else None, None, word("kernel", "quantization", "dtype"),
    )  # fmt: skip


def answered(
    found: Mapping[str, Any], models: Sequence[Mapping[str, Any]], prompt: Sequence[int] | None, top: int
) -> Answered:
    """Read an answer that asked for `top` log-probabilities; `prompt` are the ids that the client gave."""
    claims = claims_of(found, models)
    usage = found.get("usage") if isinstance(found.get("usage"), dict) else {}
    choices = found.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else 0
        return Answered(
            claims, missing=f"the answer has {count} choices, and a request is measured by its only one: ask with n = 1"
        )
    choice = choices[0]
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    text = text if isinstance(text, str) else ""
    given = prompt or _ids(choice.get("prompt_token_ids")) or _ids(found.get("prompt_token_ids"))
    logprobs = choice.get("logprobs")
    base = Answered(claims, tuple(given or ()), text=text, usage=usage or {}, count=_count(usage, choice))
    if not isinstance(logprobs, dict):
        return _without(base, "the answer has no log-probabilities")
    content = logprobs.get("content")
    rows = _content(content) if isinstance(content, list) else _parallel(logprobs)
    if rows is None:
        return _without(base, "its log-probabilities are in no shape that is known")
    ids, values, lists, texts = rows
    own = _ids(choice.get("token_ids"))
    ids = own if own is not None else ids
    if ids is None or len(ids) != len(values):
        return _without(base, "the answer has no token ids: ask the engine for `return_token_ids`")
    if not given:
        return _without(base, "the ids of the prompt are not known: give them, or an engine that returns them")
    return Answered(
        claims,
        base.prompt,
        tuple(ids),
        listed(values, lists, top),
        tuple(texts),
        text,
        max(base.count, len(ids)),
        "",
        base.usage,
    )


def _without(base: Answered, missing: str) -> Answered:
    return Answered(base.claims, base.prompt, (), None, (), base.text, base.count, missing, base.usage)


def _count(usage: object, choice: Mapping[str, Any]) -> int:
    if isinstance(usage, dict) and type(usage.get("completion_tokens")) is int:
        return int(usage["completion_tokens"])
    ids = choice.get("token_ids")
    return len(ids) if isinstance(ids, list) else 0


def _ids(value: object) -> list[int] | None:
    if isinstance(value, list) and value and all(type(x) is int and 0 <= x < 1 << 31 for x in value):
        return value
    return None


def _value(x: object) -> float:
    """A log-probability; NaN for anything that is none."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        return math.nan
    return float(x)


def _id(item: Mapping[str, Any]) -> int | None:
    found = item.get("id")
    if type(found) is int and found >= 0:
        return found
    match = _AS_ID.match(str(item.get("token")))
    return int(match[1]) if match else None


Rows = tuple[list[int] | None, list[float], list[Row], list[str]]


def _content(items: Sequence[Any]) -> Rows | None:
    """`content: [{token, logprob, id?, top_logprobs}]`."""
    if not all(isinstance(item, dict) for item in items):
        return None
    ids = [_id(item) for item in items]
    lists: list[Row] = []
    for item in items:
        top = item.get("top_logprobs")
        pairs = (
            [(_id(t), _value(t.get("logprob"))) for t in top if isinstance(t, dict)] if isinstance(top, list) else []
        )
        lists.append([(i, v) for i, v in pairs if i is not None])
    known = [i for i in ids if i is not None]
    texts = [str(item.get("token", "")) for item in items]
    return known if len(known) == len(ids) else None, [_value(i.get("logprob")) for i in items], lists, texts


def _parallel(logprobs: Mapping[str, Any]) -> Rows | None:
    """`tokens`, `token_logprobs`, `top_logprobs: [{text: logprob}]`."""
    texts, values, tops = logprobs.get("tokens"), logprobs.get("token_logprobs"), logprobs.get("top_logprobs")
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values):
        return None
    matches = [_AS_ID.match(str(t)) for t in texts]
    ids = [int(m[1]) for m in matches if m]
    lists: list[Row] = []
    for row in tops if isinstance(tops, list) and len(tops) == len(texts) else [None] * len(texts):
        found = [(_AS_ID.match(str(t)), _value(v)) for t, v in row.items()] if isinstance(row, dict) else []
        lists.append([(int(m[1]), v) for m, v in found if m])
    return ids if len(ids) == len(texts) else None, [_value(v) for v in values], lists, [str(t) for t in texts]


def listed(values: Sequence[float | None], lists: Sequence[Row], top: int) -> Listed:
    """One side; of each list its `top` largest entries: a sampled token that was appended is none of them.

    A value of None is not known, one that is NaN is broken.
    """
    broken = [_broken(v) or any(_broken(x) for _, x in row) for v, row in zip(values, lists, strict=True)]
    kept = [sorted((p for p in row if not _broken(p[1])), key=lambda p: -p[1])[:top] for row in lists]
    ids, tops = padded([[p[0] for p in row] for row in kept], [[p[1] for p in row] for row in kept])
    known = np.array([math.nan if v is None or _broken(v) else v for v in values], np.float64)
    return Listed(known, ids, tops, np.array(broken, bool))


def _broken(value: float | None) -> bool:
    return value is not None and (math.isnan(value) or value == math.inf)


def scored(found: Mapping[str, Any], prompt: int, tokens: Sequence[int], top: int) -> Listed | None:
    """The reference's `prompt_logprobs` on the candidate's tokens behind `prompt` ids; None where it has none.

    Each position is `{token id: {"logprob": x, "rank": n}}`, with the token itself appended where it is not among the
    most probable.
    """
    choices = found.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    rows = first.get("prompt_logprobs") or found.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) < prompt + len(tokens):
        return None
    values: list[float | None] = []
    lists: list[Row] = []
    texts: list[str] = []
    for token, row in zip(tokens, rows[prompt : prompt + len(tokens)], strict=True):
        if not isinstance(row, dict):
            return None
        pairs = {
            int(k): _value(v.get("logprob") if isinstance(v, dict) else v) for k, v in row.items() if str(k).isdigit()
        }
        values.append(pairs.get(token))
        lists.append(list(pairs.items()))
        entry = row.get(str(token))
        text = entry.get("decoded_token") if isinstance(entry, dict) else None
        texts.append(text[:_LONGEST] if isinstance(text, str) else "")
    return replace(listed(values, lists, top), texts=tuple(texts) if any(texts) else ())
