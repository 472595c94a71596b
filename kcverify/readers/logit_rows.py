"""Full rows of logits: one array `[N, V]` of a safetensors or npy file, and what `transformers` `generate` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kcverify.readers import arrays
from kcverify.readers.arrays import Array
from kcverify.readers.faults import Place, declaration, listed, undeclared
from kcverify.readers.model import Found, Opening
from kcverify.readers.stream import Counted, Declared, Floats, Integers, Request, Status

_IDS = ("token_ids", "input_ids", "tokens", "ids")
_CELLS = 1 << 18
"""Numbers that are in memory as float64 at a time."""

_PROCESSED, _RAW, _SEQUENCES = "scores", "logits", "sequences"


def is_matrix(first: Any) -> bool:
    """One or more floating-point arrays of two axes, or three with a batch."""
    return isinstance(first, Mapping) and any(_is_rows(a) for a in first.values())


def is_generate(first: Any) -> bool:
    """`sequences` beside `scores` or `logits`."""
    has = isinstance(first, Mapping) and _SEQUENCES in first
    return has and any(_is_rows(first[k]) for k in (_PROCESSED, _RAW) if k in first)


def _is_rows(array: Any) -> bool:
    return isinstance(array, Array) and array.floating and len(array.shape) in (2, 3) and array.shape[-1] >= 2


def read_matrix(opening: Opening) -> Found:
    """Rows of one array as requests, a block of rows each; the ids beside them, where a file has those too."""
    array = _chosen(opening)
    rows = _flat(array)
    width = rows.shape[-1]
    ids = _beside(opening, rows.shape[0])
    _width(opening, width)

    def requests() -> Iterator[Request]:
        for start, block in rows.blocks():
            own = None if ids is None else _ids(opening, ids, start, start + len(block), width)
            yield row_request(opening, Counted(f"rows-{start}"), f"{opening.head.path}: row {start}", block, own)

    carries = {"logits"} | ({"token_ids", "logprobs"} if ids is not None else set())
    notes = (
        ()
        if ids is not None
        else ("rows have no token ids: both sides must have scored the same tokens, in one order",)
    )
    return Found(frozenset(carries), requests, {"vocabulary": width, "dtype": array.type}, notes)


def _chosen(opening: Opening) -> Array:
    """The array of logits. Raises `stream_undeclared` where the file has several."""
    first: Mapping[str, Array] = opening.head.first
    found = {name: a for name, a in first.items() if _is_rows(a)}
    asked = opening.value("tensor")
    if asked is not None:
        if asked not in found:
            raise declaration("tensor", f"there is no array of logits `{asked}`; it has {listed(found)}")
        return found[asked]
    if _RAW in found:
        return found[_RAW]
    if len(found) > 1:
        raise undeclared(
            opening.head.path,
            f"it has several arrays of rows: {listed(found)}",
            f"--declare tensor={next(iter(found))}",
        )
    return next(iter(found.values()))


def _flat(array: Array) -> Array:
    """A batch of sequences as one list of rows."""
    if len(array.shape) == 2:
        return array
    shape = (array.shape[0] * array.shape[1], array.shape[2])
    return Array(array.path, array.name, array.offset, array.type, shape, array.dtype)


def _beside(opening: Opening, rows: int) -> Array | None:
    first: Mapping[str, Array] = opening.head.first
    for name in _IDS:
        found = first.get(name)
        if found is not None and found.dtype.kind in "iu":
            count = int(np.prod(found.shape))
            if count != rows:
                raise opening.place.at(name).length(f"{count} token ids and {rows} rows of logits")
            return Array(found.path, name, found.offset, found.type, (count,), found.dtype)
    return None


def _ids(opening: Opening, array: Array, start: int, stop: int, width: int) -> Integers:
    return checked_ids(opening.place.at(array.name), array.rows(start, stop), width)


def checked_ids(place: Place, values: Any, width: int) -> Integers:
    """Int64 ids inside the vocabulary. Raises `stream_value`."""
    out = np.array(values).astype(np.int64)
    outside = np.flatnonzero((out < 0) | (out >= width))
    if outside.size:
        raise place.at(int(outside[0])).value(f"token id {out[outside[0]]} is outside the vocabulary of {width}")
    return out


def _width(opening: Opening, width: int) -> None:
    asked = opening.declared.get("vocabulary")
    if isinstance(asked, Declared) and asked.value != width:
        raise declaration(
            "vocabulary",
            f"{asked.value} is declared, and the rows are {width} wide",
            "leave it out, or export the declared width",
        )


def row_request(
    opening: Opening, name: str, place: str, rows: npt.NDArray[Any], ids: Integers | None, **fields: Any
) -> Request:
    """A request of full rows. A row with NaN or +inf, or without a finite entry, is broken; a banned token is -inf."""
    highest = np.max(rows, axis=-1).astype(np.float64)
    status = np.where(np.isfinite(highest), Status.VALUE, Status.BROKEN).astype(np.uint8)
    values = None
    broken = int(np.count_nonzero(status))
    seen = {"broken row": broken} if broken else {}
    if ids is not None:
        values = sampled(rows, ids, highest, opening.value("rows") == "logprobs")
        banned = (status == Status.VALUE) & np.isneginf(values)
        status[banned] = Status.BANNED
        values[status != Status.VALUE] = np.nan
        seen |= {"-inf": int(np.count_nonzero(banned))} if banned.any() else {}
    extra = fields | ({"placeholders": seen} if seen else {})
    mask = np.ones(len(rows), dtype=bool)
    return Request(name, status, mask, ids, None, values, logits=rows, fields=extra, place=place)


def sampled(rows: npt.NDArray[Any], ids: Integers, highest: Floats, normalised: bool = False) -> Floats:
    """Log-softmax float64 `[T]` at the ids; minus infinity where the row bans the token, NaN where the row is broken.

    Rows that are declared `normalised` are taken as they are, so that a row that is no distribution shows.
    """
    out = np.take_along_axis(rows, ids[:, None], 1)[:, 0].astype(np.float64)
    step = max(1, _CELLS // rows.shape[1])
    with np.errstate(invalid="ignore"):
        for start in () if normalised else range(0, len(rows), step):
            block = slice(start, start + step)
            shifted = rows[block] - highest[block, None]
            out[block] -= highest[block] + np.log(np.exp(shifted, out=shifted).sum(1))
    out[~np.isfinite(highest)] = np.nan
    return out


def read_generate(opening: Opening) -> Found:
    """Answers of `generate`: `scores` after the processors, `logits` before them, `sequences` of prompt and response.

    `scores` and `logits` are `[T, V]`, or `[T, B, V]` for B sequences `[B, prompt + T]`.
    """
    first: Mapping[str, Array] = opening.head.first
    key, notes = _which(opening)
    rows, sequences = first[key], first[_SEQUENCES]
    steps, width = rows.shape[0], rows.shape[-1]
    batch = 1 if len(rows.shape) == 2 else rows.shape[1]
    if (
        len(sequences.shape) != 2
        or sequences.shape[0] != batch
        or sequences.shape[1] < steps
        or sequences.dtype.kind not in "iu"
    ):
        raise opening.place.at(_SEQUENCES).length(
            f"shape {list(sequences.shape)} does not fit {steps} steps of {batch} sequences"
        )
    _width(opening, width)

    def requests() -> Iterator[Request]:
        ids = np.array(sequences.rows(0, batch)).astype(np.int64)[:, sequences.shape[1] - steps :]
        step = max(1, arrays.block_rows(width) // batch)
        for start in range(0, steps, step):
            block = rows.rows(start, min(start + step, steps)).reshape(-1, batch, width)
            for b in range(batch):
                own = checked_ids(opening.place.at(_SEQUENCES), ids[b, start : start + len(block)], width)
                name = Counted(f"sequence-{b}" if steps <= step else f"sequence-{b}:{start}")
                yield row_request(opening, name, f"{opening.head.path}: {key}", block[:, b], own)

    mode = "raw" if key == _RAW else "processed"
    says = {"vocabulary": width, "dtype": rows.type, "logprobs_mode": mode}
    return Found(frozenset({"token_ids", "logprobs", "logits"}), requests, says, notes)


def _which(opening: Opening) -> tuple[str, tuple[str, ...]]:
    first = opening.head.first
    there = [k for k in (_RAW, _PROCESSED) if k in first and _is_rows(first[k])]
    asked = opening.value("logprobs_mode")
    if asked is not None:
        key = _RAW if asked == "raw" else _PROCESSED
        if key not in there:
            raise undeclared(
                opening.head.path,
                f"it has no `{key}` for logprobs_mode={asked}; it has {listed(there)}",
                "--declare logprobs_mode=raw",
            )
        return key, ()
    if len(there) == 2:
        return _RAW, (
            "rows are `logits` (raw); --declare logprobs_mode=processed reads `scores`, after temperature and truncation",
        )
    return there[0], ()
