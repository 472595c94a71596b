"""Checks of single numbers: placeholders, broken and positive log-probabilities, overflow, nothing to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from kcverify.readers.stream import Status
from kcverify.streams.adding import Largest
from kcverify.streams.align import POSITIVE, SENTINELS, Matching, Pair
from kcverify.streams.bearing import LISTS, ROWS, SAMPLED
from kcverify.streams.finding import ROLE, SIDES, Finding, First, Observer, Setting, show
from kcverify.streams.rows import Tops, Whole

FLOAT32 = 88.72283905206835
"""The logarithm of the largest float32."""


class Placeholders(Observer):
    """Counted positions whose number stands for something else, and sampled tokens of probability zero."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = {side: First() for side in SIDES}
        self.kinds: dict[str, Counter[str]] = {side: Counter() for side in SIDES}

    def pair(self, pair: Pair) -> None:
        """Count placeholders by side and kind."""
        n = pair.agreed
        for side, status, raw in zip(SIDES, pair.statuses, pair.raw, strict=True):
            wrong = status == Status.PLACEHOLDER
            if side == self.setting.sampled_by:
                wrong |= status == Status.BANNED
            at = np.flatnonzero(wrong & pair.mask[:n])
            if not len(at):
                continue
            self.seen[side].add(len(at), pair.place(int(at[0])))
            for value, kind in zip(raw[at], status[at], strict=True):
                self.kinds[side][_kind(float(value), int(kind))] += 1

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side."""
        for side in SIDES:
            seen, kinds = self.seen[side], self.kinds[side]
            if seen.count:
                text = ", ".join(f"{n} x {kind}" for kind, n in sorted(kinds.items()))
                yield Finding(
                    "placeholder_value",
                    {"count": seen.count, "side": ROLE[side], "kinds": text},
                    _cause(ROLE[side], text, self.setting.side(side).value("temperature")),
                    {
                        "side": ROLE[side],
                        "count": seen.count,
                        "kinds": dict(sorted(kinds.items())),
                        "first": seen.place,
                    },
                    {SAMPLED: seen.count},
                )


def _cause(role: str, text: str, temperature: object) -> str:
    if temperature == 0 and "0.0" in text:
        return f"{role} declares temperature 0: a greedy sampler gives probability one to what it takes; nothing was averaged"
    return f"{role} writes {text} where it has no number; none was averaged"


def _kind(value: float, status: int) -> str:
    if status == Status.BANNED:
        return "-inf for a sampled token"
    if np.isnan(value):
        return "declared by the format"
    return "0.0 (probability one) against the other side" if value == 0 else f"{value:g}"


class NonFinite(Observer):
    """NaN and plus infinity, in rows and in sampled log-probabilities."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = {side: First() for side in SIDES}
        self.rows = dict.fromkeys(SIDES, 0)
        self.kinds: dict[str, Counter[str]] = {side: Counter() for side in SIDES}

    def _see(self, side: str, family: str, count: int, place: dict[str, Any]) -> None:
        self.seen[side].add(count, place)
        self.kinds[side][family] += count

    def pair(self, pair: Pair) -> None:
        """Count broken numbers of sampled tokens."""
        n = pair.agreed
        for side, status, raw in zip(SIDES, pair.statuses, pair.raw, strict=True):
            if (pair.left if side == "left" else pair.right).logprobs is None:
                continue
            counted = pair.mask[:n]
            broken = (status == Status.BROKEN) & counted & ~(raw > POSITIVE)
            self.rows[side] += int(counted.sum())
            at = np.flatnonzero(broken)
            if len(at):
                self._see(side, SAMPLED, len(at), pair.place(int(at[0])))

    def whole(self, rows: Whole) -> None:
        """Count broken rows."""
        for side, broken in zip(SIDES, rows.broken, strict=True):
            self.rows[side] += len(broken)
            at = np.flatnonzero(broken)
            if len(at):
                self._see(side, ROWS, len(at), rows.pair.place(int(rows.at[at[0]])))

    def tops(self, rows: Tops) -> None:
        """Count broken rows of the side that is whole where the other has lists."""
        if rows.whole_side is not None:
            self.rows[rows.whole_side] += len(rows.at) + len(rows.broken)
            if rows.broken:
                self._see(rows.whole_side, LISTS, len(rows.broken), rows.pair.place(rows.broken[0]))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side."""
        for side in SIDES:
            seen, rows = self.seen[side], self.rows[side]
            if seen.count:
                yield Finding(
                    "non_finite",
                    {"count": seen.count, "rows": rows, "side": ROLE[side], "where": seen.where},
                    f"{ROLE[side]} has broken numbers; they stay in the denominator",
                    {"side": ROLE[side], "count": seen.count, "denominator": rows, "first": seen.place},
                    self.kinds[side],
                )


class Positive(Observer):
    """Log-probabilities above zero."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = {side: First() for side in SIDES}
        self.largest = {side: Largest(0.0) for side in SIDES}
        self.kinds: dict[str, Counter[str]] = {side: Counter() for side in SIDES}

    def pair(self, pair: Pair) -> None:
        """Count values above zero at counted positions, and in lists."""
        for side, raw in zip(SIDES, pair.raw, strict=True):
            request = pair.left if side == "left" else pair.right
            at = np.flatnonzero((raw > POSITIVE) & np.isfinite(raw) & pair.mask[: pair.agreed])
            if len(at):
                self.seen[side].add(len(at), pair.place(int(at[0])))
                self.kinds[side][SAMPLED] += len(at)
                self.largest[side].add(float(raw[at].max()))
            if request.top_logprobs is not None:
                lists = request.top_logprobs[pair.left_at if side == "left" else pair.right_at]
                row = np.flatnonzero((lists > POSITIVE).any(1) & pair.mask)
                if len(row):
                    self.kinds[side][LISTS] += len(row)
                    self.seen[side].add(int((lists[row] > POSITIVE).sum()), pair.place(int(row[0])))
                    self.largest[side].add(float(np.nanmax(lists[row])))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side."""
        for side in SIDES:
            seen = self.seen[side]
            if seen.count:
                yield Finding(
                    "positive_logprob",
                    {"count": seen.count, "side": ROLE[side], "largest": show(self.largest[side].value)},
                    f"the numbers of {ROLE[side]} are no log-probabilities",
                    {"side": ROLE[side], "count": seen.count, "largest": self.largest[side].value, "first": seen.place},
                    self.kinds[side],
                )


class Overflow(Observer):
    """Log-ratios of which float32 has no exponential."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = First()
        self.largest = Largest(0.0)

    def pair(self, pair: Pair) -> None:
        """Count tokens beyond the limit."""
        s = pair.sampled
        d = s.left - s.right if self.setting.sampled_by == "right" else s.right - s.left
        over = np.flatnonzero(d > FLOAT32)
        if len(over):
            self.seen.add(len(over), pair.place(int(s.at[over[0]])) | {"log_ratio": float(d[over[0]])})
            self.largest.add(float(d.max()))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one."""
        if self.seen.count:
            yield Finding(
                "ratio_overflow",
                {"count": self.seen.count, "limit": show(FLOAT32), "largest": show(self.largest.value)},
                "the engine sampled tokens to which it gives probability zero, or the numbers are not of these tokens",
                {"count": self.seen.count, "log_ratio": self.largest.value, "first": self.seen.place},
            )


class Unsampled(Observer):
    """Positions that the mask counts and a side has nothing for: padding, tool output, prompts."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = {side: First() for side in SIDES}
        self.values = dict.fromkeys(SIDES, 0)
        self.padded = First()

    def pair(self, pair: Pair) -> None:
        """Count positions without a number, but for the first of a whole sequence; and a tail of one padding token."""
        n = pair.agreed
        for side, status in zip(SIDES, pair.statuses, strict=True):
            request, at = (pair.left, pair.left_at) if side == "left" else (pair.right, pair.right_at)
            if request.logprobs is None:
                continue
            self.values[side] += int((status == Status.VALUE).sum())
            missing = np.flatnonzero((status == Status.MISSING) & pair.mask[:n] & (at[:n] > 0))
            if len(missing):
                self.seen[side].add(len(missing), pair.place(int(missing[0])))
        self._padding(pair)

    def _padding(self, pair: Pair) -> None:
        ids, n = pair.left.token_ids, pair.agreed
        if ids is None or n < 4 or pair.diverged is not None:
            return
        tail = ids[pair.left_at]
        run = int(np.argmin(np.append((tail == tail[-1])[::-1], False)))
        if run < 3 or run == n:
            return
        for status, raw in zip(pair.statuses, pair.raw, strict=True):
            nothing = (
                (raw[n - run :] == 0.0) | np.isin(raw[n - run :], SENTINELS) | (status[n - run :] == Status.MISSING)
            )
            if nothing.all() and pair.mask[n - run :].all():
                self.padded.add(run, pair.place(n - run))
                return

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side, and one for padding."""
        for side in SIDES:
            seen = self.seen[side]
            if seen.count and self.values[side]:
                yield Finding(
                    "unsampled_token",
                    {"count": seen.count, "side": ROLE[side]},
                    "the mask counts tokens that were not sampled",
                    {"side": ROLE[side], "count": seen.count, "first": seen.place},
                    {SAMPLED: seen.count},
                )
        if self.padded.count:
            yield Finding(
                "unsampled_token",
                {"count": self.padded.count, "side": "one side"},
                "the mask counts a tail of one repeated token: padding",
                {"count": self.padded.count, "first": self.padded.place},
                voids=(SAMPLED,),
            )
