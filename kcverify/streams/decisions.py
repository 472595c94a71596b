"""What certificates decide: accept, reject or undecided; lists that grow until they decide; budgets of responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kcverify.streams.known import PADDING, Flags, Floats, Integers, identifiers, matrix
from kcverify.streams.partial import EXACT, Bounds, Error, common

REJECT, UNDECIDED, ACCEPT = -1, 0, 1


def decide(bounds: Bounds, delta: float) -> npt.NDArray[np.int8]:
    """`ACCEPT` where `upper + margin <= delta`, `REJECT` where `lower - margin > delta`, else `UNDECIDED`; int8 `[T]`."""
    accept, reject = bounds.upper + bounds.margin <= delta, bounds.lower - bounds.margin > delta
    return np.where(accept, ACCEPT, np.where(reject, REJECT, UNDECIDED)).astype(np.int8)


@dataclass(frozen=True)
class Adaptive:
    """Decision of each row (never `UNDECIDED`), and the list length that settled it, int64 `[T]`.

    `forced` marks rows that the longest list did not decide: they are rejected. `bounds` are those of the last list.
    """

    decision: npt.NDArray[np.int8]
    length: Integers
    forced: Flags
    lower: Floats
    upper: Floats


def adaptive(
    bounds_at: Callable[[int, Integers], Bounds], rows: int, delta: float, *, start: int = 8, largest: int
) -> Adaptive:
    """Double the list length from `start` until each row is accepted or rejected; undecided at `largest` is rejected.

    `bounds_at(k, index)` gives the bounds of the rows `index` from lists of length k. Raises ValueError for lengths
    that are not `1 <= start, largest`.
    """
    if start < 1 or largest < 1:
        raise ValueError(f"list lengths {start} and {largest}")
    decision, length = np.zeros(rows, np.int8), np.zeros(rows, np.int64)
    lower, upper = np.zeros(rows), np.ones(rows)
    k = min(start, largest)
    open_rows = np.arange(rows, dtype=np.int64)
    while open_rows.size:
        found = bounds_at(k, open_rows)
        verdict = decide(found, delta)
        decision[open_rows], length[open_rows] = verdict, k
        lower[open_rows] = np.maximum(lower[open_rows], found.low)
        upper[open_rows] = np.minimum(upper[open_rows], found.high)
        open_rows = open_rows[verdict == UNDECIDED]
        if k >= largest:
            break
        k = min(2 * k, largest)
    forced = decision == UNDECIDED
    return Adaptive(np.where(forced, REJECT, decision).astype(np.int8), length, forced, lower, upper)


def adaptive_common(
    p_logprobs: npt.ArrayLike,
    q_logprobs: npt.ArrayLike,
    delta: float,
    ids: npt.ArrayLike | None = None,
    *,
    start: int = 8,
    error: Error = EXACT,
) -> Adaptive:
    """`adaptive` on lists `[T, K]` that both sides scored: the first k tokens, as listed, then twice as many.

    Sets are nested, so that a longer list never gives a weaker bound. Raises ValueError for shapes that do not fit.
    """
    p, q = matrix(p_logprobs), matrix(q_logprobs)
    places = None if ids is None else identifiers(ids, p.shape)

    def bounds_at(k: int, index: Integers) -> Bounds:
        listed = None if places is None else places[index, :k]
        return common(p[index, :k], q[index, :k], listed, error=error)

    return adaptive(bounds_at, len(p), delta, start=start, largest=max(1, p.shape[1]))


@dataclass(frozen=True)
class Budget:
    """Sum of the upper bounds of each response, float64 `[B]`, and the largest over the batch and mean of these sums.

    Over responses of the candidate, `TV_H <= E sum_t U_t`: `mean` estimates that expectation from the batch, `largest`
    bounds nothing beyond the batch. Not capped at 1.
    """

    sums: Floats
    mean: float
    largest: float


def sequence_budget(upper: npt.ArrayLike, mask: npt.ArrayLike) -> Budget:
    """Sums of certified upper bounds `[B, T]` over the tokens of `mask` `[B, T]`; NaN under the mask counts as 1."""
    used = np.where(np.asarray(mask, bool), np.nan_to_num(np.asarray(upper, np.float64), nan=1.0), 0.0)
    sums = used.sum(axis=1) * (1 + 2.0**-52 * used.shape[1])
    return Budget(sums, float(sums.mean()) if len(sums) else 0.0, float(sums.max(initial=0.0)))


@dataclass(frozen=True)
class Stopped:
    """Tokens `[B, T]` before each response's stop, the stops `[B]` (T where none), and the sums that were spent `[B]`.

    `certified`: the stopped pair satisfies `TV_H <= budget`. That needs bounds that do not depend on the sampled token,
    and an update that is the reference's own from the stop on. Where it is False, `reason` says why.
    """

    keep: Flags
    stop: Integers
    spent: Floats
    certified: bool
    reason: str


def stopped(upper: npt.ArrayLike, mask: npt.ArrayLike, budget: float, *, prefix_only: bool) -> Stopped:
    """Stop each response at the first token that would take its running sum of upper bounds past `budget`.

    `upper` and `mask` are `[B, T]`; NaN under the mask counts as 1. `prefix_only` is that of the bounds. Raises
    ValueError for a budget below 0.
    """
    if not budget >= 0:
        raise ValueError(f"a budget is at least 0: {budget}")
    inside = np.asarray(mask, bool)
    used = np.where(inside, np.nan_to_num(np.asarray(upper, np.float64), nan=1.0), 0.0)
    length = used.shape[1]
    past = np.cumsum(used, axis=1) * (1 + 2.0**-52 * length) > budget
    stop = np.where(past.any(axis=1), past.argmax(axis=1), length).astype(np.int64)
    before = np.arange(length)[None, :] < stop[:, None]
    spent = np.where(before, used, 0.0).sum(axis=1)
    reason = (
        "" if prefix_only else "the bounds depend on the sampled token, so that the stop is chosen by what was sampled"
    )
    return Stopped(before & inside, stop, spent, prefix_only, reason)


def padded(lists: list[list[int]], values: list[list[float]]) -> tuple[Integers, Floats]:
    """Lists of different length as `[T, K]`: ids with -1, log-probabilities with NaN. Raises ValueError."""
    if [len(row) for row in lists] != [len(row) for row in values]:
        raise ValueError("ids and log-probabilities have different lengths")
    width = max((len(row) for row in lists), default=0)
    ids, out = np.full((len(lists), width), PADDING, np.int64), np.full((len(lists), width), np.nan)
    for i, (row, value) in enumerate(zip(lists, values, strict=True)):
        ids[i, : len(row)], out[i, : len(row)] = row, value
    return ids, out
