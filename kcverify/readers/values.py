"""Numbers of a file with what they mean: log-probabilities with a status, token ids in range, lists of equal length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Meaning
from kcverify.readers.stream import Flags, Floats, Integers, Status

IDS = 1 << 31
"""Token ids are below this in every engine."""

ROW_OF_ZEROS = 4
"""So many counted log-probabilities of one request, all of them exactly 0.0, are no numbers: the engine wrote none."""

NULL, NAN, MINUS_INFINITY, PLUS_INFINITY = "null", "nan", "-inf", "inf"

Statuses = npt.NDArray[np.uint8]


class Reading:
    """Log-probabilities of one request: `values` float64 (NaN off `Status.VALUE`), `status`, and counts by placeholder."""

    def __init__(self, values: Floats, status: Statuses, found: Mapping[str, int]) -> None:
        self.values, self.status, self.found = values, status, dict(found)


def is_integer(value: object) -> bool:
    """Whether a JSON value is an integer; booleans are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def numbers(place: Place, values: Any, *, nullable: bool = True) -> Floats:
    """Float64 `[T]` of a JSON list; null becomes NaN, but see `classified`. Raises `stream_value`, `stream_invalid`."""
    if not isinstance(values, list):
        raise place.invalid(f"{shown(values)} is not a list of numbers")
    if set(map(type, values)) <= {float}:
        return np.array(values, dtype=np.float64)
    out = np.empty(len(values), dtype=np.float64)
    for i, value in enumerate(values):
        out[i] = number(place.at(i), value, nullable=nullable)
    return out


