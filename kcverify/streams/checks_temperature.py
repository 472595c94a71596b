"""One side's logits are a multiple of the other's: found from rows, from lists, and from sampled tokens alone."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from kcverify.readers.stream import Floats
from kcverify.streams.align import Matching, Pair
from kcverify.streams.finding import ROLE, Finding, Observer, Setting, show
from kcverify.streams.intervals import CONFIDENCE, DECISIVE, Interval, ratio, student
from kcverify.streams.rows import IMPOSSIBLE, Tops, Whole

LEAST_CHANGE = 0.01
"""A fitted ratio nearer to 1 than this is no temperature that anyone set."""

LEAST_RATIO = 1e-2
"""Nor is a smaller ratio, or a negative one: rows without a preference, or of other tokens."""

EXPLAINED_ROWS, EXPLAINED_SAMPLED = 0.5, 0.15
"""Share of the difference's variance that a temperature must explain: of rows, and of sampled tokens alone.

Rounding explains next to nothing of it (0.08 for 4-bit weights of the demo model from rows, 0.012 from sampled tokens);
a temperature all of it from rows, and about 0.6 from sampled tokens, whose normaliser is unknown.
"""

LEAST_TOKENS = 30
"""So many different log-probabilities a temperature is fitted to, and no fewer: three tokens lie near any line."""


class _Line:
    """Moments of one request for the line `y = r x` through centred values."""

    def __init__(self) -> None:
        self.xx, self.xy, self.yy, self.rows, self.degrees = array("d"), array("d"), array("d"), 0, 0

    def add(self, xx: float, xy: float, yy: float) -> None:
        """One request's sums."""
        if xx > 0:
            for held, value in ((self.xx, xx), (self.xy, xy), (self.yy, yy)):
                held.append(value)

    def fit(self) -> tuple[Interval, Interval, float] | None:
        """The ratio with its printed and its decisive interval, and the share of the difference that it explains."""
        xx, xy, yy = (math.fsum(v) for v in (self.xx, self.xy, self.yy))
        if self.degrees < 2 or xx <= 0:
            return None
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


