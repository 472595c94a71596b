"""Checks of what was scored: the same tokens, at the same places, once each, by one version of the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from kcverify.readers.stream import Floats, Request, Status
from kcverify.streams.adding import Exact, Largest
from kcverify.streams.align import Matching, Pair
from kcverify.streams.bearing import LISTS, ROWS, SAMPLED
from kcverify.streams.finding import ROLE, SIDES, Finding, First, Observer, Setting, show
from kcverify.streams.rows import Whole

LAGS = (-3, -2, -1, 1, 2, 3)
_EACH = 2.690
"""Normal quantile of 95 % over the seven lags together (1 - 0.05 / 14)."""
"""Shifts that are tried."""

_SHOWN = 8


class TokenIdentity(Observer):
    """Pairs whose tokens differ: retokenised or mixed-up answers, and generations that part ways."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.different, self.generated = First(), First()
        self.reasons: dict[str, int] = {}
        self.unidentified = First()

    def pair(self, pair: Pair) -> None:
        """Sort a difference by what it looks like."""
        without = all(r.token_ids is None and r.tokens is None for r in (pair.left, pair.right))
        if pair.diverged is None:
            return
        place = {"request": pair.request_id, "position": pair.diverged}
        if without:
            self._different(place, "different numbers of tokens, and no token ids")
        elif pair.same_text:
            self._different(place, "the same text in different tokens: it was tokenised again")
        elif _distributions(pair) and pair.diverged >= 1 and not pair.rejoins:
            self.generated.add(1, place)
        elif pair.diverged == min(len(pair.left), len(pair.right)):
            self._different(place, "one side has more tokens")
        else:
            self._different(place, "different token ids")

    def _different(self, place: dict[str, Any], reason: str) -> None:
        self.different.add(1, place)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one of each kind."""
        if self.different.count:
            text = "; ".join(f"{reason} ({n} requests)" for reason, n in sorted(self.reasons.items()))
            detail = f"{text}; comparable up to position {_least(self.different)} of {self.different.where}"
            yield Finding(
                "token_identity",
                {"detail": detail},
                text,
                {"requests": self.different.count, "reasons": self.reasons, "first": self.different.place},
            )
        if self.generated.count:
            yield Finding(
                "token_divergence",
                {"count": self.generated.count, "first": _least(self.generated)},
                "each side generated its own answer",
                {"requests": self.generated.count, "first": self.generated.place},
            )


def _least(first: First) -> int:
    return 0 if first.place is None else int(first.place["position"])


def _distributions(pair: Pair) -> bool:
    return all(r.logits is not None or r.top_logprobs is not None for r in (pair.left, pair.right))


class Unmatched(Observer):
    """Requests of one side alone, and repeated ids."""

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one; where no request has a counterpart, the comparison is not observable instead."""
        left, right, repeated = sorted(matching.only_left), sorted(matching.only_right), sorted(matching.repeated)
        if not matching.pairs or not (left or right or repeated):
            return
        named = ((left, "in the reference alone"), (right, "in the candidate alone"), (repeated, "repeated"))
        detail = "; ".join(f"{len(n)} {what} ({_some(n)})" for n, what in named if n)
        yield Finding(
            "requests_unmatched",
            {"count": len(left) + len(right) + len(repeated), "detail": detail},
            detail,
            {"only_reference": left[:_SHOWN], "only_candidate": right[:_SHOWN], "repeated": repeated[:_SHOWN]},
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + ("" if len(names) <= 3 else ", …")


class Shift(Observer):
    """One side's numbers belong to neighbouring tokens: agreement at a lag, none where they stand.

    What is compared is the sampled token's log-probability, and each row's or list's largest: rows that are off by one
    give the tokens between them numbers which agree nowhere.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.sums = {kind: {lag: [Exact() for _ in range(7)] for lag in (0, *LAGS)} for kind in ("tokens", "rows")}
        self._rows: tuple[Pair, Floats, Floats] | None = None

    def whole(self, rows: Whole) -> None:
        """Keep the largest log-probability of each row of the pair under way."""
        if self._rows is None or self._rows[0] is not rows.pair:
            self.close()
            n = len(rows.pair.left_at)
            self._rows = (rows.pair, np.full(n, np.nan), np.full(n, np.nan))
        if rows.good.any():
            for series, values in zip(self._rows[1:], rows.peaks, strict=True):
                series[rows.places] = values

    def close(self) -> None:
        """Add the series of the pair under way."""
        if self._rows is not None:
            _, x, y = self._rows
            self._rows = None
            self._add("rows", x, y)

    def pair(self, pair: Pair) -> None:
        """Add the moments of the series at every lag."""
        n = pair.agreed
        left, right = pair.raw
        a, b = pair.statuses
        keep = pair.mask[:n]
        x = np.where((a == Status.VALUE) & keep, left, np.nan)
        y = np.where((b == Status.VALUE) & keep, right, np.nan)
        self._add("tokens", x, y)
        if pair.left.logits is None or pair.right.logits is None:
            self._add("rows", _peaks(pair, "left"), _peaks(pair, "right"))

    def _add(self, kind: str, x: Floats, y: Floats) -> None:
        for lag, sums in self.sums[kind].items():
            u, v = (x[: len(x) - lag], y[lag:]) if lag >= 0 else (x[-lag:], y[: len(y) + lag])
            both = np.isfinite(u) & np.isfinite(v)
            u, v = u[both], v[both]
            if len(u):
                terms = (len(u), u.sum(), v.sum(), (u * u).sum(), (v * v).sum(), (u * v).sum(), np.abs(u - v).sum())
                for held, term in zip(sums, terms, strict=True):
                    held.add(float(term))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """At most one, from tokens before rows."""
        for kind in self.sums:
            found = self._best(kind)
            if found is not None:
                yield found
                return

    def _best(self, kind: str) -> Finding | None:
        """The lag at which the sides agree best, if it is far better than none."""
        sums = {lag: np.array([held.value for held in held_at]) for lag, held_at in self.sums[kind].items()}
        here = sums[0]
        if here[0] < 5 or here[6] <= 0:
            return None
        lag = min(LAGS, key=lambda k: (_distance(sums[k]), abs(k), k))
        there = sums[lag]
        close, near, far = _correlation(there), _distance(there), _distance(here)
        margin = 3.0 / np.sqrt(max(4.0, there[0]))
        if there[0] < 5 or near > far / 3 or close < 0.9 or close - _correlation(here) < min(0.5, margin):
            return None
        low, high = _lags_like(sums, lag)
        return Finding(
            "shifted",
            {"lag": lag},
            f"reference[t] = candidate[t + {lag}]: scoring is off by {abs(lag)}; 95% interval of the lag [{low}, {high}]",
            {
                "lag": lag, "lag_interval": [low, high], "tokens": int(there[0]), "source": kind,
                "correlation": {"here": _correlation(here), "at_lag": close},
                "mean_abs_difference": {"here": far, "at_lag": near},
            },
        )  # fmt: skip


def _peaks(pair: Pair, side: str) -> Floats:
    """The largest log-probability of each row; NaN where there is none."""
    request, at = (pair.left, pair.left_at) if side == "left" else (pair.right, pair.right_at)
    if request.top_logprobs is not None and request.top_logprobs.shape[1]:
        rows = np.where(np.isnan(request.top_logprobs[at]), -np.inf, request.top_logprobs[at])
        top = rows.max(1)
        out: Floats = np.where(np.isfinite(top) & pair.mask, top, np.nan)
        return out
    return np.full(len(at), np.nan)


def _correlation(s: Floats) -> float:
    n = s[0]
    if n < 2:
        return 0.0
    a, b = s[3] - s[1] ** 2 / n, s[4] - s[2] ** 2 / n
    if a <= 1e-12 * s[3] or b <= 1e-12 * s[4]:
        return 0.0
    return float((s[5] - s[1] * s[2] / n) / np.sqrt(a * b))


def _lags_like(sums: dict[int, Floats], best: int) -> tuple[int, int]:
    """The least and the greatest lag whose mean |difference| cannot be told from the best one's (95 %, all lags together)."""
    ends = {lag: (_distance(s), _spread(s)) for lag, s in sums.items() if s[0] >= 5}
    limit = ends[best][0] + ends[best][1]
    like = [lag for lag, (mean, spread) in ends.items() if mean - spread <= limit]
    return min(like), max(like)


def _spread(s: Floats) -> float:
    """Half the width of the interval of a mean |difference|."""
    mean = s[6] / s[0]
    square = max(0.0, (s[3] + s[4] - 2 * s[5]) / s[0] - mean**2)
    return float(_EACH * np.sqrt(square / s[0]))


def _distance(s: Floats) -> float:
    return float(s[6] / s[0]) if s[0] >= 5 else np.inf


class Versions(Observer):
    """Answers whose tokens come from several versions of the weights."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = First()
        self.found: set[str] = set()
        self.left_out: Counter[str] = Counter()

    def pair(self, pair: Pair) -> None:
        """Look at every field that names versions."""
        for request in (pair.left, pair.right):
            versions = token_versions(request)
            if len(versions) > 1:
                self.seen.add(1, pair.place(0) if pair.agreed else {"request": pair.request_id, "position": 0})
                self.found |= versions
                self._count(pair)
                return

    def _count(self, pair: Pair) -> None:
        """What of the answer no number is made of."""
        self.left_out[SAMPLED] += len(pair.sampled.at)
        sides = (pair.left, pair.right)
        if all(r.logits is not None for r in sides):
            self.left_out[ROWS] += int(pair.mask.sum())
        elif all(r.logits is not None or r.top_logprobs is not None for r in sides):
            self.left_out[LISTS] += int(pair.mask.sum())

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for answers, one for declarations."""
        told = [self.setting.side(side).value("weights") for side in SIDES]
        if None not in told and told[0] != told[1]:
            yield Finding(
                "weights_differ",
                {"reference": told[0], "candidate": told[1]},
                "an update lies between the sides",
                {"reference": str(told[0]), "candidate": str(told[1])},
            )
        if self.seen.count:
            versions = ", ".join(sorted(self.found)[:_SHOWN])
            yield Finding(
                "weight_versions",
                {"count": self.seen.count, "versions": versions},
                "the weights were updated while the answer was generated",
                {"requests": self.seen.count, "versions": sorted(self.found)[:_SHOWN], "first": self.seen.place},
                self.left_out,
            )


def token_versions(request: Request) -> set[str]:
    """The versions of a request's counted tokens, from any field whose name says version or weights and holds a list."""
    found: set[str] = set()
    for key, value in request.fields.items():
        if not any(word in key.lower() for word in ("version", "weight")):
            continue
        if not isinstance(value, (list, tuple, np.ndarray)):
            continue
        values = list(value)
        counted = [v for v, m in zip(values, request.mask, strict=True) if m] if len(values) == len(request) else values
        found |= {str(v) for v in counted if v is not None and not (isinstance(v, (int, float)) and v < 0)}
    return found


class Duplicates(Observer):
    """Lists of most probable tokens in which a token stands twice."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen = {side: First() for side in SIDES}
        self.mass = {side: Largest(0.0) for side in SIDES}

    def pair(self, pair: Pair) -> None:
        """Count repeated ids in a list."""
        for side in SIDES:
            request, at = (pair.left, pair.left_at) if side == "left" else (pair.right, pair.right_at)
            if request.top_ids is None or request.top_ids.shape[1] < 2:
                continue
            ids = request.top_ids[at]
            order = np.sort(ids, axis=1)
            again = ((order[:, 1:] == order[:, :-1]) & (order[:, 1:] >= 0)).sum(1)
            rows = np.flatnonzero(again)
            if len(rows):
                self.seen[side].add(int(again.sum()), {"request": pair.request_id, "position": int(rows[0])})
                if request.top_logprobs is not None:
                    listed = np.exp(request.top_logprobs[at][rows])
                    self.mass[side].add(float(np.nansum(listed, axis=1).max()))

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """One for each side."""
        for side in SIDES:
            seen = self.seen[side]
            if seen.count:
                yield Finding(
                    "duplicate_token",
                    {"count": seen.count, "side": ROLE[side]},
                    f"with repetitions a list holds up to {show(self.mass[side].value)} of the mass; each token counts once",
                    {
                        "side": ROLE[side],
                        "count": seen.count,
                        "mass_before": self.mass[side].value,
                        "first": seen.place,
                    },
                )
