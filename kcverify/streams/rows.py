"""The rows of a pair that both sides give as a distribution: whole rows, lists of the most probable, or one of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from kcverify.readers.stream import Flags, Floats, Integers, Request
from kcverify.streams.align import Pair

CELLS = 1 << 18
"""Numbers of one side that are in memory as float64 at a time."""

IMPOSSIBLE = -700.0
"""A log-probability below this is zero in float64: the token is banned, whether or not the file writes -inf."""


@dataclass(frozen=True)
class Whole:
    """Rows of logits of both sides, `[n, V]` float64 with V the narrower width, at positions `at` of the pair.

    `good` marks the rows that are a distribution on both sides; log-probabilities of others mean nothing.
    """

    pair: Pair
    at: Integers
    left: Floats
    right: Floats
    widths: tuple[int, int]

    @cached_property
    def highest(self) -> tuple[Floats, Floats]:
        """The largest logit of each row, NaN where one is, by side."""
        return self.left.max(1), self.right.max(1)

    @cached_property
    def broken(self) -> tuple[Flags, Flags]:
        """Rows with NaN or plus infinity, by side."""
        a, b = (np.isnan(top) | (top == np.inf) for top in self.highest)
        return a, b

    @cached_property
    def empty(self) -> tuple[Flags, Flags]:
        """Rows in which every entry is minus infinity, by side."""
        a, b = (top == -np.inf for top in self.highest)
        return a, b

    @cached_property
    def good(self) -> Flags:
        """Rows that are a distribution on both sides."""
        return np.asarray(np.isfinite(self.highest[0]) & np.isfinite(self.highest[1]))

    @cached_property
    def kept(self) -> tuple[Floats, Floats]:
        """The logits of the good rows, by side."""
        return (self.left, self.right) if self.good.all() else (self.left[self.good], self.right[self.good])

    @cached_property
    def _shares(self) -> tuple[tuple[Floats, Floats, Floats], tuple[Floats, Floats, Floats]]:
        """By side: log-probabilities and probabilities of the good rows, and `log sum exp` of them over the largest."""
        left, right = (_shares(rows, top[self.good]) for rows, top in zip(self.kept, self.highest, strict=True))
        return left, right

    @cached_property
    def normalisers(self) -> tuple[Floats, Floats]:
        """`log sum exp` of the good rows, by side."""
        a, b = (top[self.good] + own[2] for top, own in zip(self.highest, self._shares, strict=True))
        return a, b

    @property
    def logprobs(self) -> tuple[Floats, Floats]:
        """Normalised log-probabilities of the good rows, `[good, V]`, by side."""
        return self._shares[0][0], self._shares[1][0]

    @property
    def probabilities(self) -> tuple[Floats, Floats]:
        """Probabilities of the good rows, `[good, V]`, by side."""
        return self._shares[0][1], self._shares[1][1]

    @property
    def peaks(self) -> tuple[Floats, Floats]:
        """The largest log-probability of each good row, by side."""
        return -self._shares[0][2], -self._shares[1][2]

    @cached_property
    def lowest(self) -> tuple[Floats, Floats]:
        """The smallest log-probability of each good row, by side."""
        return self.logprobs[0].min(1), self.logprobs[1].min(1)

    @cached_property
    def banned(self) -> tuple[Flags, Flags]:
        """Good rows with a token of probability zero, by side."""
        return self.lowest[0] <= IMPOSSIBLE, self.lowest[1] <= IMPOSSIBLE

    @cached_property
    def difference(self) -> Floats:
        """Reference minus candidate, log-probabilities of the good rows, `[good, V]`."""
        return self.logprobs[0] - self.logprobs[1]

    @property
    def places(self) -> Integers:
        """Positions of the good rows."""
        return self.at[self.good]


@dataclass(frozen=True)
class Tops:
    """Lists of both sides at positions `at`: ids `[n, K]` (-1 for none), log-probabilities, each id once.

    `width` is the vocabulary's size where it is declared or known from a whole row. `broken` are positions of whole rows
    that are no distribution; they are in no list.
    """

    pair: Pair
    at: Integers
    left_ids: Integers
    left: Floats
    right_ids: Integers
    right: Floats
    width: int | None = None
    whole_side: str | None = None
    broken: tuple[int, ...] = ()

    @cached_property
    def common(self) -> tuple[Integers, Floats, Floats]:
        """Row, left and right log-probability of every token that both sides list."""
        same = (self.left_ids[:, :, None] == self.right_ids[:, None, :]) & (self.left_ids >= 0)[:, :, None]
        row, i, j = np.nonzero(same)
        return row, self.left[row, i], self.right[row, j]


def missing_mass(rows: Whole, cut_right: bool, power: float) -> Floats:
    """Mass `[good]` of one side, its logits times `power`, on tokens that the other side bans."""
    other, own = rows.logprobs if cut_right else rows.logprobs[::-1]
    scaled = np.where(np.isneginf(other), -np.inf, other * power)
    top = scaled.max(1, keepdims=True)
    p = np.exp(scaled - top)
    out: Floats = np.where(own <= IMPOSSIBLE, p, 0.0).sum(1) / p.sum(1)
    return out


_KNOWN = 1 << 18
"""Texts whose numbers are kept."""


class Names:
    """Numbers for tokens that a format gives as texts only: a digest of the text, the same in every process."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text, from 0 up."""
        found = self.known.get(text)
        if found is None:
            found = int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1
            if len(self.known) < _KNOWN:
                self.known[text] = found
        return found

    def ids(self, lists: tuple[tuple[str, ...], ...], width: int) -> Integers:
        """Numbers `[T, width]`, -1 where a list is shorter."""
        out = np.full((len(lists), width), -1, dtype=np.int64)
        for t, row in enumerate(lists):
            out[t, : len(row)] = [self.number(text) for text in row]
        return out


