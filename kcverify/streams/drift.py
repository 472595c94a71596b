"""How far two comparable streams are apart: exactly from whole rows, in bounds from lists and from sampled tokens."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

from kcverify.readers.stored import Stored, kl_interval, tv_interval
from kcverify.readers.stream import Floats, Integers, Request
from kcverify.streams.adding import Additive, Exact, Largest, part
from kcverify.streams.align import Pair
from kcverify.streams.bearing import LISTS, ROWS, SAMPLED
from kcverify.streams.intervals import Histogram, ratio
from kcverify.streams.partial import Bounds, Error, both_top, full_against_top, sampled_token
from kcverify.streams.rows import Tops, Whole, dots

FLOAT32_ERROR = 2e-6
"""Nats by which a log-probability that was computed and written in float32 may be off."""

WITNESSES = 10
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@part
class Metric(Additive):
    """One metric over rows: its mean with an interval over requests, quantiles, the largest rows with their places."""

    def __init__(self, name: str, unit: str, basis: str, meaning: str, most: float = math.inf) -> None:
        self._about = name, unit, basis, meaning
        self._most = most
        self.sums, self.counts = array("d"), array("d")
        self.values, self.infinite = Histogram(), 0
        self.ends, self.bounded = (Exact(), Exact()), 0
        self.top: list[tuple[float, dict[str, Any]]] = []
        self._name: str | None = None

    @property
    def name(self) -> str:
        """Of the metric."""
        return self._about[0]

    def add(self, pair: Pair, at: Integers, values: Floats, **ends: Floats) -> None:
        """Values of rows of a pair; infinite ones are counted and make the mean infinite. The largest keep their `ends`."""
        if not len(values):
            return
        if self._name != pair.request_id:
            self._name = pair.request_id
            self.sums.append(0.0)
            self.counts.append(0.0)
        finite = np.isfinite(values)
        self.infinite += int((~finite).sum())
        self.sums[-1] += float(values.sum())
        self.counts[-1] += len(values)
        self.values.add(np.abs(values[finite]))
        least = self.top[-1][0] if len(self.top) == WITNESSES else -math.inf
        for i in np.argsort(-values, kind="stable")[:WITNESSES]:
            if values[i] >= least:
                told = {name: float(end[i]) for name, end in ends.items()}
                self.top.append((float(values[i]), pair.place(int(at[i])) | told))
        self.top = sorted(self.top, key=_order)[:WITNESSES]

    def merge(self, other: Metric) -> None:
        """Add what another counted."""
        super().merge(other)
        self._name = None
        self.top = sorted(self.top, key=_order)[:WITNESSES]

    def between(self, lower: Floats, upper: Floats) -> None:
        """What the engine's own rows can have had, where the file's were rounded or clipped."""
        for end, values in zip(self.ends, (lower, upper), strict=True):
            end.add(math.fsum(values))
        self.bounded += len(lower)

    def result(self) -> dict[str, Any] | None:
        """The row of the drift table; None without values. `stored` bounds the mean of the engine's own rows."""
        if not len(self.sums):
            return None
        mean = ratio(self.sums, self.counts)
        known = mean.n >= 2 and math.isfinite(mean.value)
        stored = None
        if self.bounded:
            stored = dict(zip(("lower", "upper"), (end.value / self.bounded for end in self.ends), strict=True))
        name, unit, basis, meaning = self._about
        return {
            "metric": name, "unit": unit, "basis": basis, "meaning": meaning, "mean": mean.value,
            "lower": max(0.0, mean.lower) if known else None, "upper": min(self._most, mean.upper) if known else None, "requests": mean.n, "rows": int(math.fsum(self.counts)),
            "infinite": self.infinite, "quantiles": {f"p{100 * q:g}": self.values.quantile(q) for q in QUANTILES},
            "stored": stored, "max": self.top[0][0], "worst": [{"value": v, **place} for v, place in self.top],
        }  # fmt: skip


def _order(entry: tuple[float, dict[str, Any]]) -> tuple[float, str, int]:
    value, place = entry
    return -value, str(place["request"]), int(place["position"])


