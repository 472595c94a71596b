"""Another support, and a copy: what one side cut off, and sides that cannot differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from kcverify.readers.stream import Floats, Status
from kcverify.streams.align import Matching, Pair
from kcverify.streams.finding import ROLE, Finding, First, Observer, Setting, show
from kcverify.streams.intervals import CONFIDENCE, DECISIVE, Interval, mean_of, median, ratio, student
from kcverify.streams.rows import IMPOSSIBLE, Tops, Whole


class Support(Observer):
    """Tokens that one side cut off.

    From rows: the other side's mass on tokens of probability zero. From lists: a list that holds all of its side's mass
    and less of the other's. From sampled tokens alone: `mean w < 1` where nearly every token has `w <= 1`, in most
    requests, and no token asks for more than truncation can explain.
    """

    least_mass = 2e-3
    balance = 0.6
    deepest = -3.0

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.masses: dict[str, dict[str, list[float]]] = {"left": {}, "right": {}}
        self.squares: dict[str, dict[str, float]] = {"left": {}, "right": {}}
        self.counts: dict[str, dict[str, int]] = {"left": {}, "right": {}}
        self.banned: dict[str, First] = {"left": First(), "right": First()}
        self.kind = "rows"
        self.mismatched, self.alike = 0, 0
        self.sampled: list[Floats] = []

    def whole(self, rows: Whole) -> None:
        """The mass on tokens that the other side bans."""
        a, b = rows.logprobs
        cut, other = a <= IMPOSSIBLE, b <= IMPOSSIBLE
        apart = (cut != other).any(1)
        self.mismatched += int(apart.sum())
        self.alike += int((apart & cut.any(1) & other.any(1)).sum())
        self._zeros(rows, "left", a, b)
        self._zeros(rows, "right", b, a)

    def _zeros(self, rows: Whole, side: str, own: Floats, other: Floats) -> None:
        cut = (own <= IMPOSSIBLE) & (other > IMPOSSIBLE)
        mass = np.where(cut, np.exp(other), 0.0).sum(1)
        self._masses(side, rows.pair, rows.places, mass, (mass > 1e-12))

    def _masses(self, side: str, pair: Pair, at: Any, mass: Floats, hit: Any) -> None:
        name = pair.request_id
        self.masses[side].setdefault(name, []).append(float(mass.sum()))
        self.squares[side][name] = self.squares[side].get(name, 0.0) + float(mass @ mass)
        self.counts[side][name] = self.counts[side].get(name, 0) + len(mass)
        rows = np.flatnonzero(hit)
        if len(rows):
            self.banned[side].add(len(rows), {"request": name, "position": int(at[rows[0]])})

    def tops(self, rows: Tops) -> None:
        """The other side's mass off a list that is complete."""
        sides = (("left", rows.left_ids, rows.left, "right"), ("right", rows.right_ids, rows.right, "left"))
        row, a, b = rows.common
        for side, ids, own, other in sides:
            if side == rows.whole_side:
                continue
            listed = np.where(ids >= 0, np.exp(np.minimum(own, 0.0)), 0.0).sum(1)
            theirs = np.bincount(row, np.exp(b if other == "right" else a), len(rows.at))
            shared = np.bincount(row, minlength=len(rows.at)) == (ids >= 0).sum(1)
            whole = (listed > 1 - 1e-4) & shared
            if whole.any():
                missing = 1 - theirs[whole]
                self._masses(side, rows.pair, rows.at[whole], missing, missing > self.least_mass)
                self.kind = "lists"

    def pair(self, pair: Pair) -> None:
        """Ratios of sampled tokens, and sampled tokens that the other side bans."""
        s = pair.sampled
        statuses = dict(zip(("left", "right"), pair.statuses, strict=True))
        other = self.setting.other
        at = np.flatnonzero((statuses[other] == Status.BANNED) & pair.mask[: pair.agreed])
        if len(at):
            self.banned[other].add(len(at), pair.place(int(at[0])))
        if len(s.at):
            d = s.left - s.right if self.setting.sampled_by == "right" else s.right - s.left
            w = np.exp(np.minimum(d, 700.0))
            self.sampled.append(
                np.array([len(d), (1 - w).sum(), np.maximum(0, 1 - w).sum(), np.maximum(0, w - 1).sum(),
                          (d < self.deepest).sum(), ((1 - w) ** 2).sum()])
            )  # fmt: skip

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side that bans tokens, from rows or lists; else at most one from sampled tokens."""
        found = False
        for side in () if self._both_truncate() else ("left", "right"):
            sums, counts = [math.fsum(v) for v in self.masses[side].values()], list(self.counts[side].values())
            squares = list(self.squares[side].values())
            mean, sure = (mean_of(sums, counts, squares, c) for c in (CONFIDENCE, DECISIVE))
            clear = sure.lower > 0 or mean.value >= 5 * self.least_mass
            rare = self.kind == "lists" and not (mean.value >= self.least_mass and clear)
            if self.banned[side].count and not rare:
                found = True
                yield self._finding(
                    side, mean, self.kind, {"rows": self.banned[side].count, "first": self.banned[side].place}
                )
        if not found and not any(self.masses.values()):
            one = self._from_sampled()
            if one is not None:
                yield one

    def _both_truncate(self) -> bool:
        """Whether both sides cut tokens off by one rule: then rounding decides about tokens at the cut, both ways alike."""
        if self.kind != "rows" or not self.mismatched or self.alike < 0.9 * self.mismatched:
            return False
        left, right = (math.fsum(map(math.fsum, self.masses[side].values())) for side in ("left", "right"))
        return min(left, right) > 0.25 * max(left, right)

    def _from_sampled(self) -> Finding | None:
        if not self.sampled:
            return None
        blocks = np.array(self.sampled)
        n, low, under, over, deep, square = (math.fsum(c) for c in blocks.T)
        if n < 4 or under <= 0 or (under - over) / (under + over) < self.balance or deep > 0.02 * n:
            return None
        if median((blocks[:, 1] / blocks[:, 0]).tolist()) < self.least_mass:
            return None
        if len(blocks) >= 5:
            shown, sure = (ratio(blocks[:, 1], blocks[:, 0], c) for c in (CONFIDENCE, DECISIVE))
        else:
            error = math.sqrt(max(0.0, square - low * low / n) / (n - 1) / n)
            halves = [student(c, int(n) - 1) * error for c in (CONFIDENCE, DECISIVE)]
            shown, sure = (Interval(low / n, low / n - h, low / n + h, "token", int(n)) for h in halves)
        if not sure.lower > 0 or shown.value < self.least_mass:
            return None
        return self._finding(
            self.setting.sampled_by, shown, "sampled tokens alone", {"mean_ratio": 1 - shown.value, "tokens": int(n)}
        )

    def _finding(self, side: str, mean: Interval, source: str, more: dict[str, Any]) -> Finding:
        given = [
            f"{k} {self.setting.side(side).value(k)}"
            for k in ("top_k", "top_p", "min_p")
            if self.setting.side(side).value(k)
        ]
        why = (
            f"it declares {', '.join(given)}"
            if given
            else "by top-k, top-p, min-p or a grammar that the file does not name"
        )
        known = math.isfinite(mean.value)
        low, high = (max(0.0, mean.lower), min(1.0, mean.upper)) if known else (0.0, 1.0)
        return Finding(
            "support_mismatch",
            {
                "side": ROLE[side], "mass": show(mean.value) if known else "an unknown share",
                "confidence": f"{CONFIDENCE:.0%}", "lower": show(low), "upper": show(high),
            },
            f"{ROLE[side]} was truncated: {why}",
            {
                "side": ROLE[side], "missing_mass": mean.value if known else None, "lower": low, "upper": high,
                "source": source, "unit": mean.unit,
            } | more,
        )  # fmt: skip


class Identical(Observer):
    """Sides that are bit-identical everywhere."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.tokens, self.same = 0, True

    def pair(self, pair: Pair) -> None:
        """Compare bits."""
        s = pair.sampled
        self.tokens += len(s.at)
        self.same = self.same and bool((s.left == s.right).all())

    def whole(self, rows: Whole) -> None:
        """Compare bits."""
        self.same = self.same and bool(np.array_equal(rows.left, rows.right))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one, of at least 16 tokens."""
        if self.same and self.tokens >= 16:
            yield Finding("identical_values", {"count": self.tokens}, "one engine, or a copy", {"tokens": self.tokens})
