"""Checks of rows: widths, rows that are no distribution or do not sum to one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcverify.readers.stream import Floats
from kcverify.streams.adding import Largest, Smallest, part
from kcverify.streams.align import Matching, Pair
from kcverify.streams.bearing import ROWS
from kcverify.streams.finding import ROLE, SIDES, Finding, First, Observer, Setting, show
from kcverify.streams.rows import IMPOSSIBLE, Tops, Whole, positions

TOLERANCE = 1e-2
"""How far the logarithm of a row's sum may be from 0: bfloat16 log-probabilities miss it by less."""


class NoDistribution(Observer):
    """Rows that ban every token."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = {side: First() for side in SIDES}
        self.rows = 0

    def whole(self, rows: Whole) -> None:
        """Count them."""
        self.rows += len(rows.at)
        for side, empty in zip(SIDES, rows.empty, strict=True):
            at = np.flatnonzero(empty)
            if len(at):
                self.seen[side].add(len(at), rows.pair.place(int(rows.at[at[0]])))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side."""
        for side in SIDES:
            seen = self.seen[side]
            if seen.count:
                yield Finding(
                    "no_distribution",
                    {"count": seen.count, "rows": self.rows, "side": ROLE[side], "where": seen.where},
                    f"{ROLE[side]} bans every token",
                    {"side": ROLE[side], "count": seen.count, "rows": self.rows, "first": seen.place},
                    {ROWS: seen.count},
                )


@part
class Tail:
    """The columns of a side's rows, counted from the last, that hold one and the same constant in every row.

    `run` is their number, minus one before any row; `banned` the first column that holds minus infinity in any row.
    """

    def __init__(self) -> None:
        self.run, self.constant, self.banned = -1, 0.0, Smallest()

    def see(self, block: Floats, banned: bool) -> None:
        """See rows `[n, V]`, n at least 1; `banned` says whether minus infinity is among them."""
        other = Tail()
        other.constant = float(block[0, -1])
        other.run = _run(block, other.constant)
        if banned:
            columns = np.flatnonzero((block == -np.inf).any(0))
            other.banned.add(float(columns[0]) if len(columns) else np.inf)
        self.merge(other)

    def merge(self, other: Tail) -> None:
        """See the rows of another."""
        self.banned.merge(other.banned)
        if other.run < 0:
            return
        if self.run < 0:
            self.run, self.constant = other.run, other.constant
            return
        self.run = min(self.run, other.run) if self.constant == other.constant else 0
        self.constant = self.constant if self.run else 0.0


def _run(block: Floats, constant: float) -> int:
    """Columns at the end of the rows that hold a constant."""
    run, width = 0, block.shape[1]
    for size in (1, 8, 64, 512, width):
        part = (block[:, max(0, width - run - size) : width - run] == constant).all(0)[::-1]
        same = int(np.argmin(np.append(part, False)))
        run += same
        if same < size:
            break
    return run


