"""JSON lines that trainers write: prime-rl's token exports and training samples, NeMo-RL's training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kcverify.readers import positions
from kcverify.readers.documents import Document, documents
from kcverify.readers.model import Found, Opening
from kcverify.readers.projects import COLUMNS, Columns, side_of
from kcverify.readers.stream import Counted, Request
from kcverify.readers.values import flags, listed_logprobs, same_length, silence_zeros, token_ids

_SCALARS = (str, int, float, bool)


def has(*names: str) -> Any:
    """Whether a document has all of these keys, each a list."""
    return lambda doc: isinstance(doc, Mapping) and all(isinstance(doc.get(n), list) for n in names)


def read(opening: Opening) -> Found:
    """The records of the file, one request a line."""
    columns = COLUMNS[opening.format.name]
    first = opening.head.first
    side, notes = side_of(opening, columns, first.keys())

    def requests() -> Iterator[Request]:
        for doc in documents(opening.head.path):
            yield _request(opening, columns, side, doc)

    probe = [_request(opening, columns, side, Document(first, opening.place, None, 0))]
    return Found(positions.carried(probe), requests, _says(first), notes)


def _says(first: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature, where every token of the first record has the same."""
    found = first.get("temperatures")
    plain = (
        isinstance(found, list) and found and all(isinstance(v, int | float) and not isinstance(v, bool) for v in found)
    )
    return {"temperature": float(found[0])} if plain and found is not None and len(set(found)) == 1 else {}


def _request(opening: Opening, columns: Columns, side: str, doc: Document) -> Request:
    key = columns.sides[side]
    value = doc.value
    if key not in value:
        raise doc.place.invalid(f"it has no `{key}`")
    reading = listed_logprobs(doc.place.at(key), value[key], opening.format.meanings)
    lengths = {key: len(reading.status)}
    ids = mask = None
    if columns.ids in value:
        ids = token_ids(doc.place.at(columns.ids), value[columns.ids], opening.value("vocabulary"))
        lengths[columns.ids] = len(ids)
    masks = {m: flags(doc.place.at(m), value[m]) for m in columns.masks if value.get(m) is not None}
    same_length(doc.place, lengths | {m: len(v) for m, v in masks.items()})
    for found in masks.values():
        mask = found if mask is None else mask & found
    if mask is None:
        mask = _guessed(doc, columns, reading.values)
    silence_zeros(reading, mask)
    reading.status[~mask & (reading.values == 0.0)] = columns.outside
    reading.values[reading.status != 0] = np.nan
    fields = {k: v for k, v in value.items() if isinstance(v, _SCALARS)}
    extra = {"placeholders": reading.found} if reading.found else {}
    name = (
        doc.name
        or "-".join(str(value[k]) for k in columns.name if isinstance(value.get(k), str | int))
        or Counted(doc.number)
    )
    return Request(name, reading.status, mask, ids, None, reading.values, fields=fields | extra, place=str(doc.place))


def _guessed(doc: Document, columns: Columns, values: Any) -> Any:
    """Without a mask: positions inside the written length whose log-probability is not the 0.0 of padding."""
    length = doc.value.get(columns.length) if columns.length else None
    mask: Any = ~(values == 0.0)
    if isinstance(length, int) and not isinstance(length, bool):
        if not 0 <= length <= len(mask):
            raise doc.place.at(columns.length or "").length(f"{length} tokens, and {len(mask)} log-probabilities")
        mask[length:] = False
    return mask
