"""vLLM's python objects (`RequestOutput`) written as JSON: `outputs` with a dictionary of log-probabilities a position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kcverify.readers import positions
from kcverify.readers.documents import Document, documents
from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Found, Opening
from kcverify.readers.positions import Part
from kcverify.readers.stream import Request
from kcverify.readers.values import is_integer, token_ids

_FLAT = ("start_indices", "end_indices", "token_ids", "logprobs")


def is_output(doc: Any) -> bool:
    """An object with `outputs`, each with `token_ids`."""
    found = doc.get("outputs") if isinstance(doc, Mapping) else None
    return isinstance(found, list) and any(isinstance(o, Mapping) and "token_ids" in o for o in found)


def read(opening: Opening) -> Found:
    """The requests of a file of dumped outputs, one for each completion."""

    def requests() -> Iterator[Request]:
        for doc in documents(opening.head.path):
            yield from _requests(opening, doc)

    probe = list(_requests(opening, Document(opening.head.first, opening.place, None, 0)))
    return Found(positions.carried(probe), requests)


def _requests(opening: Opening, doc: Document) -> Iterator[Request]:
    outputs = doc.value.get("outputs")
    if not isinstance(outputs, list) or not outputs:
        raise doc.place.invalid("the object has no `outputs`")
    base = {
        **doc.value,
        "prompt_logprobs": unflattened(doc.place.at("prompt_logprobs"), doc.value.get("prompt_logprobs")),
    }
    for index, output in enumerate(outputs):
        place = doc.place.at("outputs").at(index)
        if not isinstance(output, Mapping):
            raise place.invalid(f"{shown(output)} is not an object")
        rows = unflattened(place.at("logprobs"), output.get("logprobs"))
        if rows is None:
            raise place.invalid("it has no `logprobs`", "set `logprobs` in the sampling parameters")
        ids = token_ids(place.at("token_ids"), output.get("token_ids"), opening.value("vocabulary"))
        reading, _, top, texts = positions.dictionaries(opening, place.at("logprobs"), rows, ids)
        prompt = positions.prompt_part(opening, Document(base, doc.place, None, doc.number), {})
        name = positions.name(doc, doc.value.get("request_id"), index, len(outputs))
        fields = {
            k: output[k] for k in ("finish_reason", "cumulative_logprob") if isinstance(output.get(k), str | float)
        }
        yield positions.joined(opening, name, str(place), prompt, Part(reading, ids, texts, top), fields)


def unflattened(place: Place, value: Any) -> Any:
    """Flat log-probabilities (`start_indices`, `end_indices`, `token_ids`, `logprobs`) as one dictionary a position."""
    if not isinstance(value, Mapping) or not all(k in value for k in _FLAT):
        return value
    columns = {k: value[k] for k in _FLAT}
    ranks, texts = value.get("ranks"), value.get("decoded_tokens")
    for key, column in columns.items():
        if not isinstance(column, list):
            raise place.at(key).invalid(f"{shown(column)} is not a list")
    starts, ends, ids, logprobs = columns.values()
    if len(starts) != len(ends) or len(ids) != len(logprobs):
        raise place.length("the flat lists do not line up")
    rows: list[dict[str, Any] | None] = []
    for t, (a, b) in enumerate(zip(starts, ends, strict=True)):
        if not (is_integer(a) and is_integer(b) and 0 <= a <= b <= len(ids)):
            raise place.at(t).value(f"{shown(a)} to {shown(b)} is no range of the {len(ids)} entries")
        row: dict[str, Any] = {}
        for i in range(a, b):
            key = str(ids[i])
            if key in row:
                raise place.at(t).repeated(f"token {key} is there twice")
            row[key] = {"logprob": logprobs[i], "rank": _item(ranks, i), "decoded_token": _item(texts, i)}
        rows.append(row or None)
    return rows


def _item(values: Any, i: int) -> Any:
    return values[i] if isinstance(values, list) and i < len(values) else None