class Width(Observer):
    """Vocabularies of different width, and a padded head inside one width."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.widths: set[tuple[int, int]] = set()
        self.extra = {side: (Smallest(), Largest()) for side in SIDES}
        self.mass = {side: Largest(0.0) for side in SIDES}
        self.tail = {side: Tail() for side in SIDES}
        self.highest = Largest(-1.0)
        self.rows = 0

    def pair(self, pair: Pair) -> None:
        """Compare the widths; look at what the wider side's extra columns hold."""
        if pair.left.logits is None or pair.right.logits is None:
            return
        widths = (int(pair.left.logits.shape[1]), int(pair.right.logits.shape[1]))
        at = positions(pair)
        if not len(at):
            return
        self.widths.add(widths)
        for ids, where in ((pair.left.token_ids, pair.left_at), (pair.right.token_ids, pair.right_at)):
            if ids is not None:
                self.highest.add(float(ids[where[at]].max()))
        if widths[0] != widths[1]:
            side = SIDES[int(widths[1] > widths[0])]
            logits, where = (pair.left.logits, pair.left_at) if side == "left" else (pair.right.logits, pair.right_at)
            block = np.asarray(logits[where[at[:64]]], dtype=np.float64)
            extra = block[:, min(widths) :]
            self.extra[side][0].add(float(np.nanmin(extra)))
            self.extra[side][1].add(float(np.nanmax(extra)))
            with np.errstate(invalid="ignore"):
                p = np.exp(block - block.max(1, keepdims=True))
                share = p[:, min(widths) :].sum(1) / p.sum(1)
            self.mass[side].add(float(np.nanmax(share)) if len(share) else 0.0)

    def whole(self, rows: Whole) -> None:
        """Keep the columns that have been one and the same constant so far, counted from the last."""
        if rows.widths[0] != rows.widths[1]:
            return
        for side, block, kept in zip(SIDES, (rows.left, rows.right), rows.lowest, strict=True):
            self.tail[side].see(block, not rows.good.all() or bool((kept == -np.inf).any()))
        self.rows += len(rows.at)

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one."""
        declared = [self.setting.side(side).value("vocabulary") for side in SIDES]
        differing = sorted(w for w in self.widths if w[0] != w[1])
        a, b = (differing or sorted(self.widths) or [(0, 0)])[0]
        if not self.widths and all(isinstance(v, int) for v in declared):
            a, b = declared
        if a != b:
            yield self._different(a, b)
        elif len(self.widths) == 1 and self.rows >= 2:
            yield from self._padded(a)

    def _different(self, a: int, b: int) -> Finding:
        side = SIDES[int(b > a)]
        low, high = (end.value for end in self.extra[side])
        extra, mass = [low, high] if low <= high else [], self.mass[side].value
        held = f"between {show(low)} and {show(high)}" if extra else "unknown values"
        cause = f"{ROLE[side]} has {abs(a - b)} more columns; they hold {held} and up to {show(mass)} of a row's mass"
        if extra and mass == 0.0:
            cause += ": padding without mass, which can be sliced off"
        used = max(a, b) if mass > 0 or not extra else min(a, b)
        return Finding(
            "vocabulary_width",
            {"reference": a, "candidate": b},
            cause + self._between(used),
            {
                "reference": a, "candidate": b, "extra_values": extra, "extra_mass": mass,
                "vocabulary_interval": self._interval(used),
            },
        )  # fmt: skip

    def _interval(self, most: int) -> list[int]:
        """The fewest tokens that the ids seen need, and the most that the rows leave room for."""
        return [min(most, max(1, int(self.highest.value) + 1)), most]

    def _between(self, most: int) -> str:
        low, high = self._interval(most)
        return f"; the vocabulary has {low} to {high} tokens, by the ids seen and the columns that are used"

    def _padded(self, width: int) -> Iterator[Finding]:
        left, right = (t.run for t in self.tail.values())
        side, run, other = ("left", left, right) if left > right else ("right", right, left)
        if run < 2 or run in (width, other):
            return
        value = self.tail[side].constant
        if value == -np.inf and self.tail[side].banned.value < width - run:
            return  # a truncated row bans rare tokens anywhere, at its end too
        sizes = (width - left, width - right)
        yield Finding(
            "vocabulary_width",
            {"reference": sizes[0], "candidate": sizes[1]},
            f"the last {run} of {width} columns of {ROLE[side]} hold {value:g} in every row: a padded head"
            + self._between(min(sizes)),
            {
                "reference": sizes[0], "candidate": sizes[1], "width": width, "constant": value, "columns": run,
                "vocabulary_interval": self._interval(min(sizes)),
            },
        )  # fmt: skip


class Normalised(Observer):
    """Rows and lists of log-probabilities whose sum is not 1.

    Rows count as log-probabilities where the stream declares `rows: logprobs`, where they are lists of the whole
    vocabulary, or where no entry is above 0, the largest is near 0, and the other side's rows do sum to 1.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.sums = {side: (Smallest(), Largest()) for side in SIDES}
        self.wrong, self.rows = dict.fromkeys(SIDES, 0), dict.fromkeys(SIDES, 0)
        self.highest = {side: Largest() for side in SIDES}
        self.lists = {side: First() for side in SIDES}
        self.most = {side: Largest(0.0) for side in SIDES}
        self.least = {side: Smallest() for side in SIDES}

    def whole(self, rows: Whole) -> None:
        """Keep the range of the rows' sums."""
        for side, top, kept in zip(SIDES, rows.highest, rows.normalisers, strict=True):
            if len(kept):
                self.rows[side] += len(kept)
                self.wrong[side] += int((np.abs(kept) > TOLERANCE).sum())
                self.sums[side][0].add(float(kept.min()))
                self.sums[side][1].add(float(kept.max()))
                self.highest[side].add(float(top[rows.good].max()))

    def tops(self, rows: Tops) -> None:
        """Lists that hold more than the whole mass, or the whole vocabulary and less."""
        for side, ids, logprobs in (("left", rows.left_ids, rows.left), ("right", rows.right_ids, rows.right)):
            if side == rows.whole_side:
                continue
            mass = np.where(ids >= 0, np.exp(np.minimum(logprobs, 50.0)), 0.0).sum(1)
            wrong = mass > 1 + TOLERANCE
            if rows.width is not None:
                wrong |= ((ids >= 0).sum(1) == rows.width) & (mass < 1 - TOLERANCE)
            at = np.flatnonzero(wrong)
            if len(at):
                self.lists[side].add(len(at), rows.pair.place(int(rows.at[at[0]])))
                self.most[side].add(float(mass[at].max()))
                self.least[side].add(float(mass[at].min()))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side."""
        for side, other in zip(SIDES, SIDES[::-1], strict=True):
            if self.lists[side].count:
                yield self._finding(side, self.least[side].value, self.most[side].value, self.lists[side].count)
            elif self._are_logprobs(side, other) and self.wrong[side]:
                low, high = (
                    float(np.exp(np.clip(v, IMPOSSIBLE, 700.0))) for v in (end.value for end in self.sums[side])
                )
                yield self._finding(side, low, high, self.wrong[side])

    def _are_logprobs(self, side: str, other: str) -> bool:
        if not self.rows[side]:
            return False
        if self.setting.side(side).value("rows") == "logprobs":
            return True
        normal = self.rows[other] > 0 and self.wrong[other] == 0
        return normal and -1.0 < self.highest[side].value < 0.0

    def _finding(self, side: str, low: float, high: float, count: int) -> Finding:
        return Finding(
            "not_normalised",
            {"side": ROLE[side], "lowest": show(low), "highest": show(high)},
            f"{ROLE[side]} holds numbers that are no distribution: scaled log-probabilities, or logits",
            {"side": ROLE[side], "lowest_sum": low, "highest_sum": high, "rows": count},
        )
