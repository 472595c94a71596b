"""Another support, and a copy: what one side cut off, and sides that cannot differ."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from kcverify.readers.stream import Flags, Floats, Integers, Status
from kcverify.streams.adding import Always, part
from kcverify.streams.align import Matching, Pair
from kcverify.streams.checks_sampled import LEAST_MASS, SOURCE, Sampled, beside_cut, beside_fit, is_both
from kcverify.streams.checks_temperature import Temperature
from kcverify.streams.finding import ROLE, Finding, First, Observer, Setting, show
from kcverify.streams.intervals import CONFIDENCE, DECISIVE, Interval, mean_of
from kcverify.streams.rows import IMPOSSIBLE, Tops, Whole, dot

NEARLY, SURELY = 1e-4, 5e-6
"""A list holds all of its side's mass up to this: one shorter than others, and one as long, where rounding alone remains.

A long one shows a cut only where its last token is far above that remainder: a low temperature gives small tails too.
"""


@part
class Support(Observer):
    """Tokens that one side cut off.

    From rows: the other side's mass on tokens of probability zero. From lists: a list that holds all of its side's mass
    and less of the other's.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.masses: dict[str, dict[str, array[float]]] = {"left": {}, "right": {}}
        self.banned: dict[str, First] = {"left": First(), "right": First()}
        self.kinds: set[str] = set()
        self.mismatched, self.alike = 0, 0

    def whole(self, rows: Whole) -> None:
        """The mass on tokens that the other side bans."""
        (left, right), (p, q) = rows.banned, rows.probabilities
        if not (left.any() or right.any()):
            nothing = np.zeros(len(left))
            for side in ("left", "right"):
                self._masses(side, rows.pair, rows.places, nothing, left)
            return
        a, b = rows.logprobs
        cut, other = a <= IMPOSSIBLE, b <= IMPOSSIBLE
        apart = (cut != other).any(1)
        self.mismatched += int(apart.sum())
        self.alike += int((apart & left & right).sum())
        for side, only, theirs in (("left", cut & ~other, q), ("right", other & ~cut, p)):
            mass = np.where(only, theirs, 0.0).sum(1)
            self._masses(side, rows.pair, rows.places, mass, mass > 1e-12)

    def _masses(self, side: str, pair: Pair, at: Integers, mass: Floats, hit: Flags) -> None:
        name = pair.request_id
        self.masses[side].setdefault(name, array("d")).extend((float(mass.sum()), float(len(mass)), dot(mass, mass)))
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
            count = (ids >= 0).sum(1)
            short = count + 1 < count.max(initial=0)  # one more where the sampled token comes next in the list
            least = np.where(ids >= 0, own, np.inf).min(1, initial=np.inf)
            cliff = short | (np.exp(np.minimum(least, 0.0)) > 100 * SURELY)  # else a sharp row's tail: nothing is cut
            whole = (listed > 1 - np.where(short, NEARLY, SURELY)) & shared
            if whole.any():
                missing = 1 - theirs[whole]
                self._masses(side, rows.pair, rows.at[whole], missing, (missing > LEAST_MASS) & cliff[whole])
                self.kinds.add("lists")

    def pair(self, pair: Pair) -> None:
        """Sampled tokens that the other side bans."""
        statuses = dict(zip(("left", "right"), pair.statuses, strict=True))
        other = self.setting.other
        at = np.flatnonzero((statuses[other] == Status.BANNED) & pair.mask[: pair.agreed])
        if len(at):
            self.banned[other].add(len(at), pair.place(int(at[0])))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side that bans tokens, from rows or lists."""
        kind = "lists" if self.kinds else "rows"
        for side in () if self._both_truncate() else ("left", "right"):
            sums, counts, squares = ([math.fsum(held[i::3]) for held in self.masses[side].values()] for i in range(3))
            mean, sure = (mean_of(sums, counts, squares, c) for c in (CONFIDENCE, DECISIVE))
            clear = sure.lower > 0 or mean.value >= 5 * LEAST_MASS
            rare = kind == "lists" and not (mean.value >= LEAST_MASS and clear)
            if self.banned[side].count and not rare:
                more = {"rows": self.banned[side].count, "first": self.banned[side].place}
                where = ""
                if self.kinds and counts:
                    n = more["complete_rows"] = int(math.fsum(counts))
                    where = f" on the {'row' if n == 1 else f'{n} rows'} whose list is complete"
                yield self.finding(side, mean, kind, more, where=where)

    def _both_truncate(self) -> bool:
        """Whether both sides cut tokens off by one rule: then rounding decides about tokens at the cut, both ways alike."""
        if self.kinds or not self.mismatched or self.alike < 0.9 * self.mismatched:
            return False
        left, right = (
            math.fsum(math.fsum(held[::3]) for held in self.masses[side].values()) for side in ("left", "right")
        )
        return min(left, right) > 0.25 * max(left, right)

    def finding(
        self, side: str, mean: Interval, source: str, more: dict[str, Any], words: str = "", where: str = ""
    ) -> Finding:
        """`words` go to the cause; `where` says which rows the mass is of, where it is not of all."""
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
                "side": ROLE[side], "mass": show(mean.value) if known else "an unknown share", "where": where,
                "confidence": f"{CONFIDENCE:.0%}", "lower": show(low), "upper": show(high),
            },
            f"{ROLE[side]} was truncated: {why}{words}",
            {
                "side": ROLE[side], "missing_mass": mean.value if known else None, "lower": low, "upper": high,
                "source": source, "unit": mean.unit,
            } | more,
        )  # fmt: skip


class Policy(Observer):
    """Truncation and temperature together: from rows and lists where there are some, else from sampled tokens alone."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.support, self.temperature, self.sampled = Support(setting), Temperature(setting), Sampled(setting)

    def pair(self, pair: Pair) -> None:
        """Show it to both that look at sampled tokens."""
        self.support.pair(pair)
        self.sampled.pair(pair)

    def whole(self, rows: Whole) -> None:
        """Show rows."""
        self.support.whole(rows)
        self.temperature.whole(rows)

    def tops(self, rows: Tops) -> None:
        """Show lists."""
        self.support.tops(rows)
        self.temperature.tops(rows)

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side that is truncated, one for a temperature; of sampled tokens two where each is needed."""
        cuts, heats = list(self.support.findings(matching)), list(self.temperature.findings(matching))
        yield from cuts
        cut = self.sampled.cut() if not cuts and not any(self.support.masses.values()) else None
        fit = self.sampled.fit() if not heats and not self.temperature.settled else None
        both = is_both(cut, fit)
        if cut is not None and (both or cut.one_sided):
            words, more = ("", {}) if both or self.temperature.settled else beside_cut(self.sampled, cut)
            yield self.support.finding(
                self.setting.sampled_by, cut.mass, SOURCE, {"mean_ratio": 1 - cut.mass.value, "tokens": cut.tokens} | more,
                words,
            )  # fmt: skip
        yield from heats
        if fit is not None and (both or cut is None or not cut.one_sided):
            words, more = ("", {}) if both else beside_fit(self.sampled)
            yield self.temperature.finding(
                fit.value, fit.lower, fit.upper, SOURCE, fit.explained, fit.evidence | more, words
            )


class Identical(Observer):
    """Sides that are bit-identical everywhere."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.tokens, self.same = 0, Always()

    def pair(self, pair: Pair) -> None:
        """Compare bits."""
        s = pair.sampled
        self.tokens += len(s.at)
        self.same.add(bool((s.left == s.right).all()))

    def whole(self, rows: Whole) -> None:
        """Compare bits."""
        if self.same.held:
            self.same.add(bool(np.array_equal(rows.left, rows.right)))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one, of at least 16 tokens."""
        if self.same.held and self.tokens >= 16:
            yield Finding("identical_values", {"count": self.tokens}, "one engine, or a copy", {"tokens": self.tokens})
