"""llama-server: its own `/completion` answers, and completions in the shape of the OpenAI interface with ids and bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kcverify.readers import openai, positions
from kcverify.readers.documents import Document, documents
from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Found, Opening
from kcverify.readers.stream import Request
from kcverify.readers.values import number

_SETTINGS = ("temperature", "top_p", "top_k", "min_p")


def is_native(doc: Any) -> bool:
    """An answer of `/completion`."""
    return isinstance(doc, Mapping) and isinstance(doc.get("completion_probabilities"), list)


def is_completion(doc: Any) -> bool:
    """Choices with a `content` list whose entries carry `id`, and the server's `timings`."""
    if not openai.is_content(doc):
        return False
    items = [
        i for c in openai.choices(doc) if isinstance(c, Mapping) for i in (c.get("logprobs") or {}).get("content") or []
    ]
    return "timings" in doc or any(isinstance(i, Mapping) and "id" in i for i in items)


def read(opening: Opening) -> Found:
    """The requests of a file of answers, of either kind."""

    def requests() -> Iterator[Request]:
        for doc in documents(opening.head.path):
            yield from _requests(opening, doc)

    first = opening.head.first
    probe = list(_requests(opening, Document(first, opening.place, None, 0)))
    settings = first.get("generation_settings")
    says = {k: settings[k] for k in _SETTINGS if _plain(settings.get(k))} if isinstance(settings, Mapping) else {}
    if isinstance(settings, Mapping) and settings.get("post_sampling_probs") is True:
        says["logprobs_mode"] = "processed"
    return Found(positions.carried(probe), requests, says)


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _requests(opening: Opening, doc: Document) -> Iterator[Request]:
    if "completion_probabilities" in doc.value:
        yield _native(opening, doc)
        return
    answers = doc.value.get("choices")
    if not isinstance(answers, list) or not answers:
        raise doc.place.invalid("the answer has neither `completion_probabilities` nor `choices`")
    for index, choice in enumerate(answers):
        place = doc.place.at("choices").at(index)
        logprobs = choice.get("logprobs") if isinstance(choice, Mapping) else None
        items = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        if not isinstance(items, list):
            raise place.invalid("it has no `logprobs.content`", "ask the server for `logprobs`")
        part = openai.content_part(opening, place.at("logprobs").at("content"), items, pure=True)
        name = positions.name(doc, doc.value.get("id"), index, len(answers))
        yield positions.joined(opening, name, str(place), None, part, _fields(doc))


def _native(opening: Opening, doc: Document) -> Request:
    items, place = doc.value["completion_probabilities"], doc.place.at("completion_probabilities")
    if not isinstance(items, list):
        raise place.invalid(f"{shown(items)} is not a list")
    rows = [_logarithms(place.at(i), item) for i, item in enumerate(items)]
    part = openai.content_part(opening, place, rows, pure=True)
    return positions.joined(opening, positions.name(doc, None, 0, 1), str(doc.place), None, part, _fields(doc))


def _logarithms(place: Place, item: Any) -> Any:
    """An entry with natural logarithms, also where the server was asked for probabilities (`prob`, `top_probs`)."""
    if not isinstance(item, Mapping) or "logprob" in item or "prob" not in item:
        return item
    listed = item.get("top_probs") or []
    if not isinstance(listed, list):
        raise place.at("top_probs").invalid(f"{shown(listed)} is not a list")
    tops = [_logarithms(place.at("top_probs").at(k), e) for k, e in enumerate(listed)]
    return {**item, "logprob": _logarithm(place, item["prob"]), "top_logprobs": tops}


def _logarithm(place: Place, value: Any) -> float:
    probability = number(place.at("prob"), value, nullable=False)
    if not 0 <= probability <= 1:
        raise place.at("prob").value(f"{shown(value)} is not a probability")
    return math.log(probability) if probability > 0 else -math.inf


def _fields(doc: Document) -> dict[str, Any]:
    return {k: doc.value[k] for k in ("model", "truncated", "stop_type") if isinstance(doc.value.get(k), str | bool)}
