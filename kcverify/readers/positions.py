"""Joins the prompt and the response of one answer to one request, and what it carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcverify.readers.documents import Document
from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Opening
from kcverify.readers.stream import Counted, Integers, Request
from kcverify.readers.values import (
    IDS,
    Entry,
    Reading,
    Top,
    classified,
    number,
    own_top,
    same_length,
    silence_zeros,
    token_id,
    token_ids,
    top_rows,
)

OPTIONAL = ("token_ids", "tokens", "logprobs", "top_ids", "top_tokens", "top_logprobs", "logits", "error", "floor")
"""Fields of `Request` that a format may or may not carry."""


@dataclass(frozen=True)
class Part:
    """The positions of a prompt or of a response: log-probabilities, ids, texts, most probable tokens."""

    reading: Reading
    ids: Integers | None
    texts: tuple[str, ...] | None
    top: Top | None


def carried(requests: Iterable[Request]) -> frozenset[str]:
    """Which optional fields at least one of the requests has."""
    return frozenset(name for r in requests for name in OPTIONAL if getattr(r, name) is not None)


def name(doc: Document, own: Any, index: int, count: int) -> str:
    """The request's id: the batch runner's, else the engine's, else its number in the file."""
    base = doc.name or (own if isinstance(own, str) and own else Counted(doc.number))
    return base if count == 1 else type(base)(f"{base}#{index}")


def dictionaries(
    opening: Opening, place: Place, rows: Any, ids: Integers | None
) -> tuple[Reading, Integers, Top | None, tuple[str, ...] | None]:
    """Positions of vLLM's `[{id: {logprob, rank, decoded_token}} | null]`, the sampled token among them.

    `ids` are the tokens that were there; without them the first key of each is, as vLLM writes them. Raises
    `stream_value`, `stream_invalid`, `stream_length`.
    """
    if not isinstance(rows, list):
        raise place.invalid(f"{shown(rows)} is not a list")
    if ids is not None:
        same_length(place, {"token ids": len(ids), "log-probabilities": len(rows)})
    values, missing = np.full(len(rows), np.nan), np.zeros(len(rows), dtype=bool)
    chosen, tops, texts = np.full(len(rows), -1, dtype=np.int64), [], []
    for t, row in enumerate(rows):
        found = _dictionary(place.at(t), row, opening.value("vocabulary"))
        here = int(ids[t]) if ids is not None else next(iter(found), -1)
        chosen[t] = here
        missing[t] = here not in found
        entry, rank = found.get(here, ((here, None, np.nan), None))
        values[t] = entry[2]
        texts.append(entry[1] or "")
        tops.append(own_top([e for e, _ in found.values()], entry, rank))
    reading = classified(values, missing, opening.format.meanings)
    top = top_rows(place, tops, opening.format.meanings) if any(tops) else None
    return reading, chosen, top, tuple(texts) if any(texts) else None


def _dictionary(place: Place, row: Any, vocabulary: int | None) -> dict[int, tuple[Entry, int | None]]:
    if row is None:
        return {}
    if not isinstance(row, Mapping):
        raise place.invalid(f"{shown(row)} is not an object of token ids")
    out: dict[int, tuple[Entry, int | None]] = {}
    limit = IDS if vocabulary is None else vocabulary
    for key, item in row.items():
        if (
            type(item) is dict
            and type(value := item.get("logprob")) is float
            and key.isascii()
            and key.isdigit()
            and len(key) < 10
        ):
            text, rank = item.get("decoded_token"), item.get("rank")
            if int(key) < limit and int(key) not in out:
                entry = (int(key), text if type(text) is str else None, value)
                out[int(key)] = (entry, rank if type(rank) is int and rank > 0 else None)
                continue
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise place.value(f"{shown(key)} is not a token id")
        ident, here = token_id(place, int(key), vocabulary), place.at(key)
        fields = item if isinstance(item, Mapping) else {"logprob": item}
        if "logprob" not in fields:
            raise here.invalid("it has no `logprob`")
        rank, text = fields.get("rank"), fields.get("decoded_token")
        if ident in out:
            raise place.repeated(f"token {ident} is there twice")
        entry = (ident, text if isinstance(text, str) else None, number(here, fields["logprob"], nullable=False))
        out[ident] = (entry, rank if isinstance(rank, int) and rank > 0 else None)
    return out


