"""llama.cpp's `--kl-divergence-base` file: 16-bit rows of log-probabilities with a scale and a minimum each.

Layout (tools/perplexity/perplexity.cpp): the 8 bytes `_logits_`; int32 context length, vocabulary, chunks; the int32
tokens of all chunks; then for each chunk one row for each of the last `n_ctx - 1 - n_ctx // 2` positions that have a
next token. A row is two float32, scale and minimum, and one uint16 code an entry, padded to an even number. An entry
is `scale * code + minimum`; what lies more than 16 nats below the largest logit was clipped to code 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kcverify.readers.arrays import block_rows
from kcverify.readers.faults import Place
from kcverify.readers.model import Found, Opening
from kcverify.readers.stream import Counted, Floats, Request, Status

MAGIC = b"_logits_"
_HEAD = 20
_CLIP = 16.0
"""Nats below the largest logit at which the writer cuts."""

_ALMOST = 0.9999
"""A row that spans this share of 16 nats counts as clipped: float32 logits far from 0 round the span itself."""

_CODES = 65535

_ROUNDING = 0.5 + _CODES * 4 * 2.0**-24
"""Codes: half of one from rounding, and four float32 roundings of a quotient of at most 65535."""

_MINIMUM = 2.0**-24
"""Relative error of one float32 rounding; see `storage_error`."""


@dataclass(frozen=True)
class Header:
    """What the head of the file says. `rows` is the number of rows of one chunk, `size` the bytes of one row."""

    context: int
    vocabulary: int
    chunks: int

    @property
    def first(self) -> int:
        """The first position of a chunk that has a row."""
        return self.context // 2

    @property
    def rows(self) -> int:
        """Rows of one chunk."""
        return self.context - 1 - self.first

    @property
    def size(self) -> int:
        """Bytes of one row."""
        return 2 * (2 * ((self.vocabulary + 1) // 2) + 4)

    @property
    def start(self) -> int:
        """Where the rows start."""
        return _HEAD + 4 * self.context * self.chunks


def header(place: Place, raw: bytes, size: int) -> Header:
    """The head of the file, held against its size. Raises `stream_invalid`."""
    if len(raw) < _HEAD:
        raise place.invalid("it ends inside its head")
    context, vocabulary, chunks = struct.unpack("<iii", raw[8:_HEAD])
    if context < 2 or vocabulary < 1 or chunks < 1:
        raise place.invalid(f"context {context}, vocabulary {vocabulary}, {chunks} chunks: there is nothing to read")
    found = Header(context, vocabulary, chunks)
    expected = found.start + found.chunks * found.rows * found.size
    if size < expected:
        whole = max(0, size - found.start) // max(1, found.rows * found.size)
        raise place.invalid(
            f"{chunks} chunks need {expected:,} bytes, and {size:,} are there: {whole} chunks are whole",
            "let llama-perplexity finish; it writes the number of chunks first",
        )
    if size > expected:
        raise place.invalid(f"{size - expected:,} bytes follow the last row: the head does not fit the file")
    return found


def storage_error(scale: Floats, minimum: Floats, vocabulary: int) -> Floats:
    """How far `scale * code + minimum` may be from the log-softmax of the writer's float32 logits, in nats, `[T]`.

    Rounding to a code costs half a scale; the writer's float32 arithmetic adds four roundings of the code and, in the
    minimum, roundings of a number of at most `16 + ln V` and of the sum of exponentials (each term within 18 float32
    roundings: the rounded argument of at most 16, and the exponential itself).
    """
    magnitude = np.abs(minimum) + _CLIP + np.log(vocabulary)
    return np.asarray(np.abs(scale) * _ROUNDING + _MINIMUM * (3 * magnitude + 18 + 2))


def read(opening: Opening) -> Found:
    """Rows of the file as requests, a chunk or a block of one each; `error` and `floor` bound what the storage lost."""
    path, place = opening.head.path, opening.place
    with path.open("rb") as file:
        found = header(place, file.read(_HEAD), opening.head.size)

    def requests() -> Iterator[Request]:
        tokens = np.memmap(path, dtype="<i4", mode="r", offset=_HEAD, shape=(found.chunks, found.context))
        step = block_rows(found.vocabulary)
        for chunk in range(found.chunks):
            for start in range(0, found.rows, step):
                stop = min(start + step, found.rows)
                yield _block(opening, found, np.array(tokens[chunk], dtype=np.int64), chunk, start, stop)

    carries = frozenset({"token_ids", "logprobs", "logits", "error", "floor"})
    notes = (
        f"{found.chunks} chunks of context {found.context}, {found.rows} rows each; 16-bit rows: error and floor are given",
    )
    return Found(carries, requests, {"vocabulary": found.vocabulary, "dtype": "16-bit codes"}, notes)


def _block(opening: Opening, found: Header, tokens: np.ndarray, chunk: int, start: int, stop: int) -> Request:
    width = found.size // 2
    offset = found.start + (chunk * found.rows + start) * found.size
    raw = np.fromfile(opening.head.path, dtype="<u2", count=(stop - start) * width, offset=offset)
    place = Place(str(opening.head.path), f"chunk {chunk}")
    if raw.size != (stop - start) * width:
        raise place.invalid("the file was cut short while it was read")
    rows = raw.reshape(stop - start, width)
    numbers = np.ascontiguousarray(rows[:, :4]).view("<f4").astype(np.float64)
    scale, minimum = numbers[:, 0], numbers[:, 1]
    bad = ~(np.isfinite(scale) & np.isfinite(minimum)) | (scale < 0)
    if np.any(scale[~bad] * _CODES > _CLIP * 1.001):
        raise place.invalid("a row spans more than 16 nats: its scale is not one that llama.cpp writes")
    codes = rows[:, 4 : 4 + found.vocabulary]
    logits = np.where(bad[:, None], np.nan, scale[:, None] * codes + minimum[:, None])
    ids = tokens[found.first + 1 + start : found.first + 1 + stop]
    outside = np.flatnonzero((ids < 0) | (ids >= found.vocabulary))
    if outside.size:
        raise place.value(f"token id {ids[outside[0]]} is outside the vocabulary of {found.vocabulary}")
    error = np.where(bad, np.inf, storage_error(scale, minimum, found.vocabulary))
    clipped = _CODES * scale >= _CLIP * _ALMOST
    floor = np.where(clipped & ~bad, minimum, -np.inf)
    picked = np.arange(stop - start)
    values = logits[picked, ids]
    status = np.full(stop - start, Status.VALUE, dtype=np.uint8)
    below = clipped & (codes[picked, ids] == 0)
    status[below], status[bad] = Status.PLACEHOLDER, Status.BROKEN
    values = np.where(status == Status.VALUE, values, np.nan)
    seen = {
        k: int(n) for k, n in (("clipped", np.count_nonzero(below & ~bad)), ("broken row", np.count_nonzero(bad))) if n
    }
    whole = start == 0 and stop == found.rows
    return Request(
        Counted(f"chunk-{chunk}" if whole else f"chunk-{chunk}:{start}"),
        status, np.ones(stop - start, dtype=bool), ids, None, values,
        logits=logits, error=error, floor=floor,
        fields={"chunk": chunk, "row": start, **({"placeholders": seen} if seen else {})}, place=str(place),
    )  # fmt: skip