class Temperature(Observer):
    """One side's logits are a multiple of the other's.

    From rows and lists: least squares of the candidate's centred log-probabilities on the reference's. From sampled
    tokens alone: `d = (1 - b)(s - H)` with surprisal `s` and an entropy `H` that is unknown, so that the regression of
    `d` on `s` gives too little (by the share of surprisal that contexts explain) and that of `s` on `d` too much (by
    whatever else is in `d`): `1 - b` lies between, and near the second where a temperature explains all of `d`.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.lines: dict[str, dict[str, list[Floats]]] = {"rows": {}, "lists": {}}
        self.moments: list[Floats] = []
        self.counts: dict[str, list[int]] = {"rows": [0, 0], "lists": [0, 0]}
        self.different: set[float] = set()

    def whole(self, rows: Whole) -> None:
        """Add rows, entries at a clipped floor left out."""
        a, b = rows.logprobs
        for x, y in zip(a, b, strict=True):
            keep = (x > IMPOSSIBLE) & (y > IMPOSSIBLE) & ~_floor(x) & ~_floor(y)
            self._row("rows", rows.pair.request_id, x[keep], y[keep])

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
            np.array([x @ x, x @ y, y @ y]),
            int(full.sum()),
            int((count[full] - 1).sum()),
        )

    def _row(self, kind: str, name: str, x: Floats, y: Floats) -> None:
        if len(x) >= 2:
            x, y = x - x.mean(), y - y.mean()
            self._add(kind, name, np.array([x @ x, x @ y, y @ y]), 1, len(x) - 1)

    def _add(self, kind: str, name: str, sums: Floats, rows: int, degrees: int) -> None:
        self.lines[kind].setdefault(name, []).append(sums)
        self.counts[kind][0] += rows
        self.counts[kind][1] += degrees
        if len(self.lines[kind][name]) > 64:
            held = self.lines[kind][name]
            self.lines[kind][name] = [np.array([math.fsum(v) for v in zip(*held, strict=True)])]

    def pair(self, pair: Pair) -> None:
        """Add the sampled tokens."""
        s = pair.sampled
        if len(s.at):
            own, other = (s.right, s.left) if self.setting.sampled_by == "right" else (s.left, s.right)
            keep = np.abs(other - own) < 20
            d, u = (other - own)[keep], -own[keep]
            if len(self.different) < LEAST_TOKENS:
                self.different |= set(u[: 8 * LEAST_TOKENS].tolist())
            self.moments.append(np.array([len(d), d.sum(), u.sum(), d @ d, u @ u, d @ u]))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one, from the richest source."""
        for kind in ("rows", "lists"):
            if self.lines[kind]:
                found = self._from_rows(kind)
                if found is not None:
                    yield found
                if self.counts[kind][1] >= 2:
                    return
        found = self._from_sampled()
        if found is not None:
            yield found

    def _from_rows(self, kind: str) -> Finding | None:
        line = _Line()
        for sums in self.lines[kind].values():
            xx, xy, yy = (math.fsum(v) for v in zip(*sums, strict=True))
            line.add(xx, xy, yy)
        line.rows, line.degrees = self.counts[kind]
        fit = line.fit()
        if fit is None:
            return None
        shown, sure, explained = fit
        if (
            shown.value < LEAST_RATIO
            or abs(shown.value - 1) < LEAST_CHANGE
            or not sure.excludes(1.0)
            or explained < EXPLAINED_ROWS
        ):
            return None
        return self._finding(
            shown.value, shown.lower, shown.upper, kind, explained, {"rows": line.rows, "unit": shown.unit}
        )

    def _from_sampled(self) -> Finding | None:
        if not self.moments:
            return None
        blocks = np.array(self.moments)
        n, cov, d2, s2 = _moments(blocks)
        if len(self.different) < LEAST_TOKENS or d2 <= 1e-18 or s2 <= 1e-12:
            return None
        explained, least, most = cov * cov / (d2 * s2), cov / s2, d2 / cov if cov else math.inf
        error = math.sqrt(d2 / s2 * (1 - explained) / (n - 2))
        if len(blocks) >= 8:
            error = max(error, _jackknife(blocks))
        if (
            explained < EXPLAINED_SAMPLED
            or abs(most) < 2 * LEAST_CHANGE
            or abs(least) < student(DECISIVE, int(n) - 2) * error
        ):
            return None
        half = student(CONFIDENCE, int(n) - 2) * error
        wide = half * abs(most / least)
        ends = sorted((1 - least + half, 1 - least - half, 1 - most + wide, 1 - most - wide))
        low, high = max(ends[0], LEAST_RATIO), max(ends[-1], LEAST_RATIO)
        value = 1 - most
        if value < LEAST_RATIO:
            return None
        if self.setting.sampled_by == "right":
            value, low, high = 1 / value, 1 / high, 1 / low
        evidence = {
            "tokens": int(n),
            "slope": least,
            "reverse_slope": most,
            "unit": "request" if len(blocks) >= 8 else "token",
        }
        return self._finding(value, low, high, "sampled tokens alone", explained, evidence)

    def _finding(
        self, value: float, low: float, high: float, source: str, explained: float, more: dict[str, Any]
    ) -> Finding:
        side = "reference" if value < 1 else "candidate"
        factor = value if value < 1 else 1 / value
        cause = (
            f"as if {side} alone divided its logits by {show(factor)}; it explains {explained:.0%} of the difference, "
            f"from {source}{self._declared()}"
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


def _floor(row: Floats) -> Any:
    """Entries that share the row's smallest value with others: clipped by the format."""
    least = row == row.min()
    return least if len(row) > 8 and least.sum() > 1 else np.zeros(len(row), dtype=bool)


def _moments(blocks: Floats) -> tuple[float, float, float, float]:
    n, d, u, dd, uu, du = (math.fsum(column) for column in blocks.T)
    if n < 3:
        return n, 0.0, 0.0, 0.0
    return n, (du - d * u / n) / n, (dd - d * d / n) / n, (uu - u * u / n) / n


def _jackknife(blocks: Floats) -> float:
    """Standard error of the slope of `d` on surprisal when whole requests are left out."""
    total = np.array([math.fsum(column) for column in blocks.T])
    slopes = []
    for block in blocks:
        n, d, u, _, uu, du = total - block
        spread = uu - u * u / n if n else 0.0
        slopes.append((du - d * u / n) / spread if spread > 0 else 0.0)
    m = len(slopes)
    middle = math.fsum(slopes) / m
    return math.sqrt((m - 1) / m * math.fsum((s - middle) ** 2 for s in slopes))