@part
class Bounded(Additive):
    """Bounds of TV by row and by request."""

    def __init__(self, basis: str, meaning: str, family: str = LISTS) -> None:
        self._family = family
        self.low = Metric("TV, at least", "", basis, meaning)
        self.high = Metric("TV, at most", "", basis, meaning)
        self.requests: dict[str, array[float]] = {}
        self._basis, self.invalid = basis, 0

    def add(self, pair: Pair, at: Integers, bounds: Bounds) -> None:
        """Bounds of rows of a pair; a row that no distribution can have counts as [0, 1]."""
        if not len(at):
            return
        self.low.add(pair, at, bounds.low, upper=bounds.high)
        self.high.add(pair, at, bounds.high, lower=bounds.low)
        self.invalid += int((~bounds.valid).sum())
        held = self.requests.setdefault(pair.request_id, array("d"))
        held.extend((len(at), float(bounds.low.sum()), float(bounds.high.sum())))

    def result(self) -> dict[str, Any] | None:
        """Both ends over rows, and the widest intervals of requests."""
        low, high = self.low.result(), self.high.result()
        if low is None or high is None:
            return None
        totals = [(name, [math.fsum(held[i::3]) for i in range(3)]) for name, held in self.requests.items()]
        order = sorted(totals, key=lambda e: (-e[1][1] / e[1][0], e[0]))
        worst = [
            {"request": name, "rows": int(n), "lower": a / n, "upper": b / n, "sum_lower": a, "sum_upper": b}
            for name, (n, a, b) in order[:WITNESSES]
        ]
        return {
            "basis": self._basis, "family": self._family, "rows": low["rows"], "invalid_rows": self.invalid, "lower": low["mean"],
            "upper": high["mean"], "lower_max": low["max"], "upper_max": high["max"],
            "largest_lower": low["worst"], "largest_upper": high["worst"], "requests": worst,
        }  # fmt: skip


class Drift(Additive):
    """Everything that the rows and tokens of comparable pairs say about their distance."""

    def __init__(self) -> None:
        exact = "whole rows, exact"
        metrics = (
            Metric("TV", "", exact, "half the L1 distance of the two rows", 1.0),
            Metric("KL(ref||cand)", "nat", exact, "inf where the candidate bans a token that the reference has"),
            Metric("KL(cand||ref)", "nat", exact, "inf where the reference bans a token that the candidate has"),
            Metric(
                "logit span",
                "nat",
                exact,
                "largest minus smallest difference of logits, tokens banned by both left out",
            ),
            Metric("other top-1", "", exact, "share of rows whose most probable token differs", 1.0),
        )
        self.metrics = {metric.name: metric for metric in metrics}
        self.rounded = Largest(0.0)
        self.lists = Bounded("lists of both sides", "each side's own most probable tokens")
        self.mixed = Bounded("whole rows against lists", "one side whole, of the other its most probable tokens")
        self.sampled = Bounded("sampled token", "|p - q| to 1 - min(p, q)", SAMPLED)

    def whole(self, rows: Whole) -> None:
        """Exact metrics of the good rows."""
        self._error(rows.pair, rows.places)
        a, b = rows.logprobs
        for metric, values in zip(self.metrics.values(), _distances(rows), strict=True):
            metric.add(rows.pair, rows.places, values)
        if rows.pair.left.error is not None or rows.pair.right.error is not None:
            left = Stored(a, *_stored(rows.pair.left, rows.pair.left_at[rows.places]))
            right = Stored(b, *_stored(rows.pair.right, rows.pair.right_at[rows.places]))
            tv, there, back = list(self.metrics.values())[:3]
            tv.between(*tv_interval(left, right))
            there.between(*kl_interval(left, right))
            back.between(*kl_interval(right, left))

    def _error(self, pair: Pair, at: Integers) -> None:
        for request, where in ((pair.left, pair.left_at), (pair.right, pair.right_at)):
            if request.error is not None and len(at):
                self.rounded.add(float(np.max(request.error[where[at]])))

    def tops(self, rows: Tops, whole: Floats | None = None) -> None:
        """Bounds from lists; with `whole`, the other side's whole rows of log-probabilities."""
        error = error_of(rows.pair, rows.at)
        if whole is None:
            found = both_top(rows.left_ids, rows.left, rows.right_ids, rows.right, error=error, sampled=_sampled(rows))
            self.lists.add(rows.pair, rows.at, found)
        elif rows.whole_side == "left":
            self.mixed.add(rows.pair, rows.at, full_against_top(whole, rows.right_ids, rows.right, error=error))
        else:
            turned = Error(error.q, error.p)
            self.mixed.add(rows.pair, rows.at, full_against_top(whole, rows.left_ids, rows.left, error=turned))

    def pair(self, pair: Pair) -> None:
        """Bounds from the sampled tokens."""
        s = pair.sampled
        if len(s.at):
            found = sampled_token(np.minimum(s.left, 0.0), np.minimum(s.right, 0.0), error=error_of(pair, s.at))
            self.sampled.add(pair, s.at, found)

    def kept(self) -> dict[str, int]:
        """Rows by family of numbers."""
        parts = (
            (ROWS, list(self.metrics.values())[:1]),
            (LISTS, [self.lists.low, self.mixed.low]),
            (SAMPLED, [self.sampled.low]),
        )
        return {family: int(sum(math.fsum(m.counts) for m in metrics)) for family, metrics in parts}

    def result(self) -> dict[str, Any]:
        """The drift table, the bounds by source, and what both rest on."""
        table = [row for metric in self.metrics.values() if (row := metric.result()) is not None]
        bounds = [row for part in (self.mixed, self.lists, self.sampled) if (row := part.result()) is not None]
        notes = []
        if table and self.rounded.value:
            notes.append(
                f"the files round each log-probability by up to {self.rounded.value:.3g} nats; `stored` bounds the engine's means"
            )
        if any(part.invalid for part in (self.lists, self.mixed, self.sampled)):
            notes.append("rows that no distribution can have count as TV in [0, 1]")
        return {"table": table, "bounds": bounds, "notes": notes}