def positions(pair: Pair) -> Integers:
    """Positions whose rows are comparable: counted on both sides, contexts the same."""
    last = len(pair.left_at) if pair.diverged is None else min(pair.diverged + 1, len(pair.left_at))
    out: Integers = np.flatnonzero(pair.mask[:last])
    return out


def whole_rows(pair: Pair) -> Iterator[Whole]:
    """Rows where both sides have logits, in blocks."""
    if pair.left.logits is None or pair.right.logits is None:
        return
    widths = (int(pair.left.logits.shape[1]), int(pair.right.logits.shape[1]))
    at, narrow = positions(pair), min(widths)
    step = max(1, CELLS // max(1, narrow))
    for start in range(0, len(at), step):
        block = at[start : start + step]
        a = _chosen(pair.left.logits, pair.left_at[block], narrow)
        b = _chosen(pair.right.logits, pair.right_at[block], narrow)
        yield Whole(pair, block, a, b, widths)


def _chosen(rows: npt.NDArray[Any], at: Integers, width: int) -> Floats:
    """Some rows as float64, the first columns of them; rows in a row are not gathered first."""
    inside = len(at) and int(at[-1]) - int(at[0]) + 1 == len(at) and bool((np.diff(at) == 1).all())
    chosen = rows[int(at[0]) : int(at[-1]) + 1] if inside else rows[at]
    return np.ascontiguousarray(chosen[:, :width], dtype=np.float64)


def _shares(rows: Floats, top: Floats) -> tuple[Floats, Floats, Floats]:
    """Log-probabilities and probabilities of rows whose largest logits are given, and what their sums are over those."""
    logprobs = rows - top[:, None]
    probabilities = np.exp(logprobs)
    total = probabilities.sum(1)
    probabilities /= total[:, None]
    over: Floats = np.log(total)
    logprobs -= over[:, None]
    return logprobs, probabilities, over


def dots(x: Floats, y: Floats) -> Floats:
    """The sum of products of each row, `[n]`; unlike BLAS in one order, whatever the number of threads."""
    out: Floats = np.einsum("ij,ij->i", x, y)
    return out


def dot(x: Floats, y: Floats) -> float:
    """The sum of products of two vectors, in one order as well."""
    return float(np.einsum("i,i->", x, y))


def lists_of(request: Request, names: Names | None) -> tuple[Integers, Floats, int] | None:
    """Ids, log-probabilities and repetitions of a request's lists, each id once; None where it has none.

    With `names`, tokens are told by their texts.
    """
    if request.top_logprobs is None:
        return None
    logprobs = np.asarray(request.top_logprobs, dtype=np.float64)
    if names is None:
        if request.top_ids is None:
            return None
        ids = np.where(np.isnan(logprobs), -1, request.top_ids)
    else:
        if request.top_tokens is None:
            return None
        ids = names.ids(request.top_tokens, logprobs.shape[1])
    return distinct(ids, np.where(ids >= 0, logprobs, np.nan))


def top_rows(pair: Pair, names: Names, width: int | None) -> Iterator[Tops]:
    """Rows where both sides have lists of the same kind of token, in blocks."""
    by_id = pair.left.top_ids is not None and pair.right.top_ids is not None
    left, right = (lists_of(r, None if by_id else names) for r in (pair.left, pair.right))
    if left is None or right is None:
        return
    at = positions(pair)
    at = at[(left[0][pair.left_at[at]] >= 0).any(1) & (right[0][pair.right_at[at]] >= 0).any(1)]
    step = max(1, CELLS // max(1, left[0].shape[1] * right[0].shape[1]))
    for start in range(0, len(at), step):
        block = at[start : start + step]
        a, b = pair.left_at[block], pair.right_at[block]
        yield Tops(pair, block, left[0][a], left[1][a], right[0][b], right[1][b], width)


def mixed_rows(pair: Pair) -> Iterator[tuple[Tops, Floats, str]]:
    """Rows where one side has logits and the other lists of ids: lists, the whole rows' log-probabilities, which side.

    The list of the whole side is what it has for the other side's tokens.
    """
    sides = {"left": (pair.left, pair.left_at, pair.right, pair.right_at)}
    sides["right"] = (pair.right, pair.right_at, pair.left, pair.left_at)
    for name, (whole, whole_at, listed, listed_at) in sides.items():
        if whole.logits is None or listed.logits is not None or listed.top_ids is None:
            continue
        lists = lists_of(listed, None)
        if lists is None:
            continue
        width = int(whole.logits.shape[1])
        at = positions(pair)
        at = at[(lists[0][listed_at[at]] >= 0).any(1)]
        step = max(1, CELLS // max(1, width))
        for start in range(0, len(at), step):
            block = at[start : start + step]
            raw = _chosen(whole.logits, whole_at[block], width)
            top = raw.max(1)
            keep = np.isfinite(top)
            broken = tuple(int(i) for i in block[~keep])
            block = block[keep]
            logprobs = _shares(raw[keep], top[keep])[0]
            ids, values = lists[0][listed_at[block]], lists[1][listed_at[block]]
            ids = np.where(ids < width, ids, -1)
            own = np.where(ids >= 0, np.take_along_axis(logprobs, np.maximum(ids, 0), 1), np.nan)
            a, b = (own, values) if name == "left" else (values, own)
            yield Tops(pair, block, ids, a, ids, b, width, name, broken), logprobs, name


def distinct(ids: Integers, logprobs: Floats) -> tuple[Integers, Floats, int]:
    """The lists with repeated ids of a row blanked after their first occurrence, and how many were blanked."""
    if ids.shape[1] < 2:
        return ids, logprobs, 0
    earlier = np.tril(ids[:, :, None] == ids[:, None, :], k=-1).any(2) & (ids >= 0)
    count = int(earlier.sum())
    if not count:
        return ids, logprobs, 0
    return np.where(earlier, -1, ids), np.where(earlier, np.nan, logprobs), count
