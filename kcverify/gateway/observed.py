"""What one answer of the candidate says about itself: tokens, log-probabilities, who computed them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kcverify.streams.decisions import padded
from kcverify.streams.known import PADDING, Flags, Floats, Integers

_AS_ID = re.compile(r"token_id:([0-9]{1,10})\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
Row = list[tuple[int, float]]
_MOST_ID = 1 << 31
_LONGEST = 200
"""Characters of a token that are kept to be shown."""
UNPROMPTED = "the ids of the prompt are not known: give them, or an engine that returns them or offers `/tokenize`"
"""What is missing where the numbers of an answer are there, and only what they continue is not known."""


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
    """One choice of an answer. `missing` says why numbers cannot be had of it, empty where they can."""

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


def answers(
    found: Mapping[str, Any], models: Sequence[Mapping[str, Any]], prompt: Sequence[int] | None, top: int
) -> tuple[Answered, ...]:
    """Read an answer that asked for `top` log-probabilities, one entry a choice.

    `prompt` are the ids that the client gave, empty where it gave several prompts, so that each choice must name its own.
    """
    claims = claims_of(found, models)
    usage = found.get("usage") if isinstance(found.get("usage"), dict) else {}
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
        return (Answered(claims, missing="the answer has no choices that can be read", usage=usage or {}),)
    given = token_ids(found.get("prompt_token_ids")) if prompt is None else prompt
    one = len(choices) == 1
    return tuple(_choice(choice, claims, given, usage or {}, top, one=one) for choice in choices)


def answered(
    found: Mapping[str, Any], models: Sequence[Mapping[str, Any]], prompt: Sequence[int] | None, top: int
) -> Answered:
    """The only choice of an answer to a question that asked for one."""
    read = answers(found, models, prompt, top)
    return read[0] if len(read) == 1 else replace(read[0], side=None, missing=f"the answer has {len(read)} choices")


def _choice(
    choice: Mapping[str, Any], claims: Claims, given: Sequence[int] | None, usage: Mapping[str, Any], top: int, *, one: bool
) -> Answered:  # fmt: skip
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    prompt = given or token_ids(choice.get("prompt_token_ids")) or ()
    count = _count(usage if one else None, choice)
    base = Answered(claims, tuple(prompt), text=text if isinstance(text, str) else "", usage=usage, count=count)
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return replace(base, missing="the answer has no log-probabilities")
    content = logprobs.get("content")
    rows = _content(content) if isinstance(content, list) else _parallel(logprobs)
    if rows is None:
        return replace(base, missing="its log-probabilities are in no shape that is known")
    ids, values, lists, texts = rows
    own = token_ids(choice.get("token_ids"))
    ids = own if own is not None else ids
    if ids is None or len(ids) != len(values):
        return replace(base, missing="the answer has no token ids: ask the engine for `return_token_ids`")
    side, count = listed(values, lists, top), max(count, len(ids))
    missing = "" if prompt else UNPROMPTED
    return replace(base, tokens=tuple(ids), side=side, texts=tuple(texts), count=count, missing=missing)


def _count(usage: object, choice: Mapping[str, Any]) -> int:
    if isinstance(usage, dict) and type(usage.get("completion_tokens")) is int:
        return int(usage["completion_tokens"])
    ids = choice.get("token_ids")
    return len(ids) if isinstance(ids, list) else 0


def token_ids(value: object) -> list[int] | None:
    """A list of token ids that is not empty; None for anything else."""
    if isinstance(value, list) and value and all(type(x) is int and 0 <= x < _MOST_ID for x in value):
        return value
    return None


def _value(x: object) -> float:
    """A log-probability; NaN for anything that is none."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        return math.nan
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _id(item: Mapping[str, Any]) -> int | None:
    found = item.get("id")
    if type(found) is int and 0 <= found < _MOST_ID:
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


def joined(sides: Sequence[Listed]) -> Listed:
    """The positions of several answers of one side, one after another."""
    if len(sides) == 1:
        return sides[0]
    width = max((s.ids.shape[1] for s in sides), default=0)
    more = [(0, width - s.ids.shape[1]) for s in sides]
    return Listed(
        np.concatenate([s.logprobs for s in sides]),
        np.concatenate([np.pad(s.ids, ((0, 0), m), constant_values=PADDING) for s, m in zip(sides, more, strict=True)]),
        np.concatenate(
            [np.pad(s.top, ((0, 0), m), constant_values=math.nan) for s, m in zip(sides, more, strict=True)]
        ),
        np.concatenate([s.broken for s in sides]),
        tuple(t for s in sides for t in s.texts) if all(len(s.texts) == len(s.logprobs) for s in sides) else (),
    )


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
            int(k): _value(v.get("logprob") if isinstance(v, dict) else v) for k, v in row.items() if _NUMBER.match(k)
        }
        values.append(pairs.get(token))
        lists.append(list(pairs.items()))
        entry = row.get(str(token))
        text = entry.get("decoded_token") if isinstance(entry, dict) else None
        texts.append(text[:_LONGEST] if isinstance(text, str) else "")
    return replace(listed(values, lists, top), texts=tuple(texts) if any(texts) else ())
