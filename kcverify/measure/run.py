"""Runs both sides of a pair over the data, checks their identity before any number, and hands on rows of logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from kcverify.diagnostics import InputError, input_error
from kcverify.executors.runs import interrupt_afterwards
from kcverify.measure.data import Request
from kcverify.measure.sides import FileSide, KernelSide, Side

_TARGET_ELEMENTS = 1 << 23  # logits of one batch and side: 32 MiB in float32
_MAX_BATCH = 16


@dataclass(frozen=True)
class Rows:
    """Logits of N positions of both sides, with what each row is.

    `reference`, `candidate`: `[N, V]`. `request_index[N]` points into `requests`; `request_ids[n]` is its name and
    `positions[n]` the index of the last token that row n has seen. `next_ids[N]` int64 is the token that follows in the
    data, -1 at the end of a request. `times` float64 `[N]` are seconds that a recorded side has of its rows.
    """

    reference: Tensor
    candidate: Tensor
    requests: tuple[Request, ...]
    request_index: Tensor
    request_ids: list[str]
    positions: Tensor
    next_ids: Tensor
    times: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """How far a run came: `complete` is false after Ctrl-C; counts are those that `on_rows` has taken in."""

    complete: bool
    requests: int
    rows: int


def default_batch(requests: Sequence[Request], vocabulary: int | None) -> int:
    """Requests per call that keep one batch of logits near 32 MiB: 1 to 16."""
    longest = max((len(request.token_ids) for request in requests), default=1)
    return max(1, min(_MAX_BATCH, _TARGET_ELEMENTS // (longest * (vocabulary or 1 << 15))))


def _batches(requests: Sequence[Request], batch: int) -> Iterator[tuple[int, tuple[Request, ...]]]:
    """Runs of at most `batch` neighbours of one length, each with the row it starts at: nothing is ever padded."""
    starts = [0, *accumulate(len(request.token_ids) for request in requests)]
    first = 0
    for i in range(1, len(requests) + 1):
        full = i - first == batch
        if i == len(requests) or full or len(requests[i].token_ids) != len(requests[first].token_ids):
            yield starts[first], tuple(requests[first:i])
            first = i


def check_lengths(reference: Side, candidate: Side, requests: Sequence[Request], limit: int | None = None) -> None:
    """Recorded sides have one row for each token of the data, of which `limit` kept so many requests.

    Raises InputError: `data_length`.
    """
    total = sum(len(request.token_ids) for request in requests)
    for role, side in (("reference", reference), ("candidate", candidate)):
        if isinstance(side, FileSide) and side.length != total:
            raise length_fault(f"{role} {side.name}", side.length, total, limit)


def length_fault(side: str, rows: int, positions: int, limit: int | None) -> InputError:
    """`data_length`; with the limit of the data that may have caused it."""
    cut = "leave `--limit` out, or export the rows of the requests that it keeps"
    told = "" if limit is None else f"`--limit {limit}` cuts the data, and files of logits are read whole: {cut}"
    return input_error("data_length", hint=told, side=side, rows=rows, positions=positions)


def _check_ids(side: FileSide, requests: Sequence[Request]) -> None:
    """The file, where it says so, scored the very tokens of the data."""
    if side.token_ids is None:
        return
    ids = torch.tensor([i for request in requests for i in request.token_ids])
    differ = (ids != side.token_ids).nonzero()
    if len(differ):
        row = int(differ[0])
        request, position = locate(requests, row)
        detail = (
            f"row {row} (request {request.request_id}, position {position}) is token {int(side.token_ids[row])} in "
            f"{side.name} and token {int(ids[row])} in the data"
        )
        raise input_error("token_identity", detail=detail)


def check_identity(reference: Side, candidate: Side, requests: Sequence[Request]) -> None:
    """Refuse a pair that is known not to be comparable before anything is computed.

    Raises InputError: `vocabulary_width`, `length_mismatch`, `data_length`, `token_identity`.
    """
    _check_width(reference.vocabulary, candidate.vocabulary)
    if isinstance(reference, FileSide) and isinstance(candidate, FileSide) and reference.length != candidate.length:
        raise input_error("length_mismatch", reference=reference.length, candidate=candidate.length)
    check_lengths(reference, candidate, requests)
    for side in (reference, candidate):
        if isinstance(side, FileSide):
            _check_ids(side, requests)


def _check_width(reference: int | None, candidate: int | None) -> None:
    if reference is not None and candidate is not None and reference != candidate:
        raise input_error("vocabulary_width", reference=reference, candidate=candidate)


def locate(requests: Sequence[Request], row: int) -> tuple[Request, int]:
    """Request and position of row `row`, counted through all requests. Raises IndexError beyond the last row."""
    for request in requests:
        if row < len(request.token_ids):
            return request, row
        row -= len(request.token_ids)
    raise IndexError(row)


def one_sided_ids(reference: Side, candidate: Side) -> list[str]:
    """A note where one recorded side has token ids and the other has none, so that their identity rests on the order alone."""
    files = [side for side in (reference, candidate) if isinstance(side, FileSide)]
    with_ids = [side.name for side in files if side.token_ids is not None]
    without = [side.name for side in files if side.token_ids is None]
    if not (with_ids and without):
        return []
    told = f"{without[0]} has no token ids, {with_ids[0]} has: that both scored the same tokens is assumed, not checked"
    return [told]


def told_requests(reference: Side, candidate: Side, window: int) -> list[Request] | None:
    """`file_requests` of a recorded side, of one that has token ids where any has; None where neither is recorded."""
    files = [side for side in (reference, candidate) if isinstance(side, FileSide)]
    chosen = next((side for side in files if side.token_ids is not None), files[0] if files else None)
    return None if chosen is None else file_requests(chosen, window)


def file_requests(side: FileSide, window: int) -> list[Request]:
    """Requests of `window` rows for files of logits that come without data; ids are the file's own, else all -1."""
    ids = side.token_ids.tolist() if side.token_ids is not None else [-1] * side.length
    return [
        Request(f"rows-{start}", tuple(ids[start : start + window]), fields={"offset": start})
        for start in range(0, side.length, window)
    ]


