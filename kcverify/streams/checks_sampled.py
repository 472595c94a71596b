"""A temperature and a truncation from sampled tokens alone: each, both, or which combinations explain the numbers.

The engine samples from its logits at another temperature, cut off and scaled up. With `w = e^(t - g)` over its tokens,
`mean w` is the trainer's mass on what the engine kept, whatever its temperature: below 1 something was cut off. Without
a temperature no token has `w > 1`; many that have tell that truncation is not all. What neither settles is said.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcverify.readers.stream import Floats
from kcverify.streams.adding import part
from kcverify.streams.align import Matching, Pair
from kcverify.streams.finding import Finding, Observer, Setting, show
from kcverify.streams.intervals import CONFIDENCE, DECISIVE, Interval, median, ratio, student
from kcverify.streams.rows import dot

SOURCE = "sampled tokens alone"

LEAST_CHANGE = 0.01
"""A fitted ratio nearer to 1 than this is no temperature that anyone set."""

LEAST_RATIO = 1e-2
"""Nor is a smaller ratio, or a negative one: rows without a preference, or of other tokens."""

EXPLAINED, EXPLAINED_BESIDE = 0.15, 0.3
"""Share of the variance of `d` that surprisal must explain for a temperature, and for one beside a truncation.

Rounding explains next to nothing of it (0.012 for 4-bit weights of the demo model), a temperature about 0.6, and a
truncation alone up to 0.2: what is cut off depends on how flat a row is.
"""

LEAST_TOKENS = 30
"""So many different log-probabilities a temperature is fitted to, and no fewer: three tokens lie near any line."""

LEAST_MASS = 2e-3
BALANCE, BALANCE_SHARPER = 0.6, 0.3
DEEPEST = -3.0
LEAST_ESS = 0.25
"""Weights of a lower effective share have a tail that the sample has not seen: their mean says nothing about support."""

ABOVE, MANY = 0.1, 0.02
"""`d` above this many nats in this share of tokens is no rounding, and truncation alone never gives it."""

RATIOS = np.geomspace(0.25, 4.0, 33)
TRIED = 256
"""Tokens of a request, evenly spaced, on which the ratios are tried: what is wanted is a share of all."""

WIDEST = 1 << 18
"""Width of a vocabulary that is not declared: no larger one is in use."""


@dataclass(frozen=True)
class Fit:
    """A fitted ratio of logits with its interval, and the share of the variance of `d` that it explains."""

    value: float
    lower: float
    upper: float
    explained: float
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Cut:
    """The mass that the sampler cut off by the mean ratio.

    `balance`: what ratios lack to 1 minus what they exceed it by, as a share of both: 1 where no token has `w > 1`.
    `above`: share of tokens with `d > ABOVE`.
    """

    mass: Interval
    tokens: int
    balance: float
    above: float

    @property
    def one_sided(self) -> bool:
        """Whether hardly any token has `w > 1`."""
        return self.balance >= BALANCE


@part
class Sampled(Observer):
    """Moments of `d` and `w` by request, and for each ratio of `RATIOS` the tokens of a sample that contradict it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.weights, self.moments = array("d"), array("d")
        self.different: set[float] = set()
        self.tokens = 0
        self.against = np.zeros(len(RATIOS), dtype=np.int64)

    def pair(self, pair: Pair) -> None:
        """Add the sampled tokens."""
        s = pair.sampled
        if not len(s.at):
            return
        own, other = (s.right, s.left) if self.setting.sampled_by == "right" else (s.left, s.right)
        d = other - own
        w = np.exp(np.minimum(d, 700.0))
        under, over = np.maximum(0, 1 - w), np.maximum(0, w - 1)
        sums = ((1 - w).sum(), under.sum(), over.sum(), (d < DEEPEST).sum(), ((1 - w) ** 2).sum(), (d > ABOVE).sum())
        self.weights.extend((float(len(d)), *map(float, sums)))
        keep = np.abs(d) < 20
        v, u = d[keep], -own[keep]
        if len(self.different) < LEAST_TOKENS:
            self.different |= set(u[: 8 * LEAST_TOKENS].tolist())
        self.moments.extend((float(len(v)), float(v.sum()), float(u.sum()), dot(v, v), dot(u, u), dot(v, u)))
        if pair.left.logits is None or pair.right.logits is None:
            some = slice(None, None, -(-len(d) // TRIED))
            self.tokens += len(d[some])
            self.against += self._against(other[some], own[some])

    def _against(self, t: Floats, g: Floats) -> Any:
        """Tokens that a ratio of logits with any truncation contradicts: `g` is below the smallest `log p_ratio(a)`.

        `sum p^b` is at most `p_a^b + (1 - p_a)^b (V - 1)^(1 - b)` for `b < 1`, and `p_a^b + (1 - p_a)^b` above.
        """
        width = self.setting.side(self.setting.other).value("vocabulary")
        rest = math.log(max(2, width if isinstance(width, int) else WIDEST) - 1)
        t = np.minimum(t, -1e-12)[:, None]
        outside = np.log(-np.expm1(t))
        spread = np.maximum(0.0, 1 - RATIOS) * rest
        least = RATIOS * t - np.logaddexp(RATIOS * t, RATIOS * outside + spread)
        return (g[:, None] < least - ABOVE).sum(0).astype(np.int64)

    def consistent(self) -> tuple[float, float] | None:
        """The ends of the ratios of logits (sampler's to the other side's) that no more than a few tokens contradict."""
        fine = np.flatnonzero(self.against <= MANY * self.tokens)
        return None if not self.tokens or not len(fine) else (float(RATIOS[fine[0]]), float(RATIOS[fine[-1]]))

    def cut(self) -> Cut | None:
        """What the mean ratio says was cut off; None where it says nothing for sure."""
        if not len(self.weights):
            return None
        blocks = np.frombuffer(self.weights).reshape(-1, 7)
        n, low, under, over, deep, square, above = (math.fsum(c) for c in blocks.T)
        if n < 4 or under <= 0 or deep > 0.02 * n:
            return None
        if median((blocks[:, 1] / blocks[:, 0]).tolist()) < LEAST_MASS:
            return None
        if len(blocks) >= 5:
            shown, sure = (ratio(blocks[:, 1], blocks[:, 0], c) for c in (CONFIDENCE, DECISIVE))
        else:
            error = math.sqrt(max(0.0, square - low * low / n) / (n - 1) / n)
            halves = [student(c, int(n) - 1) * error for c in (CONFIDENCE, DECISIVE)]
            shown, sure = (Interval(low / n, low / n - h, low / n + h, "token", int(n)) for h in halves)
        total, squares = n - low, square + n - 2 * low
        if not sure.lower > 0 or shown.value < LEAST_MASS or total * total < LEAST_ESS * n * squares:
            return None
        return Cut(shown, int(n), (under - over) / (under + over), above / n)

    def fit(self) -> Fit | None:
        """The temperature that explains `d` best; None where none does.

        `d = (1 - b)(s - H)` with surprisal `s` and an entropy `H` that is unknown, so that the regression of `d` on `s`
        gives too little (by the share of surprisal that contexts explain) and that of `s` on `d` too much (by whatever
        else is in `d`): `1 - b` lies between, and near the second where a temperature explains all of `d`.
        """
        if not len(self.moments):
            return None
        blocks = np.frombuffer(self.moments).reshape(-1, 6)
        n, cov, d2, s2 = _moments(blocks)
        if len(self.different) < LEAST_TOKENS or d2 <= 1e-18 or s2 <= 1e-12:
            return None
        explained, least, most = cov * cov / (d2 * s2), cov / s2, d2 / cov if cov else math.inf
        error = math.sqrt(max(0.0, d2 / s2 * (1 - explained)) / (n - 2))
        if len(blocks) >= 8:
            error = max(error, _jackknife(blocks))
        if explained < EXPLAINED or abs(most) < 2 * LEAST_CHANGE or abs(least) < student(DECISIVE, int(n) - 2) * error:
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
        unit = "request" if len(blocks) >= 8 else "token"
        evidence = {"tokens": int(n), "slope": least, "reverse_slope": most, "unit": unit}
        return Fit(value, low, high, explained, evidence)

    def mean_ratio(self) -> Interval | None:
        """`mean w` with its printed interval; None without tokens."""
        blocks = np.frombuffer(self.weights).reshape(-1, 7)
        if len(blocks) < 5:
            return None
        found = ratio(blocks[:, 1], blocks[:, 0])
        return Interval(1 - found.value, 1 - found.upper, 1 - found.lower, found.unit, found.n)

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """None by itself: `checks_policy.Policy` asks."""
        yield from ()


def is_both(cut: Cut | None, fit: Fit | None) -> bool:
    """Whether truncation and temperature are each needed: one for a mean ratio below 1, one for many ratios above 1.

    A sampler that is sharper than the other side rarely takes the tokens with large ratios: a mean ratio a little below 1
    may lack them alone.
    """
    if cut is None or fit is None or fit.explained < EXPLAINED_BESIDE or cut.above < MANY:
        return False
    return fit.evidence["slope"] < 0 or cut.balance >= BALANCE_SHARPER


def beside_cut(seen: Sampled, cut: Cut) -> tuple[str, dict[str, Any]]:
    """Words and evidence about a temperature that may be there beside a truncation, and need not be."""
    ends = seen.consistent()
    if ends is None:
        return "", {}
    low, high = (show(v) if RATIOS[0] < v < RATIOS[-1] else f"{show(v)} and beyond" for v in ends)
    more = (
        f"; {cut.above:.0%} of the tokens have d above {ABOVE}, which truncation alone never gives"
        if cut.above >= MANY
        else ""
    )
    words = (
        f"a temperature beside it cannot be told from {SOURCE}: with truncation, the sampler's logits may be {low} to "
        f"{high} times the other side's{more}"
    )
    return f"; {words}", {"consistent_ratios": list(ends), "share_above": cut.above}


def beside_fit(seen: Sampled) -> tuple[str, dict[str, Any]]:
    """Words and evidence about a truncation that may be there beside a temperature, and need not be."""
    mean = seen.mean_ratio()
    if mean is None or not math.isfinite(mean.lower):
        return "", {}
    most = min(1.0, max(0.0, 1 - mean.lower))
    words = (
        f"a truncation beside it is not seen: mean w {show(mean.value)} leaves room for at most {show(most)} of the mass"
        if mean.upper >= 1
        else f"mean w is {show(mean.value)}: a truncation of up to {show(most)} of the mass beside it, or tokens too rare to "
        "be sampled, cannot be told apart"
    )
    return f"; {words}", {"mean_ratio": mean.value, "missing_mass_at_most": most}


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