def prompt_part(opening: Opening, doc: Document, choice: Mapping[str, Any]) -> Part | None:
    """The prompt's positions, where the answer has `prompt_logprobs`."""
    where = choice if choice.get("prompt_logprobs") is not None else doc.value
    rows = where.get("prompt_logprobs")
    if rows is None:
        return None
    given = choice.get("prompt_token_ids", doc.value.get("prompt_token_ids"))
    place = doc.place.at("prompt_logprobs")
    ids = None if given is None else token_ids(doc.place.at("prompt_token_ids"), given, opening.value("vocabulary"))
    if ids is None and isinstance(rows, list) and rows[:1] == [None]:
        rows = rows[1:]
    reading, chosen, top, texts = dictionaries(opening, place, rows, ids)
    return Part(reading, chosen, texts, top)


def joined(
    opening: Opening, name: str, place: str, prompt: Part | None, response: Part, fields: Mapping[str, Any]
) -> Request:
    """One request of both parts; the mask is what `positions` declares (the response if nothing is)."""
    parts = [p for p in (prompt, response) if p is not None]
    lengths = [len(p.reading.status) for p in parts]
    which = opening.value("positions", "response")
    counts = {"response": (False, True), "prompt": (True, False), "all": (True, True)}[which][-len(parts) :]
    if len(parts) == 1 and which == "prompt":
        raise Place(place).invalid("it has no `prompt_logprobs`, and `positions=prompt` asks for them")
    mask = np.repeat(np.array(counts, dtype=bool), lengths)
    status = np.concatenate([p.reading.status for p in parts])
    values = np.concatenate([p.reading.values for p in parts])
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part.reading.found)
    whole = Reading(values, status, found)
    silence_zeros(whole, mask)
    ids = None if any(p.ids is None for p in parts) else np.concatenate([p.ids for p in parts if p.ids is not None])
    texts = None if any(p.texts is None for p in parts) else tuple(t for p in parts for t in p.texts or ())
    top = stacked([p.top for p in parts], lengths)
    extra = dict(fields) | ({"placeholders": whole.found} if whole.found else {})
    return Request(
        name, whole.status, mask, ids, texts, whole.values,
        None if top is None else top[0], top[1] if top is not None and top[0] is None else None,
        None if top is None else top[2],
        fields=extra, place=place,
    )  # fmt: skip


def stacked(tops: Sequence[Top | None], lengths: Sequence[int]) -> Top | None:
    """Lists of most probable tokens of several parts, one below the other, padded to one width."""
    if all(t is None for t in tops):
        return None
    if len(tops) == 1:
        return tops[0]
    width = max(t[2].shape[1] for t in tops if t is not None)
    with_ids = all(t is None or t[0] is not None for t in tops)
    logprobs = np.full((sum(lengths), width), np.nan)
    ids = np.full((sum(lengths), width), -1, dtype=np.int64)
    texts: list[tuple[str, ...]] = []
    start = 0
    for top, n in zip(tops, lengths, strict=True):
        if top is not None:
            logprobs[start : start + n, : top[2].shape[1]] = top[2]
            if top[0] is not None and with_ids:
                ids[start : start + n, : top[0].shape[1]] = top[0]
        if not with_ids:
            texts += [()] * n if top is None else _texts(top)
        start += n
    return (ids, None, logprobs) if with_ids else (None, tuple(texts), logprobs)


def _texts(top: Top) -> list[tuple[str, ...]]:
    """Texts of the tokens; an id is written as vLLM does where another part of the request has texts alone."""
    ids, texts, _ = top
    if texts is not None:
        return list(texts)
    return [] if ids is None else [tuple(f"token_id:{i}" for i in row if i >= 0) for row in ids]
