"""Rows of one side that repeat bit for bit where the other side's rows are of another context altogether."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from kcverify.readers.stream import Floats
from kcverify.streams.adding import First, merged, part
from kcverify.streams.align import Matching
from kcverify.streams.finding import ROLE, SIDES, Finding, Observer, Setting
from kcverify.streams.rows import Tops, Whole

Singles = npt.NDArray[np.float32]

TELLING = 3
"""Tokens that a row must have: of one that a sampler cut down to a single token there are many."""

REMEMBERED = 5_000
"""Rows that are remembered, and no more than so many of one request."""

_COLUMNS = 16
_DIGEST = 8
_SEED = 20


@part
class Ranges:
    """What the other side had for rows that are the same: the range of some columns. Different: a column more than a nat."""

    def __init__(self, low: Singles, high: Singles) -> None:
        self.low, self.high = low, high

    def merge(self, other: Ranges) -> None:
        """Another row's range."""
        self.low, self.high = np.fmin(self.low, other.low), np.fmax(self.high, other.high)

    @property
    def differs(self) -> bool:
        """Whether these are no roundings of one row."""
        with np.errstate(invalid="ignore"):
            return bool((self.high - self.low > 1.0).any())


@part
class Shared:
    """What the other side had for lists that are the same: their common tokens. Different: less than half of the shortest."""

    def __init__(self, ids: set[int], shortest: int) -> None:
        self.ids, self.shortest = ids, shortest

    def merge(self, other: Shared) -> None:
        """Another row's list."""
        self.ids, self.shortest = self.ids & other.ids, min(self.shortest, other.shortest)

    @property
    def differs(self) -> bool:
        """Whether these are no roundings of one list."""
        return 2 * len(self.ids) < self.shortest


Mark = Ranges | Shared


@part
class Groups:
    """Remembered rows of one request: by side and digest, how many, where first, and what the other side had."""

    def __init__(self) -> None:
        self.rows = 0
        self.left: dict[str, tuple[First, Any]] = {}
        self.right: dict[str, tuple[First, Any]] = {}

    def merge(self, other: Groups) -> None:
        """More rows of the same request."""
        self.rows += other.rows
        self.left, self.right = merged(self.left, other.left), merged(self.right, other.right)

    def see(self, side: str, digest: str, place: dict[str, Any], mark: Mark) -> None:
        """One row of a side."""
        known: dict[str, tuple[First, Any]] = getattr(self, side)
        if digest not in known:
            known[digest] = (First(), mark)
        else:
            known[digest][1].merge(mark)
        known[digest][0].add(1, place)


