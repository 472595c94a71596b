"""Checks of rows: widths, rows that are no distribution or do not sum to one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcverify.readers.stream import Floats
from kcverify.streams.align import Matching, Pair
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
                )


class Width(Observer):
    """Vocabularies of different width, and a padded head inside one width."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.widths: tuple[int, int] | None = None
        self.extra: dict[str, list[float]] = {side: [] for side in SIDES}
        self.mass = dict.fromkeys(SIDES, 0.0)
        self.tail: dict[str, Floats | None] = dict.fromkeys(SIDES)
        self.truncated = dict.fromkeys(SIDES, False)
        self.rows = 0

    def pair(self, pair: Pair) -> None:
        """Compare the widths; look at what the wider side's extra columns hold."""
        if pair.left.logits is None or pair.right.logits is None:
            return
        widths = (int(pair.left.logits.shape[1]), int(pair.right.logits.shape[1]))
        at = positions(pair)
        if not len(at):
            return
        self.widths = widths if self.widths is None or widths[0] != widths[1] else self.widths
        if widths[0] != widths[1]:
            side = SIDES[int(widths[1] > widths[0])]
            logits, where = (pair.left.logits, pair.left_at) if side == "left" else (pair.right.logits, pair.right_at)
            block = np.asarray(logits[where[at[:64]]], dtype=np.float64)
            extra = block[:, min(widths) :]
            self.extra[side] += [float(np.nanmin(extra)), float(np.nanmax(extra))]
            with np.errstate(invalid="ignore"):
                p = np.exp(block - block.max(1, keepdims=True))
                share = p[:, min(widths) :].sum(1) / p.sum(1)
            self.mass[side] = max(self.mass[side], float(np.nanmax(share)) if len(share) else 0.0)

    def whole(self, rows: Whole) -> None:
        """Keep the columns that have been one and the same constant so far, counted from the last."""
        if rows.widths[0] != rows.widths[1]:
            return
        for side, block in zip(SIDES, (rows.left, rows.right), strict=True):
            held = self.tail[side]
            last = block[0, -1] if held is None or not len(held) else held[0]
            same = (block == last).all(0)[::-1]
            run = int(np.argmin(np.append(same, False)))
            self.tail[side] = np.full(run if held is None else min(run, len(held)), last)
            self.truncated[side] |= bool(np.isneginf(block[:, : block.shape[1] - run]).any())
        self.rows += len(rows.at)

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one."""
        declared = [self.setting.side(side).value("vocabulary") for side in SIDES]
        a, b = self.widths or (0, 0)
        if self.widths is None and all(isinstance(v, int) for v in declared):
            a, b = declared
        if a != b:
            yield self._different(a, b)
        elif self.widths is not None and self.rows >= 2:
            yield from self._padded(a)

    def _different(self, a: int, b: int) -> Finding:
        side = SIDES[int(b > a)]
        extra = self.extra[side]
        held = f"between {show(min(extra))} and {show(max(extra))}" if extra else "unknown values"
        cause = f"{ROLE[side]} has {abs(a - b)} more columns; they hold {held} and up to {show(self.mass[side])} of a row's mass"
        if extra and self.mass[side] == 0.0:
            cause += ": padding without mass, which can be sliced off"
        return Finding(
            "vocabulary_width",
            {"reference": a, "candidate": b},
            cause,
            {"reference": a, "candidate": b, "extra_values": extra[:2], "extra_mass": self.mass[side]},
        )

    def _padded(self, width: int) -> Iterator[Finding]:
        left, right = (0 if t is None else len(t) for t in self.tail.values())
        side, run, other = ("left", left, right) if left > right else ("right", right, left)
        if run < 2 or run in (width, other):
            return
        held = self.tail[side]
        value = float(held[0]) if held is not None else 0.0
        if value == -np.inf and self.truncated[side]:
            return  # a truncated row bans rare tokens anywhere, at its end too
        sizes = (width - left, width - right)
        yield Finding(
            "vocabulary_width",
            {"reference": sizes[0], "candidate": sizes[1]},
            f"the last {run} of {width} columns of {ROLE[side]} hold {value:g} in every row: a padded head",
            {"reference": sizes[0], "candidate": sizes[1], "width": width, "constant": value, "columns": run},
        )


class Normalised(Observer):
    """Rows and lists of log-probabilities whose sum is not 1.

    Rows count as log-probabilities where the stream declares `rows: logprobs`, where they are lists of the whole
    vocabulary, or where no entry is above 0, the largest is near 0, and the other side's rows do sum to 1.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.sums: dict[str, list[float]] = {side: [] for side in SIDES}
        self.wrong, self.rows = dict.fromkeys(SIDES, 0), dict.fromkeys(SIDES, 0)
        self.highest = dict.fromkeys(SIDES, -np.inf)
        self.lists = {side: First() for side in SIDES}
        self.most = dict.fromkeys(SIDES, 0.0)
        self.least = dict.fromkeys(SIDES, np.inf)

    def whole(self, rows: Whole) -> None:
        """Keep the range of the rows' sums."""
        for side, block, total in zip(SIDES, (rows.left, rows.right), rows.normalisers, strict=True):
            kept = total[rows.good]
            if len(kept):
                self.rows[side] += len(kept)
                self.wrong[side] += int((np.abs(kept) > TOLERANCE).sum())
                self.sums[side] = [
                    min([*self.sums[side], float(kept.min())]),
                    max([*self.sums[side], float(kept.max())]),
                ]
                self.highest[side] = max(self.highest[side], float(block[rows.good].max()))

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
                self.most[side] = max(self.most[side], float(mass[at].max()))
                self.least[side] = min(self.least[side], float(mass[at].min()))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side."""
        for side, other in zip(SIDES, SIDES[::-1], strict=True):
            if self.lists[side].count:
                yield self._finding(side, self.least[side], self.most[side], self.lists[side].count)
            elif self._are_logprobs(side, other) and self.wrong[side]:
                low, high = (float(np.exp(np.clip(v, IMPOSSIBLE, 700.0))) for v in self.sums[side])
                yield self._finding(side, low, high, self.wrong[side])

    def _are_logprobs(self, side: str, other: str) -> bool:
        if not self.rows[side]:
            return False
        if self.setting.side(side).value("rows") == "logprobs":
            return True
        normal = self.rows[other] > 0 and self.wrong[other] == 0
        return normal and -1.0 < self.highest[side] < 0.0

    def _finding(self, side: str, low: float, high: float, count: int) -> Finding:
        return Finding(
            "not_normalised",
            {"side": ROLE[side], "lowest": show(low), "highest": show(high)},
            f"{ROLE[side]} holds numbers that are no distribution: scaled log-probabilities, or logits",
            {"side": ROLE[side], "lowest_sum": low, "highest_sum": high, "rows": count},
        )
