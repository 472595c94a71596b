"""SGLang's `meta_info`: log-probabilities as triples, as objects, or as two parallel lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kcverify.readers import positions
from kcverify.readers.documents import Document, documents
from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Found, Opening
from kcverify.readers.positions import Part
from kcverify.readers.stream import Request
from kcverify.readers.values import IDS, Entry, classified, number, same_length, token_id, token_ids, top_rows

_FIELDS = ("weight_version", "completion_tokens", "prompt_tokens", "e2e_latency")


def is_answer(doc: Any) -> bool:
    """An object with `meta_info`, in itself or in its choices."""
    return _meta(doc) is not None


def _meta(doc: Any) -> Mapping[str, Any] | None:
    found = doc.get("meta_info") if isinstance(doc, Mapping) else None
    known = isinstance(found, Mapping) and any(
        str(k).startswith(("output_token_logprobs", "input_token_logprobs")) for k in found
    )
    return found if known else None


def read(opening: Opening) -> Found:
    """The requests of a file of `/generate` answers."""

    def requests() -> Iterator[Request]:
        for doc in documents(opening.head.path):
            yield _request(opening, doc)

    probe = [_request(opening, Document(opening.head.first, opening.place, None, 0))]
    version = opening.head.first["meta_info"].get("weight_version")
    return Found(positions.carried(probe), requests, {"weights": version if isinstance(version, str) else None})


def _request(opening: Opening, doc: Document) -> Request:
    place, meta = doc.place.at("meta_info"), doc.value.get("meta_info")
    if not isinstance(meta, Mapping):
        raise doc.place.invalid("the answer has no `meta_info`")
    response = _part(opening, place, meta, "output")
    if response is None:
        raise place.invalid("it has no `output_token_logprobs`", "ask for `return_logprob`")
    given = doc.value.get("output_ids")
    if given is not None and response.ids is not None:
        ids = token_ids(doc.place.at("output_ids"), given, opening.value("vocabulary"))
        same_length(doc.place, {"output ids": len(ids), "log-probabilities": len(response.ids)})
        if not np.array_equal(ids, response.ids):
            t = int(np.flatnonzero(ids != response.ids)[0])
            raise (
                doc.place.at("output_ids")
                .at(t)
                .value(f"token {ids[t]}, and the log-probability is that of {response.ids[t]}")
            )
    prompt = _part(opening, place, meta, "input")
    name = positions.name(doc, meta.get("id"), 0, 1)
    fields = {k: meta[k] for k in _FIELDS if isinstance(meta.get(k), str | int | float)}
    return positions.joined(opening, name, str(doc.place), prompt, response, fields)


def _part(opening: Opening, place: Place, meta: Mapping[str, Any], side: str) -> Part | None:
    items = _items(place, meta, f"{side}_token_logprobs")
    if items is None or (side == "input" and not items):
        return None
    here, vocabulary = place.at(f"{side}_token_logprobs"), opening.value("vocabulary")
    entries = _entries(here, items, vocabulary)
    values = np.array([e[2] for e in entries], dtype=np.float64)
    missing = np.array([_is_null(item) for item in items], dtype=bool)
    reading = classified(values, missing, opening.format.meanings)
    ids = np.array([e[0] for e in entries], dtype=np.int64)
    texts = tuple(e[1] or "" for e in entries) if any(e[1] for e in entries) else None
    return Part(reading, ids, texts, _top(opening, place, meta, f"{side}_top_logprobs", len(entries)))


def _top(opening: Opening, place: Place, meta: Mapping[str, Any], key: str, length: int) -> Any:
    rows, here = _rows(place, meta, key), place.at(key)
    if not rows:
        return None
    same_length(here, {"lists of most probable tokens": len(rows), "log-probabilities": length})
    vocabulary = opening.value("vocabulary")
    read = [_entries(here, _list(here, row or []), vocabulary, t) for t, row in enumerate(rows)]
    return top_rows(here, read, opening.format.meanings) if any(read) else None


def _items(place: Place, meta: Mapping[str, Any], key: str) -> list[Any] | None:
    """Triples, objects, or the two parallel lists `…_val` and `…_idx` as pairs."""
    if meta.get(key) is not None:
        return _list(place.at(key), meta[key])
    values, ids = meta.get(f"{key}_val"), meta.get(f"{key}_idx")
    if values is None and ids is None:
        return None
    values, ids = _list(place.at(f"{key}_val"), values), _list(place.at(f"{key}_idx"), ids)
    same_length(place, {f"{key}_val": len(values), f"{key}_idx": len(ids)})
    return [list(pair) for pair in zip(values, ids, strict=True)]


def _rows(place: Place, meta: Mapping[str, Any], key: str) -> list[Any]:
    """Lists of triples, or the two parallel lists of lists."""
    if meta.get(key) is not None:
        return _list(place.at(key), meta[key])
    values, ids = meta.get(f"{key}_val"), meta.get(f"{key}_idx")
    if values is None and ids is None:
        return []
    values, ids = _list(place.at(f"{key}_val"), values), _list(place.at(f"{key}_idx"), ids)
    same_length(place, {f"{key}_val": len(values), f"{key}_idx": len(ids)})
    out = []
    for t, (v, i) in enumerate(zip(values, ids, strict=True)):
        here = place.at(key).at(t)
        left, right = _list(here, v or []), _list(here, i or [])
        same_length(here, {"values": len(left), "ids": len(right)})
        out.append([list(pair) for pair in zip(left, right, strict=True)])
    return out


def _list(place: Place, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise place.invalid(f"{shown(value)} is not a list")
    return value


def _is_null(item: Any) -> bool:
    return (item.get("logprob") if isinstance(item, Mapping) else item[0]) is None


def _entries(place: Place, items: list[Any], vocabulary: int | None, row: int | None = None) -> list[Entry]:
    """Entries of one list; `row` is where the list stands in a list of lists."""
    limit = IDS if vocabulary is None else vocabulary
    out: list[Entry] = []
    for i, item in enumerate(items):
        if (
            type(item) is list
            and len(item) == 3
            and type(item[0]) is float
            and type(item[1]) is int
            and 0 <= item[1] < limit
            and (item[2] is None or type(item[2]) is str)
        ):
            out.append((item[1], item[2], item[0]))
            continue
        out.append(_entry((place if row is None else place.at(row)).at(i), item, vocabulary))
    return out


def _entry(place: Place, item: Any, vocabulary: int | None) -> Entry:
    """`[logprob, id, text]`, `[logprob, id]`, or `{logprob, token_id, text}`."""
    if isinstance(item, Mapping):
        value, ident, text = (
            item.get("logprob"),
            item.get("token_id", item.get("id")),
            item.get("text", item.get("token")),
        )
    elif isinstance(item, list) and len(item) in (2, 3):
        value, ident, text = item[0], item[1], item[2] if len(item) == 3 else None
    else:
        raise place.invalid(f"{shown(item)} is not [log-probability, token id, text]")
    if text is not None and not isinstance(text, str):
        raise place.value(f"{shown(text)} is not a text")
    return token_id(place, ident, vocabulary), text, number(place, value)