def side_rows(side: Side, ids: Tensor, start: int) -> Tensor:
    """Logits `[batch * seq, V]` of one call on `ids[batch, seq]`, whose first row is row `start` of a recorded file."""
    if isinstance(side, KernelSide):
        logits = side.logits(ids.clone())  # a function may write into its argument
        return logits.reshape(-1, logits.shape[-1])
    return side.rows(start, start + ids.numel())


def pair_rows(reference: Side, candidate: Side, requests: Sequence[Request], *, batch: int) -> Iterator[Rows]:
    """Rows of every position of every request, `batch` requests of one length at a time, in the order of the data.

    Raises InputError: those of `check_identity`, and of the sides; a width that only shows in the results is checked
    at every batch.
    """
    check_identity(reference, candidate, requests)
    for start, chosen in _batches(requests, batch):
        ids = torch.tensor([request.token_ids for request in chosen])
        first, second = side_rows(reference, ids, start), side_rows(candidate, ids, start)
        _check_width(first.shape[-1], second.shape[-1])
        count, length = ids.shape
        following = torch.cat((ids[:, 1:], ids.new_full((count, 1), -1)), 1)
        yield Rows(
            first.to(second.device) if isinstance(reference, FileSide) else first,
            second if isinstance(reference, FileSide) else second.to(first.device),
            chosen,
            torch.arange(count).repeat_interleave(length),
            [request.request_id for request in chosen for _ in range(length)],
            torch.arange(length).repeat(count),
            following.flatten(),
            _times(candidate, reference, start, ids.numel()),
        )


def _times(candidate: Side, reference: Side, start: int, count: int) -> Tensor | None:
    """Recorded times of `count` rows from `start`: the candidate's where it has any, else the reference's."""
    sides = (s for s in (candidate, reference) if isinstance(s, FileSide) and s.times is not None)
    found = next(sides, None)
    return None if found is None or found.times is None else found.times[start : start + count]


def run_pair(
    reference: Side,
    candidate: Side,
    requests: Sequence[Request],
    *,
    on_rows: Callable[[Rows], None],
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Feed every batch of rows to `on_rows`; `progress(requests done, requests in all)` follows each.

    Ctrl-C ends the run with `complete=False`: it never cuts into `on_rows`, so what was taken in stays valid.
    Raises InputError as `pair_rows`, and `option_invalid` for a batch below 1.
    """
    if batch is not None and batch < 1:
        raise input_error("option_invalid", option="--batch", reason=f"{batch} is not a positive number of requests")
    size = batch or default_batch(requests, reference.vocabulary or candidate.vocabulary)
    done = rows = 0
    try:
        for chunk in pair_rows(reference, candidate, requests, batch=size):
            with interrupt_afterwards():
                on_rows(chunk)
                done, rows = done + len(chunk.requests), rows + len(chunk.request_ids)
            if progress is not None:
                progress(done, len(requests))
    except KeyboardInterrupt:
        return Outcome(False, done, rows)
    return Outcome(True, done, rows)
