"""Answers in the shape of the OpenAI interface: chat (`logprobs.content`) and completions (parallel lists).

vLLM, SGLang and llama-server write the same shape with keys of their own: token ids, prompt log-probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kcverify.readers import positions
from kcverify.readers.documents import Document, documents
from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Found, Opening
from kcverify.readers.positions import Part
from kcverify.readers.stream import Request
from kcverify.readers.values import (
    IDS,
    Entry,
    listed_logprobs,
    number,
    own_top,
    same_length,
    token_id,
    token_ids,
    top_rows,
)

_AS_ID = re.compile(r"token_id:([0-9]{1,10})\Z")
"""How vLLM writes a token where `return_tokens_as_token_ids` is set."""


def choices(doc: Any) -> list[Any]:
    """The `choices` of an answer; empty where it has none."""
    found = doc.get("choices") if isinstance(doc, Mapping) else None
    return found if isinstance(found, list) else []


def _logprobs(choice: Any) -> Mapping[str, Any]:
    found = choice.get("logprobs") if isinstance(choice, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_content(doc: Any) -> bool:
    """Chat answers, and completions whose log-probabilities are a `content` list."""
    return any(isinstance(_logprobs(c).get("content"), list) for c in choices(doc))


def is_parallel(doc: Any) -> bool:
    """Completions with parallel lists."""
    return any(isinstance(_logprobs(c).get("token_logprobs"), list) for c in choices(doc))


def read(opening: Opening) -> Found:
    """The requests of a file of answers, one for each choice."""
    first = opening.head.first

    def requests() -> Iterator[Request]:
        for doc in documents(opening.head.path):
            yield from _requests(opening, doc)

    says = {"weights": first.get("weight_version") if isinstance(first.get("weight_version"), str) else None}
    probe = list(_requests(opening, Document(first, opening.place, None, 0)))
    carries = positions.carried(probe)
    notes = () if "token_ids" in carries else ("tokens are texts, without ids: two tokens of the same text look alike",)
    return Found(carries, requests, says, notes)


def _requests(opening: Opening, doc: Document) -> Iterator[Request]:
    answers = doc.value.get("choices")
    if not isinstance(answers, list) or not answers:
        raise doc.place.invalid("the answer has no `choices`")
    for index, choice in enumerate(answers):
        place = doc.place.at("choices").at(index)
        if not isinstance(choice, Mapping):
            raise place.invalid(f"{shown(choice)} is not an object")
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, Mapping):
            raise place.invalid("it has no `logprobs`", "ask the engine for log-probabilities (`logprobs`)")
        own = _content if "content" in logprobs else _parallel
        part = own(opening, place, choice, logprobs)
        prompt = positions.prompt_part(opening, doc, choice)
        name = positions.name(doc, doc.value.get("id"), index, len(answers))
        fields = {
            k: doc.value[k] for k in ("model", "weight_version", "created") if isinstance(doc.value.get(k), str | int)
        }
        if isinstance(choice.get("finish_reason"), str):
            fields["finish_reason"] = choice["finish_reason"]
        yield positions.joined(opening, name, str(place), prompt, part, fields)


def _content(opening: Opening, place: Place, choice: Mapping[str, Any], logprobs: Mapping[str, Any]) -> Part:
    """`content: [{token, logprob, bytes, id?, top_logprobs: [...]}]`."""
    items, place = logprobs["content"], place.at("logprobs").at("content")
    if not isinstance(items, list):
        raise place.invalid(f"{shown(items)} is not a list")
    return content_part(opening, place, items, _given_ids(opening, place, choice))


def content_part(
    opening: Opening, place: Place, items: Sequence[Any], given: Any = None, *, pure: bool = False
) -> Part:
    """Positions of a `content` list; `pure` where the engine's lists are the most probable tokens alone."""
    meanings, vocabulary = opening.format.meanings, opening.value("vocabulary")
    entries = _entries(place, items, vocabulary)
    if given is not None:
        same_length(place, {"token ids": len(given), "log-probabilities": len(entries)})
    values = [item.get("logprob") for item in items]
    reading = listed_logprobs(place, values, meanings)
    rows: list[list[Entry]] = []
    for i, item in enumerate(items):
        listed, here = item.get("top_logprobs") or [], place.at(i).at("top_logprobs")
        if not isinstance(listed, list):
            raise here.invalid(f"{shown(listed)} is not a list")
        row = _entries(here, listed, vocabulary)
        rows.append(row if pure else own_top(row, entries[i]))
    ids = given if given is not None else _ids(entries)
    return Part(reading, ids, _texts(entries), top_rows(place, rows, meanings) if any(rows) else None)


