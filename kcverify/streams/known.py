"""Rows of token lists: repeated ids merged, two lists laid side by side, what is not a probability found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

PADDING = -1
"""Id of an empty place in a list."""


def slack(terms: int) -> float:
    """More than the rounding error of a sum of `terms` probabilities, each the exponential of a double.

    An exponential is off by a few units in the last place of itself, a sum of terms that add up to about 1 by less
    than one unit a term; 2^-52 a term and 2^-47 in all cover both.
    """
    return (terms + 32) * 2.0**-52


def matrix(values: npt.ArrayLike) -> Floats:
    """`[T, K]` float64; a vector becomes one column. Raises ValueError for other shapes."""
    array = np.asarray(values, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise ValueError(f"log-probabilities have shape {array.shape}, expected [T, K]")
    return array


def identifiers(values: npt.ArrayLike, shape: tuple[int, ...]) -> Integers:
    """Token ids int64 of the given shape. Raises ValueError."""
    array = np.asarray(values)
    array = array[:, None] if array.ndim == 1 else array
    if array.shape != shape or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"token ids have shape {array.shape} and type {array.dtype}, expected integers {shape}")
    return array.astype(np.int64)


@dataclass(frozen=True)
class Known:
    """Tokens of which something is known: ids `[T, K]` (-1: empty), log-probabilities of both sides (NaN: unknown).

    `conflict` `[T]` marks rows in which one id came with two values that differ by more than `tolerance`.
    """

    ids: Integers
    p: Floats
    q: Floats
    conflict: Flags


def merge(ids: Integers, p: Floats, q: Floats, tolerance: tuple[float, float]) -> Known:
    """Each id once a row; a value that is NaN in one place and a number in another is the number.

    `tolerance` is how far two values of one token may be apart, nats, for each side.
    """
    order = np.argsort(ids, axis=1, kind="stable")
    ids = np.take_along_axis(ids, order, 1)
    empty = ids < 0
    p, q = (np.where(empty, np.nan, np.take_along_axis(side, order, 1)) for side in (p, q))
    conflict = np.zeros(ids.shape[0], dtype=bool)
    repeated = (ids[:, 1:] == ids[:, :-1]) & ~empty[:, 1:]
    for j in range(ids.shape[1] - 1, 0, -1) if repeated.any() else ():
        same = repeated[:, j - 1]
        if not same.any():
            continue
        for side, allowed in ((p, tolerance[0]), (q, tolerance[1])):
            first, second = side[:, j - 1], side[:, j]
            with np.errstate(invalid="ignore"):
                apart = (first != second) & ~(np.abs(first - second) <= allowed)
            conflict |= same & ~np.isnan(first) & ~np.isnan(second) & apart
            side[:, j - 1] = np.where(same & np.isnan(first), second, first)
            side[same, j] = np.nan
        ids[same, j] = PADDING
    return Known(ids, p, q, conflict)


def beside(p_ids: Integers, p: Floats, q_ids: Integers, q: Floats, tolerance: tuple[float, float]) -> Known:
    """Two lists of each row as one, token by token."""
    unknown_q, unknown_p = np.full(p.shape, np.nan), np.full(q.shape, np.nan)
    return merge(
        np.concatenate((p_ids, q_ids), 1),
        np.concatenate((p, unknown_p), 1),
        np.concatenate((unknown_q, q), 1),
        tolerance,
    )


def appended(ids: Integers, values: Floats, extra_ids: npt.ArrayLike, extra: npt.ArrayLike) -> tuple[Integers, Floats]:
    """A list with one more token a row, which may be in it already."""
    column = matrix(extra)
    return (
        np.concatenate((ids, identifiers(extra_ids, column.shape)), 1),
        np.concatenate((values, column), 1),
    )


def improper(logprobs: Floats, error: float, spare: float) -> Flags:
    """Rows `[T]` that no distribution can have: a value above 0, plus infinity, or masses that add up to more than 1.

    `error` is how far each value may be off, nats; `spare` the rounding of the sum.
    """
    with np.errstate(over="ignore"):
        mass = np.nansum(np.exp(np.minimum(logprobs, 1.0)), axis=1)
    out: Flags = (logprobs > error).any(axis=1) | (mass * np.exp(-error) > 1.0 + spare)
    return out
