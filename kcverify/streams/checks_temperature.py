"""One side's logits are a multiple of the other's: found from rows and from lists."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kcverify.readers.stream import Flags, Floats, Integers
from kcverify.streams.adding import part
from kcverify.streams.align import Matching
from kcverify.streams.checks_sampled import LEAST_CHANGE, LEAST_RATIO
from kcverify.streams.finding import ROLE, Finding, Observer, Setting, show
from kcverify.streams.intervals import CONFIDENCE, DECISIVE, Interval, ratio, student
from kcverify.streams.rows import IMPOSSIBLE, Tops, Whole, dot, dots

EXPLAINED = 0.5
"""Share of the rows' difference in variance that a temperature must explain: 4-bit rounding of the demo model explains 0.08."""


class _Line:
    """Moments of one request for the line `y = r x` through centred values."""

    def __init__(self) -> None:
        self.xx, self.xy, self.yy, self.rows, self.degrees = array("d"), array("d"), array("d"), 0, 0

    def add(self, xx: float, xy: float, yy: float) -> None:
        """One request's sums."""
        if xx > 0:
            for held, value in ((self.xx, xx), (self.xy, xy), (self.yy, yy)):
                held.append(value)

    def fit(self, selected: bool = False) -> tuple[Interval, Interval, float] | None:
        """The ratio with its printed and its decisive interval, and the share of the difference that it explains.

        `selected`: entries are there for being large on both sides, which flattens the line either way round; the ratio
        is the geometric mean of the line's and that of the line through the other side's values, and its intervals hold
        those of both. Swapping the sides gives one over it.
        """
        xx, xy, yy = (math.fsum(v) for v in (self.xx, self.xy, self.yy))
        if self.degrees < 2 or xx <= 0:
            return None
        if selected:
            return self._between(xx, xy, yy)
        return self._line(xx, xy, yy)

    def _between(self, xx: float, xy: float, yy: float) -> tuple[Interval, Interval, float] | None:
        if xy <= 0:
            return None
        if yy < xx:
            mirrored = _Line()
            mirrored.xx, mirrored.xy, mirrored.yy = self.yy, self.xy, self.xx
            mirrored.rows, mirrored.degrees = self.rows, self.degrees
            fit = mirrored._between(yy, xy, xx)
            return None if fit is None else (_inverse(fit[0]), _inverse(fit[1]), fit[2])
        fit = self._line(xx, xy, yy)
        if fit is None:
            return None
        value, across = math.sqrt(yy / xx), yy * xx / (xy * xy)  # how far apart the slopes of the two lines are
        ends = []
        for end, confidence in zip(fit[:2], (CONFIDENCE, DECISIVE), strict=True):
            other = replace(end, lower=end.lower * across, upper=end.upper * across)
            if len(self.xx) >= 5:
                other = ratio(self.yy, self.xy, confidence)
            ends.append(replace(_hull(end, other), value=value))
        rest = 2 * value * max(0.0, value * xx - xy)
        return ends[0], ends[1], 1 - rest / (yy - 2 * xy + xx)

    def _line(self, xx: float, xy: float, yy: float) -> tuple[Interval, Interval, float] | None:
        r = xy / xx
        plain = yy - 2 * xy + xx
        rest = max(0.0, yy - 2 * r * xy + r * r * xx)
        if plain <= 1e-18 * xx:
            return None
        if len(self.xx) >= 5:
            ends = [ratio(self.xy, self.xx, c) for c in (CONFIDENCE, DECISIVE)]
        else:
            error = math.sqrt(rest / (self.degrees - 1) / xx) if rest > 1e-18 * xx else 0.0
            halves = [student(c, self.degrees - 1) * error for c in (CONFIDENCE, DECISIVE)]
            ends = [Interval(r, r - h, r + h, "entry", self.degrees) for h in halves]
        return ends[0], ends[1], 1 - rest / plain


