"""Batches that RL trainers hold: one row a request, as arrays in safetensors or npz, columns in parquet, torch objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kcverify.readers.arrays import Array
from kcverify.readers.faults import Place, shown
from kcverify.readers.model import Found, Opening
from kcverify.readers.positions import carried
from kcverify.readers.projects import COLUMNS, Columns, side_of
from kcverify.readers.stream import Counted, Flags, Integers, Request, Status
from kcverify.readers.values import IDS, classified, same_length, silence_zeros

Row = Mapping[str, Any]
"""One request: column name -> a one-axis array, a list, a scalar, or None."""

_ROWS = 256
"""Requests of a batch of arrays that are read together."""

_SCALARS = (str, int, float, bool)


def has(project: str) -> Any:
    """Whether the columns of a project are there: one side of log-probabilities, with its ids or a mask."""
    columns = COLUMNS[project]
    keys = {columns.ids, *columns.masks}

    def recognises(first: Any) -> bool:
        names = set(first) if isinstance(first, Mapping) else set()
        return bool(names & set(columns.sides.values())) and bool(names & keys)

    return recognises


def read_arrays(opening: Opening) -> Found:
    """Rows of arrays `[B, T]` (masks of requests `[B]`) of a safetensors or npz file."""
    first: Mapping[str, Any] = opening.head.first
    names = wanted(opening.format.name)
    used = {name: a for name, a in first.items() if name in names and len(a.shape) in (1, 2)}
    counts = {f"rows of `{name}`": a.shape[0] for name, a in used.items()}

    def rows() -> Iterator[Row]:
        total = same_length(opening.place, counts)
        for start in range(0, total, _ROWS):
            stop = min(start + _ROWS, total)
            blocks = {name: np.array(_rows(a, start, stop)) for name, a in used.items()}
            for i in range(stop - start):
                yield {name: block[i] for name, block in blocks.items()}

    return read_rows(opening, used.keys(), rows)


def _rows(array: Any, start: int, stop: int) -> Any:
    return array.rows(start, stop) if isinstance(array, Array) else array[start:stop]


def wanted(project: str) -> set[str]:
    """Columns of a project that are read."""
    c = COLUMNS[project]
    return {
        c.ids,
        *c.masks,
        *c.sides.values(),
        *([c.length] if c.length else []),
        *([c.sample_mask] if c.sample_mask else []),
    }


def read_rows(opening: Opening, there: Any, rows: Any) -> Found:
    """Requests of an iterable of rows, whatever container they come from."""
    columns = COLUMNS[opening.format.name]
    side, notes = side_of(opening, columns, list(there))

    def requests() -> Iterator[Request]:
        for i, row in enumerate(rows()):
            yield _request(opening, columns, columns.sides[side], row, i)

    first = next(iter(requests()), None)
    if first is None:
        raise opening.place.invalid("it has no rows")
    return Found(carried([first]), requests, {}, notes)


def _request(opening: Opening, columns: Columns, key: str, row: Row, index: int) -> Request:
    place = Place(str(opening.head.path), f"row {index}")
    values = _floats(place.at(key), row.get(key))
    reading = classified(values, None, opening.format.meanings)
    mask = _mask(place, columns, row, len(values))
    ids = _aligned(place, columns, row, len(values), opening.value("vocabulary"), mask)
    if mask is None:
        mask = values != 0.0
    silence_zeros(reading, mask)
    outside = ~mask & (reading.values == 0.0)
    reading.status[outside] = columns.outside
    reading.values[reading.status != Status.VALUE] = np.nan
    fields = {k: v for k, v in row.items() if isinstance(v, _SCALARS)}
    extra = fields | ({"placeholders": reading.found} if reading.found else {})
    name = "-".join(str(row[k]) for k in columns.name if isinstance(row.get(k), str | int)) or Counted(f"row-{index}")
    return Request(name, reading.status, mask, ids, None, reading.values, fields=extra, place=str(place))


def _floats(place: Place, value: Any) -> npt.NDArray[np.float64]:
    if value is None:
        raise place.invalid("it is missing in this row")
    return _numbers(place, value).astype(np.float64)


def _numbers(place: Place, value: Any) -> npt.NDArray[Any]:
    try:
        out = np.asarray([np.nan if v is None else v for v in value] if isinstance(value, list) else value)
    except (ValueError, TypeError, OverflowError):
        raise place.value(f"{shown(value)} is not a list of numbers") from None
    if out.size == 0:
        return np.zeros(0)
    if out.ndim != 1 or out.dtype.kind not in "fiub":
        raise place.value(f"it has {out.ndim} axes of type {out.dtype}, and one axis of numbers is read")
    return out


def _mask(place: Place, columns: Columns, row: Row, length: int) -> Flags | None:
    """Where every mask that is there says 1; the request's own mask and its length count too."""
    mask: Flags | None = None
    for name in columns.masks:
        if row.get(name) is None:
            continue
        found = _numbers(place.at(name), row[name])
        if np.any((found != 0) & (found != 1)):
            raise place.at(name).value("it is not 0 or 1 everywhere")
        same_length(place, {name: len(found), "log-probabilities": length})
        mask = found.astype(bool) if mask is None else mask & found.astype(bool)
    for key, cut in ((columns.sample_mask, False), (columns.length, True)):
        if key is None or row.get(key) is None:
            continue
        number = np.asarray(row[key])
        if number.ndim != 0 or number.dtype.kind not in "fiub" or not 0 <= float(number) < IDS:
            raise place.at(key).value(f"{shown(row[key])} is not a count")
        inside = np.arange(length) < float(number) if cut else np.full(length, float(number) > 0)
        mask = inside if mask is None else mask & inside
    return mask


def _aligned(
    place: Place, columns: Columns, row: Row, length: int, vocabulary: int | None, mask: Flags | None
) -> Integers | None:
    """Ids of the positions that have log-probabilities. Raises `stream_length`, `stream_value`."""
    if row.get(columns.ids) is None:
        return None
    here = place.at(columns.ids)
    found = _numbers(here, row[columns.ids])
    if found.dtype.kind not in "iu" and found.size:
        raise here.value(f"type {found.dtype} is no token id")
    if columns.tail and len(found) > length:
        found = found[len(found) - length :]
    same_length(place, {columns.ids: len(found), "log-probabilities": length})
    ids = found.astype(np.int64)
    limit = IDS if vocabulary is None else vocabulary
    bad = (ids < 0) | (ids >= limit)
    counted = bad if mask is None else bad & mask
    if counted.any():
        t = int(np.flatnonzero(counted)[0])
        raise here.at(t).value(
            f"token id {ids[t]} is outside the vocabulary" + (f" of {vocabulary}" if vocabulary else "")
        )
    ids[bad] = -1
    return ids