class RepeatedRows(Observer):
    """Rows of one side that repeat bit for bit where the other side's rows are of another context altogether.

    Remembered are the rows of a sample of requests: those whose ids have the smallest digests, as many as are needed for
    `REMEMBERED` rows. Which these are depends on the ids alone, and not on the order in which requests are met.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.sample: dict[str, Groups] = {}

    def merge(self, other: RepeatedRows) -> None:
        """Both samples, cut to size."""
        super().merge(other)
        self._cut()

    def _of(self, request: str) -> Groups | None:
        """Where rows of a request are remembered; None where they are not."""
        key = _digest(request.encode("utf-8", "surrogatepass"))
        if key in self.sample:
            return self.sample[key]
        if sum(g.rows for k, g in self.sample.items() if k < key) >= REMEMBERED:
            return None
        self.sample[key] = Groups()
        return self.sample[key]

    def _cut(self) -> None:
        """Forget requests whose predecessors have rows enough."""
        total = 0
        for key in sorted(self.sample):
            if total >= REMEMBERED:
                del self.sample[key]
            else:
                total += self.sample[key].rows

    def whole(self, rows: Whole) -> None:
        """Remember rows by their digest, and the other side's by a few of its columns."""
        columns = np.linspace(0, rows.left.shape[1] - 1, min(_COLUMNS, rows.left.shape[1])).astype(int)

        def seen() -> Iterator[tuple[int, Sequence[str], Sequence[Mark]]]:
            tops = [top[rows.good] for top in rows.highest]
            marks = [x[:, columns] - top[:, None] for x, top in zip(rows.kept, tops, strict=True)]
            marks = [np.where(np.isfinite(m), m, np.nan).astype(np.float32) for m in marks]
            prints = [_fingerprints(x) for x in rows.kept]
            many = np.full(len(rows.places), rows.left.shape[1] >= TELLING)
            for x, banned in zip(rows.kept, rows.banned, strict=True):
                many[banned] &= np.isfinite(x[banned]).sum(1) >= TELLING
            for i in np.flatnonzero(many):
                yield int(rows.places[i]), [p[i] for p in prints], [Ranges(m[i], m[i]) for m in marks]

        self._remember(rows.pair.request_id, seen())

    def tops(self, rows: Tops) -> None:
        """Remember lists by their digest; lists of one or two entries say too little."""
        if rows.whole_side is not None:
            return

        def seen() -> Iterator[tuple[int, Sequence[str], Sequence[Mark]]]:
            many = ((rows.left_ids >= 0).sum(1) >= TELLING) & ((rows.right_ids >= 0).sum(1) >= TELLING)
            for i in np.flatnonzero(many):
                lists = (rows.left_ids[i], rows.right_ids[i])
                both = zip(lists, (rows.left, rows.right), strict=True)
                digests = [_digest(a.tobytes() + b[i].tobytes()) for a, b in both]
                ids = [{int(k) for k in a if k >= 0} for a in lists]
                yield int(rows.at[i]), digests, [Shared(x, len(x)) for x in ids]

        self._remember(rows.pair.request_id, seen())

    def _remember(self, request: str, rows: Iterator[tuple[int, Sequence[str], Sequence[Mark]]]) -> None:
        groups = self._of(request)
        if groups is None:
            return
        for at, content, marks in rows:
            if groups.rows >= REMEMBERED:
                break
            groups.rows += 1
            for side, row, theirs in zip(SIDES, content, marks[::-1], strict=True):
                groups.see(side, row, {"request": request, "position": at}, theirs)
        self._cut()

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side with at least three repetitions in at least a hundredth of the remembered rows."""
        rows = sum(groups.rows for groups in self.sample.values())
        for side in SIDES:
            seen = First()
            for first, mark in self._together(side).values():
                if mark.differs and first.place is not None:
                    seen.add(first.count - 1, first.place)
            if seen.count >= max(3, rows / 100):
                yield Finding(
                    "repeated_rows",
                    {"count": seen.count, "rows": rows, "side": ROLE[side]},
                    f"{ROLE[side]} wrote the same row for different contexts",
                    {"side": ROLE[side], "count": seen.count, "rows": rows, "first": seen.place},
                )

    def _together(self, side: str) -> dict[str, tuple[First, Any]]:
        """The groups of all remembered requests, by digest; the parts themselves stay as they are."""
        out: dict[str, tuple[First, Any]] = {}
        for key in sorted(self.sample):
            known: dict[str, tuple[First, Any]] = getattr(self.sample[key], side)
            for digest, (first, mark) in known.items():
                if digest not in out:
                    out[digest] = (First(), type(mark)(*vars(mark).values()))
                else:
                    out[digest][1].merge(mark)
                out[digest][0].merge(first)
        return out


def _fingerprints(rows: Floats) -> list[str]:
    """64 bits of each row's bits: a sum, modulo 2^64, of odd multiples that are the same for all rows of a width."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    bits = bits ^ (bits >> np.uint64(32))  # the lower half of a float32 that was widened is empty
    return [f"{n:016x}" for n in np.einsum("ij,j->i", bits, _factors(rows.shape[1])).tolist()]


@lru_cache(maxsize=4)
def _factors(width: int) -> npt.NDArray[np.uint64]:
    """Odd numbers, one a column."""
    drawn = np.random.default_rng(_SEED).integers(0, 1 << 63, width, dtype=np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST).hexdigest()