@part
class Temperature(Observer):
    """One side's logits are a multiple of the other's.

    From rows and lists: least squares of the candidate's centred log-probabilities on the reference's.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.lines: dict[str, dict[str, array[float]]] = {"rows": {}, "lists": {}}
        self.counts = {"rows": (0, 0), "lists": (0, 0)}

    def whole(self, rows: Whole) -> None:
        """Add rows, entries at a clipped floor left out."""
        if not rows.good.any():
            return
        a, b = rows.logprobs
        keep = None
        if not _plain(rows):
            keep = (a > IMPOSSIBLE) & (b > IMPOSSIBLE) & ~_floor(a, rows.lowest[0]) & ~_floor(b, rows.lowest[1])
        x, n = _centred(a, keep)
        d, _ = _centred(rows.difference, keep)
        many = n >= 2
        xx, xd, dd = (float(dots(u, v)[many].sum()) for u, v in ((x, x), (x, d), (d, d)))
        sums = np.array([xx, xx - xd, xx - 2 * xd + dd])
        self._add("rows", rows.pair.request_id, sums, int(many.sum()), int((n[many] - 1).sum()))

    def tops(self, rows: Tops) -> None:
        """Add the tokens that both lists of a row have."""
        row, a, b = rows.common
        both = (a > IMPOSSIBLE) & (b > IMPOSSIBLE)
        row, a, b = row[both], a[both], b[both]
        if not len(row):
            return
        count = np.bincount(row, minlength=len(rows.at))
        n = np.maximum(1, count)
        x = a - (np.bincount(row, a, len(rows.at)) / n)[row]
        y = b - (np.bincount(row, b, len(rows.at)) / n)[row]
        full = count >= 2
        self._add(
            "lists",
            rows.pair.request_id,
            np.array([dot(x, x), dot(x, y), dot(y, y)]),
            int(full.sum()),
            int((count[full] - 1).sum()),
        )

    def _add(self, kind: str, name: str, sums: Floats, rows: int, degrees: int) -> None:
        held = self.lines[kind].setdefault(name, array("d"))
        held.extend(sums)
        self.counts[kind] = (self.counts[kind][0] + rows, self.counts[kind][1] + degrees)
        if len(held) > 3 * 64:
            self.lines[kind][name] = array("d", _totals(held, 3))

    @property
    def settled(self) -> bool:
        """Whether rows or lists told enough to decide."""
        return any(self.lines[kind] and self.counts[kind][1] >= 2 for kind in self.lines)

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one, from the richest source."""
        for kind in ("rows", "lists"):
            if self.lines[kind]:
                found = self._from_rows(kind)
                if found is not None:
                    yield found
                if self.counts[kind][1] >= 2:
                    return

    def _from_rows(self, kind: str) -> Finding | None:
        line = _Line()
        for sums in self.lines[kind].values():
            line.add(*_totals(sums, 3))
        line.rows, line.degrees = self.counts[kind]
        fit = line.fit(selected=kind == "lists")
        if fit is None:
            return None
        shown, sure, explained = fit
        if (
            shown.value < LEAST_RATIO
            or abs(shown.value - 1) < LEAST_CHANGE
            or not sure.excludes(1.0)
            or explained < EXPLAINED
        ):
            return None
        return self.finding(
            shown.value, shown.lower, shown.upper, kind, explained, {"rows": line.rows, "unit": shown.unit}
        )

    def finding(
        self,
        value: float,
        low: float,
        high: float,
        source: str,
        explained: float,
        more: dict[str, Any],
        words: str = "",
    ) -> Finding:
        side = "reference" if value < 1 else "candidate"
        factor = value if value < 1 else 1 / value
        cause = (
            f"as if {side} alone divided its logits by {show(factor)}; it explains {explained:.0%} of the difference, "
            f"from {source}{words}{self._declared()}"
        )
        return Finding(
            "temperature_mismatch",
            {"ratio": show(value), "confidence": f"{CONFIDENCE:.0%}", "lower": show(low), "upper": show(high)},
            cause,
            {"fitted_ratio": value, "lower": low, "upper": high, "source": source, "explained": explained} | more,
        )

    def _declared(self) -> str:
        told = {side: self.setting.side(side).value("temperature") for side in ("left", "right")}
        if all(v is None for v in told.values()):
            return ""
        return "; declared: " + ", ".join(f"{ROLE[s]} {'unknown' if v is None else v}" for s, v in told.items())


def _plain(rows: Whole) -> bool:
    """Whether every entry of every good row is a number that no format clipped."""
    if rows.banned[0].any() or rows.banned[1].any():
        return False
    return not any(_floor(side, low).any() for side, low in zip(rows.logprobs, rows.lowest, strict=True))


def _hull(one: Interval, other: Interval) -> Interval:
    """The first, as wide as both."""
    return replace(one, lower=min(one.lower, other.lower), upper=max(one.upper, other.upper))


def _inverse(of: Interval) -> Interval:
    """Of one over the estimate."""
    upper = 1 / of.lower if of.lower > 0 else math.inf
    return replace(of, value=1 / of.value, lower=1 / of.upper, upper=upper)


def _floor(rows: Floats, lowest: Floats) -> Flags:
    """Entries that share their row's smallest value with others: clipped by the format."""
    least: Flags = rows == lowest[:, None]
    if rows.shape[1] <= 8:
        least[:] = False
    else:
        least[np.count_nonzero(least, axis=1) < 2] = False
    return least


def _centred(rows: Floats, keep: Flags | None) -> tuple[Floats, Integers]:
    """Rows less their mean, and how many entries each has; entries that are not kept are 0."""
    if keep is None:
        return rows - rows.mean(1, keepdims=True), np.full(len(rows), rows.shape[1])
    n = np.count_nonzero(keep, axis=1)
    held = np.where(keep, rows, 0.0)
    held -= (held.sum(1) / np.maximum(1, n))[:, None]
    held[~keep] = 0.0
    return held, n


def _totals(held: array[float], columns: int) -> list[float]:
    """The sum of each column of rows written one after the other."""
    return [math.fsum(held[i::columns]) for i in range(columns)]