def _stored(request: Request, at: Integers) -> tuple[Floats, Floats]:
    """Error and floor of a request's rows; none where the file has none."""
    error = np.zeros(len(at)) if request.error is None else request.error[at]
    return error, np.full(len(at), -np.inf) if request.floor is None else request.floor[at]


def error_of(pair: Pair, at: Integers) -> Error:
    """How far the log-probabilities of a block of rows may be off, by side: the file's word, else float32's rounding."""
    left, right = (
        FLOAT32_ERROR if r.error is None or not len(at) else max(FLOAT32_ERROR, float(np.max(r.error[where[at]])))
        for r, where in ((pair.left, pair.left_at), (pair.right, pair.right_at))
    )
    return Error(left, right)


def _sampled(rows: Tops) -> tuple[Integers, Floats, Floats] | None:
    """Ids and both log-probabilities of the sampled tokens; None where ids are texts or a number is missing."""
    ids = rows.pair.left.token_ids
    if ids is None or rows.pair.left.top_ids is None or rows.pair.right.top_ids is None:
        return None
    s = rows.pair.sampled
    place = {int(at): i for i, at in enumerate(s.at)}
    found = np.array([place.get(int(at), -1) for at in rows.at], dtype=np.int64)
    if not (found >= 0).any():
        return None
    known, pick = found >= 0, np.maximum(found, 0)
    tokens = np.where(known, ids[rows.pair.left_at[rows.at]], -1)
    return tokens, np.where(known, s.left[pick], np.nan), np.where(known, s.right[pick], np.nan)


def _distances(rows: Whole) -> tuple[Floats, ...]:
    """The metrics of `Drift` for the good rows, in its order."""
    (a, b), (p, q) = rows.logprobs, rows.probabilities
    apart = np.subtract(p, q)
    tv = np.abs(apart, out=apart).sum(1) / 2
    top = (a.argmax(1) != b.argmax(1)) * 1.0
    if rows.banned[0].any() or rows.banned[1].any():
        return tv, _kl(p, a, b), _kl(q, b, a), _span(a, b), top
    d = rows.difference
    there, back = np.maximum(0.0, dots(p, d)), np.maximum(0.0, -dots(q, d)) + 0.0
    return tv, there, back, d.max(1) - d.min(1), top


def _kl(p: Floats, a: Floats, b: Floats) -> Floats:
    """`sum p (a - b)` with `0 log 0 = 0` and plus infinity where `p > 0` and `b` is minus infinity; never below 0."""
    with np.errstate(invalid="ignore"):
        terms = np.where(p > 0, p * (a - b), 0.0)
    out: Floats = np.maximum(0.0, terms.sum(1))
    return out


def _span(a: Floats, b: Floats) -> Floats:
    """Largest minus smallest `a - b` where not both are minus infinity."""
    with np.errstate(invalid="ignore"):
        d = np.where(np.isneginf(a) & np.isneginf(b), np.nan, a - b)
        out: Floats = np.nanmax(d, axis=1) - np.nanmin(d, axis=1)
    return out