def number(place: Place, value: Any, *, nullable: bool = True) -> float:
    """One JSON number as float64; null is NaN. Raises `stream_value`."""
    if value is None and nullable:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.value(f"{shown(value)} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise place.value("an integer beyond 1e308 is no log-probability") from None


def token_id(place: Place, value: Any, vocabulary: int | None = None) -> int:
    """One token id. Raises `stream_value` where it is no integer, negative, or outside the vocabulary."""
    if not is_integer(value):
        raise place.value(f"{shown(value)} is not a token id")
    limit = IDS if vocabulary is None else vocabulary
    if not 0 <= value < limit:
        size = "" if vocabulary is None else f" of {vocabulary}"
        raise place.value(f"token id {shown(value)} is outside the vocabulary{size}")
    return int(value)


def token_ids(place: Place, values: Any, vocabulary: int | None = None) -> Integers:
    """Int64 `[T]` of a JSON list of token ids. Raises `stream_value`, `stream_invalid`."""
    if not isinstance(values, list):
        raise place.invalid(f"{shown(values)} is not a list of token ids")
    limit = IDS if vocabulary is None else vocabulary
    if set(map(type, values)) <= {int} and min(values, default=0) >= 0 and max(values, default=0) < limit:
        return np.array(values, dtype=np.int64)
    return np.array([token_id(place.at(i), v, vocabulary) for i, v in enumerate(values)], dtype=np.int64)


def flags(place: Place, values: Any) -> Flags:
    """Bool `[T]` of a JSON list of 0, 1, true and false. Raises `stream_value`, `stream_invalid`."""
    if not isinstance(values, list):
        raise place.invalid(f"{shown(values)} is not a list of 0 and 1")
    if set(map(type, values)) <= {bool}:
        return np.array(values, dtype=bool)
    for i, value in enumerate(values):
        if not (isinstance(value, bool | int | float) and value in (0, 1)):
            raise place.at(i).value(f"{shown(value)} is not 0 or 1")
    return np.array(values, dtype=bool)


def classified(values: Floats, missing: Flags | None, meanings: Sequence[Meaning]) -> Reading:
    """Statuses of float64 values by the meanings that their format declares.

    `missing` bool of the same shape marks null and absent ones. What is not declared: NaN and +inf are broken, minus
    infinity is a banned token, any other number is a number.
    """
    values = np.array(values, dtype=np.float64)
    status = np.full(values.shape, Status.VALUE, dtype=np.uint8)
    found: Counter[str] = Counter()
    absent = np.zeros(values.shape, dtype=bool) if missing is None else missing
    table = {m.value: m.status for m in meanings}
    cases: list[tuple[str, Flags, Status]] = [
        (NAN, np.isnan(values) & ~absent, table.pop(NAN, Status.BROKEN)),
        (PLUS_INFINITY, np.isposinf(values), table.pop(PLUS_INFINITY, Status.BROKEN)),
        (MINUS_INFINITY, np.isneginf(values), table.pop(MINUS_INFINITY, Status.BANNED)),
        (NULL, absent, table.pop(NULL, Status.MISSING)),
    ]
    cases += [(text, values == float(text), status_) for text, status_ in table.items()]
    for text, where, kind in cases:
        count = int(np.count_nonzero(where))
        if count:
            status[where] = kind
            found[text] += count
    values[status != Status.VALUE] = np.nan
    return Reading(values, status, found)


def listed_logprobs(place: Place, values: Any, meanings: Sequence[Meaning]) -> Reading:
    """`classified` of a JSON list in which null marks what is missing. Raises `stream_value`, `stream_invalid`."""
    read = numbers(place, values)
    missing = np.array([v is None for v in values], dtype=bool)
    return classified(read, missing, meanings)


def silence_zeros(reading: Reading, mask: Flags) -> bool:
    """Marks a request whose every counted log-probability is exactly 0.0 as a placeholder; whether it was one."""
    counted = mask & (reading.status == Status.VALUE)
    n = int(np.count_nonzero(counted))
    if n < ROW_OF_ZEROS or n != int(np.count_nonzero(mask)) or np.any(reading.values[counted] != 0.0):
        return False
    reading.status[counted] = Status.PLACEHOLDER
    reading.values[counted] = np.nan
    reading.found["row of 0.0"] = reading.found.get("row of 0.0", 0) + n
    return True


def same_length(place: Place, lengths: Mapping[str, int]) -> int:
    """The common length. Raises `stream_length` with each one's own."""
    if len(set(lengths.values())) > 1:
        raise place.length(", ".join(f"{n} {name}" for name, n in lengths.items()) + ": they must be as many")
    return next(iter(lengths.values()), 0)


Entry = tuple[int | None, str | None, float]
"""One of the most probable tokens: id, text, log-probability in nats."""


Top = tuple[Integers | None, tuple[tuple[str, ...], ...] | None, Floats]
"""Most probable tokens of T positions: ids int64 `[T, K]` or texts, log-probabilities float64 `[T, K]`."""


def top_rows(place: Place, rows: Sequence[Sequence[Entry]], meanings: Sequence[Meaning]) -> Top:
    """Lists of most probable tokens, each from the largest on, padded with -1 and NaN; texts where ids are not there.

    Placeholders leave a list. Raises `token_repeated` where one id has two different numbers; equal repetitions stay
    for the identity checks.
    """
    flat = [e for row in rows for e in row]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    width = int(lengths.max(initial=0))
    at = (
        np.repeat(np.arange(len(rows)), lengths),
        np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths),
    )
    logprobs = np.full((len(rows), width), np.nan)
    logprobs[at] = classified(np.array([e[2] for e in flat], dtype=np.float64), None, meanings).values
    with_ids = bool(flat) and all(e[0] is not None for e in flat)
    ids = np.full(logprobs.shape, -1, dtype=np.int64)
    if with_ids:
        ids[at] = np.array([e[0] for e in flat], dtype=np.int64)
    order = np.argsort(-logprobs, axis=1, kind="stable")
    logprobs, ids = np.take_along_axis(logprobs, order, axis=1), np.take_along_axis(ids, order, axis=1)
    there = ~np.isnan(logprobs)
    width = int(there.sum(axis=1).max(initial=0))
    ids = np.where(there, ids, -1)[:, :width]
    logprobs = logprobs[:, :width]
    if with_ids:
        _contradictions(place, ids, logprobs)
        return ids, None, logprobs
    counts = there.sum(axis=1)
    texts = tuple(tuple((row[k][1] or "") for k in order[t, : counts[t]]) for t, row in enumerate(rows))
    return None, texts, logprobs


def _contradictions(place: Place, ids: Integers, logprobs: Floats) -> None:
    """Raises `token_repeated` for the first id of a row with two different log-probabilities."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered, values = np.take_along_axis(ids, order, axis=1), np.take_along_axis(logprobs, order, axis=1)
    again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0) & (values[:, 1:] != values[:, :-1])
    if again.any():
        t, k = (int(n) for n in np.argwhere(again)[0])
        two = sorted((values[t, k], values[t, k + 1]), reverse=True)
        raise place.at(t).repeated(f"token {ordered[t, k]} has log-probability {two[0]:g} and {two[1]:g}")


def own_top(entries: Sequence[Entry], sampled: Entry, rank: int | None = None) -> list[Entry]:
    """The K most probable alone, where an engine appends the sampled token to them.

    With `rank` (1 is the most probable) the answer is exact. Without it the sampled token is dropped where it has the
    smallest number of the list: at worst this gives the K - 1 most probable, which is a list of most probable ones too.
    """

    def same(e: Entry) -> bool:
        return e[0] == sampled[0] if e[0] is not None and sampled[0] is not None else e[1] == sampled[1]

    listed = list(entries)
    if rank is not None:
        return listed if rank <= len(listed) else [e for e in listed if not same(e)]
    if len(listed) == 1:
        return [] if same(listed[0]) else listed
    smallest = min((e[2] for e in listed), default=0.0)
    return [e for e in listed if not (same(e) and e[2] <= smallest)]
