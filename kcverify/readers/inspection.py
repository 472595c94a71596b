"""Reads a whole stream once and says what it is: counts, placeholders, what is assumed, which metrics it can carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kcverify.catalog.metrics import ROWS as METRICS
from kcverify.catalog.model import Estimator, Family, Metric
from kcverify.readers import table
from kcverify.readers.model import Format
from kcverify.readers.opening import open_stream
from kcverify.readers.positions import OPTIONAL
from kcverify.readers.sidecar import KEYS
from kcverify.readers.stream import Request, Status, Stream

FIELDS = {
    "token_ids": "token ids",
    "tokens": "token texts",
    "logprobs": "log-probability of each token",
    "top_logprobs": "most probable tokens",
    "logits": "full rows of logits",
    "row_logprobs": "full rows of log-probabilities",
    "error": "storage error of each row",
    "floor": "floor of each row, below which entries were cut",
}
"""What a stream may carry, in the words of `inspect`."""

NEEDS: dict[str, tuple[frozenset[str], ...]] = {
    "full logits of both sides": (frozenset({"logits"}),),
    "full probabilities of both sides": (frozenset({"logits"}), frozenset({"row_logprobs"})),
    "top-k log-probabilities of both sides": (frozenset({"top_logprobs"}),),
    "top-k tokens of both sides, k at least what is asked": (
        frozenset({"top_logprobs"}),
        frozenset({"logits"}),
        frozenset({"row_logprobs"}),
    ),
    "log-probability of the sampled token on both sides": (frozenset({"logprobs"}),),
    "log-probability of each given token on both sides": (frozenset({"logprobs"}),),
    "confidence and correctness of both sides": (),
    "reward of both sides on the same prompts": (),
    "response of both sides on the same prompts": (),
    "response of the candidate": (),
    "start and end of each request": (),
    "arrival and first token of each request": (),
    "token counts and wall clock": (),
    "memory counter of the device": (),
    "cache counter of the engine": (),
    "outcome of each request": (),
    "the clauses of the contract, through the lemmas": (),
}
"""Inputs of metrics (`Carrier.inputs`) -> sets of stream fields, each of which is enough; empty: no stream has them."""

EXACT, BOUNDED, ESTIMATED, UNSEEN = "exact", "bounded", "estimated", "not observed"

_WORTH = {
    Estimator.EXACT: EXACT,
    Estimator.LOWER: BOUNDED,
    Estimator.UPPER: BOUNDED,
    Estimator.UNBIASED: ESTIMATED,
}
MOST_VERSIONS = 1000
"""Versions of weights that are told apart: a file of more is one of a long run."""

_BEST = (EXACT, BOUNDED, ESTIMATED, UNSEEN)


@dataclass(frozen=True)
class Observable:
    """What two such streams say about a metric, from which input, or what it would need."""

    metric: str
    worth: str
    inputs: str


@dataclass
class Inspection:
    """Everything that `inspect` reports. Counts are of positions unless they say requests."""

    stream: Stream
    format: Format
    container: str
    size: int
    requests: int = 0
    tokens: int = 0
    counted: int = 0
    shortest: int | None = None
    longest: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    placeholders: Counter[str] = field(default_factory=Counter)
    carries: set[str] = field(default_factory=set)
    top: tuple[int, int] | None = None
    highest_id: int | None = None
    width: int | None = None
    positive: int = 0
    zeros: int = 0
    repeated: int = 0
    error: tuple[float, float] | None = None
    versions: Counter[str] = field(default_factory=Counter)

    @property
    def lacks(self) -> list[str]:
        """Fields that no request has."""
        return [name for name in ("token_ids", "logprobs", "top_logprobs", "logits") if name not in self.carries]

    @property
    def assumptions(self) -> list[str]:
        """What is taken for granted because nobody said otherwise."""
        said = self.stream.declared.items()
        out = [f"{k} = {d.value}: the default of {self.format.title}" for k, d in said if d.origin == "assumed"]
        return out + [f"{k} is not known: {KEYS[k][1]}" for k in self.format.asks if k not in self.stream.declared]


def inspect(path: str | Path, declare: list[str] | None = None) -> Inspection:
    """Reads every request of the file once. Raises InputError as `open_stream` and `Stream.requests` do."""
    stream = open_stream(path, declare or [])
    out = Inspection(stream, table.BY_NAME[stream.format], stream.value("container"), Path(path).stat().st_size)
    for request in stream.requests():
        _add(out, request)
    return out


def _add(out: Inspection, request: Request) -> None:
    n = len(request)
    out.requests += 1
    out.tokens += n
    out.counted += int(np.count_nonzero(request.mask))
    out.shortest = n if out.shortest is None else min(out.shortest, n)
    out.longest = max(out.longest, n)
    for status, count in zip(*np.unique(request.status, return_counts=True), strict=True):
        out.statuses[Status(int(status)).name.lower()] += int(count)
    version = request.fields.get("weight_version")
    if version is not None and (str(version) in out.versions or len(out.versions) < MOST_VERSIONS):
        out.versions[str(version)] += 1
    seen = request.fields.get("placeholders")
    if isinstance(seen, Mapping):
        out.placeholders.update({str(k): int(v) for k, v in seen.items()})
    names = {name for name in OPTIONAL if getattr(request, name) is not None}
    out.carries |= {"row_logprobs" if name == "logits" and _are_logprobs(out) else name for name in names}
    if request.token_ids is not None and n:
        out.highest_id = max(out.highest_id or 0, int(request.token_ids.max()))
    if request.logits is not None:
        out.width = int(request.logits.shape[-1])
    if request.logprobs is not None:
        values = request.logprobs[request.mask]
        out.positive += int(np.count_nonzero(values > 0))
        out.zeros += int(np.count_nonzero(values == 0))
    if request.top_logprobs is not None and n:
        _add_top(out, request)
    if request.error is not None and n:
        low, high = float(request.error.min()), float(request.error.max())
        out.error = (low, high) if out.error is None else (min(out.error[0], low), max(out.error[1], high))


def _are_logprobs(out: Inspection) -> bool:
    """Whether whole rows are log-probabilities, by the format or by declaration."""
    return out.format.normalised or out.stream.value("rows") == "logprobs"


def _add_top(out: Inspection, request: Request) -> None:
    assert request.top_logprobs is not None
    lengths = np.count_nonzero(~np.isnan(request.top_logprobs), axis=1)[request.mask]
    if lengths.size:
        low, high = int(lengths.min()), int(lengths.max())
        out.top = (low, high) if out.top is None else (min(out.top[0], low), max(out.top[1], high))
    if request.top_ids is not None and request.top_ids.shape[1] > 1:
        ordered = np.sort(request.top_ids, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        out.repeated += int(np.count_nonzero(again.any(axis=1)))


def observables(carries: set[str]) -> list[Observable]:
    """Every metric of the catalogue with what two streams of these fields say about it."""
    return [_observable(metric, carries) for metric in METRICS]


def _observable(metric: Metric, carries: set[str]) -> Observable:
    found = [(c, _WORTH[c.estimator]) for c in metric.carriers if any(n <= carries for n in NEEDS[c.inputs])]
    if not found:
        rests = (
            "follows from a contract"
            if metric.family is Family.CLAIM
            else "or ".join(c.inputs + " " for c in metric.carriers).strip()
        )
        return Observable(metric.name, UNSEEN, rests)
    carrier, worth = min(found, key=lambda pair: _BEST.index(pair[1]))
    stored = worth == EXACT and "error" in carries
    return Observable(metric.name, BOUNDED if stored else worth, carrier.inputs)


def meanings(row: Format) -> dict[str, tuple[str, str]]:
    """Placeholder -> status and what it means in a format."""
    own = {m.value: (m.status.name.lower(), m.means) for m in row.meanings}
    return own | {
        "row of 0.0": ("placeholder", "every log-probability of the request is exactly 0.0: the engine wrote none"),
        "broken row": ("broken", "a row with NaN or +inf, or without a finite entry"),
    }


def summary(found: Inspection) -> dict[str, Any]:
    """Vocabulary and lengths as far as they are known."""
    width = found.width or found.stream.value("vocabulary")
    return {
        "vocabulary": width,
        "vocabulary_at_least": None if width is not None or found.highest_id is None else found.highest_id + 1,
        "top_k": None if found.top is None else list(found.top),
        "shortest": found.shortest,
        "longest": found.longest,
    }