def _entries(place: Place, items: Sequence[Any], vocabulary: int | None) -> list[Entry]:
    limit = IDS if vocabulary is None else vocabulary
    out: list[Entry] = []
    for i, item in enumerate(items):
        if (
            type(item) is dict
            and type(value := item.get("logprob")) is float
            and type(text := item.get("token")) is str
        ):
            ident = item.get("id")
            if ident is None and not text.startswith("token_id:"):
                out.append((None, text, value))
                continue
            if type(ident) is int and 0 <= ident < limit:
                out.append((ident, text, value))
                continue
        out.append(_entry(place.at(i), item, vocabulary))
    return out


def _entry(place: Place, item: Any, vocabulary: int | None) -> Entry:
    if not isinstance(item, Mapping):
        raise place.invalid(f"{shown(item)} is not an object with `token` and `logprob`")
    text, ident = item.get("token"), item.get("id")
    if text is not None and not isinstance(text, str):
        raise place.at("token").value(f"{shown(text)} is not a text")
    if ident is not None:
        ident = token_id(place.at("id"), ident, vocabulary)
    elif text is not None and (match := _AS_ID.match(text)):
        ident = token_id(place.at("token"), int(match[1]), vocabulary)
    if ident is None and text is None:
        raise place.invalid("it has neither `token` nor `id`")
    return ident, text, number(place.at("logprob"), item.get("logprob"))


def _ids(entries: Sequence[Entry]) -> Any:
    if not entries or any(e[0] is None for e in entries):
        return None
    return np.array([e[0] for e in entries], dtype=np.int64)


def _texts(entries: Sequence[Entry]) -> tuple[str, ...] | None:
    return tuple(e[1] or "" for e in entries) if any(e[1] is not None for e in entries) else None


def _given_ids(opening: Opening, place: Place, choice: Mapping[str, Any]) -> Any:
    given = choice.get("token_ids")
    return None if given is None else token_ids(place.at("token_ids"), given, opening.value("vocabulary"))


def _parallel(opening: Opening, place: Place, choice: Mapping[str, Any], logprobs: Mapping[str, Any]) -> Part:
    """`tokens`, `token_logprobs`, `top_logprobs: [{text: logprob}]`, all of one length."""
    given, place = _given_ids(opening, place, choice), place.at("logprobs")
    texts, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if values is None:
        raise place.invalid("it has neither `content` nor `token_logprobs`")
    reading = listed_logprobs(place.at("token_logprobs"), values, opening.format.meanings)
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise place.at("tokens").invalid("it is not a list of texts")
    lengths = {"tokens": len(texts), "log-probabilities": len(values)}
    top = logprobs.get("top_logprobs")
    if top is not None:
        if not isinstance(top, list):
            raise place.at("top_logprobs").invalid(f"{shown(top)} is not a list")
        lengths["lists of most probable tokens"] = len(top)
    if given is not None:
        lengths["token ids"] = len(given)
    same_length(place, lengths)
    vocabulary = opening.value("vocabulary")
    sampled = [(_id_of(place, t, vocabulary), t, 0.0) for t in texts]
    rows = [_dictionary(place.at("top_logprobs").at(i), row, sampled[i], vocabulary) for i, row in enumerate(top or [])]
    ids = given if given is not None else _ids(sampled)
    found = top_rows(place.at("top_logprobs"), rows, opening.format.meanings) if any(rows) else None
    return Part(reading, ids, tuple(texts), found)


def _id_of(place: Place, text: str, vocabulary: int | None) -> int | None:
    match = _AS_ID.match(text)
    return None if match is None else token_id(place, int(match[1]), vocabulary)


def _dictionary(place: Place, row: Any, sampled: Entry, vocabulary: int | None) -> list[Entry]:
    """One `{text: logprob}` of a completions answer, without the sampled token that the engine appended."""
    if row is None:
        return []
    if not isinstance(row, Mapping):
        raise place.invalid(f"{shown(row)} is not an object of tokens and log-probabilities")
    entries = [(_id_of(place, t, vocabulary), t, number(place.at(t[:20]), v)) for t, v in row.items()]
    return own_top(entries, sampled)
