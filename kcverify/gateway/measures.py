"""What a clause can be decided from: a row a metric, from the rows of both sides or from the exchange itself.

A value is an interval `[low, high]` that surely holds it. Evidence against a clause counts the low end, evidence for it
the high end; a clause that traffic cannot show says why, and never passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from kcverify.delivery.records import bound_at
from kcverify.emit.plan import PlannedClause
from kcverify.gateway.observed import Listed
from kcverify.streams.known import Flags, Floats, beside
from kcverify.streams.partial import Bounds, Error, both_top, kl_cells


@dataclass(frozen=True)
class Rows:
    """T positions of one request on both sides; `error` in nats; `vocabulary` where it is known.

    `spans`: first and last-but-one position of each choice of an answer with several, none of them empty. `tempered`: the log-probabilities are those that the sampler drew from. False where the request has a temperature
    and the engines report them before it.
    """

    tokens: tuple[int, ...]
    reference: Listed
    candidate: Listed
    error: float
    temperature: float
    tempered: bool
    vocabulary: int | None = None
    spans: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def choices(self) -> tuple[tuple[int, int], ...]:
        """Where each of the n choices begins and ends."""
        return self.spans or ((0, len(self.tokens)),)

    def by_choice(self, flags: Flags) -> Flags:
        """Whether any position of a choice has the flag, bool `[n]`."""
        return np.array([bool(flags[a:b].any()) for a, b in self.choices], bool)

    @cached_property
    def broken(self) -> Flags:
        """Positions that no distribution can have, bool `[T]`."""
        out: Flags = self.reference.broken | self.candidate.broken | ~self.tv.valid
        return out

    @cached_property
    def tv(self) -> Bounds:
        """Total variation of each position."""
        p, q, ids = self.reference, self.candidate, np.asarray(self.tokens, np.int64)
        error = Error(self.error, self.error)
        return both_top(p.ids, p.top, q.ids, q.top, error=error, sampled=(ids, p.logprobs, q.logprobs))

    @cached_property
    def known(self) -> tuple[Floats, Floats]:
        """Log-probabilities `[T, K']` of the tokens that both sides know, NaN elsewhere."""
        p, q = self.reference, self.candidate
        ids = np.asarray(self.tokens, np.int64)[:, None]
        both = beside(
            np.concatenate((p.ids, ids), 1), np.concatenate((p.top, p.logprobs[:, None]), 1),
            np.concatenate((q.ids, ids), 1), np.concatenate((q.top, q.logprobs[:, None]), 1),
            (2 * self.error + 1e-12, 2 * self.error + 1e-12),
        )  # fmt: skip
        one_sided = np.isnan(both.p) | np.isnan(both.q)
        return np.where(one_sided, np.nan, both.p), np.where(one_sided, np.nan, both.q)

    @cached_property
    def complete(self) -> Flags:
        """Positions whose known tokens are the whole vocabulary, bool `[T]`."""
        count = (~np.isnan(self.known[0])).sum(axis=1)
        out: Flags = count >= (math.inf if self.vocabulary is None else self.vocabulary)
        return out


Interval = tuple[Floats, Floats]
Measured = tuple[Floats, Floats] | str
"""Lowest and highest value of each position `[T]` (of each choice `[n]` for a row `request`), or why there is none."""


def _tv(rows: Rows, planned: PlannedClause) -> Measured:
    return rows.tv.low, rows.tv.high


def _sampled(rows: Rows) -> Interval:
    """`ln p - ln q` of the sampled tokens; the whole line where a side does not know one."""
    d = rows.reference.logprobs - rows.candidate.logprobs
    wide = 2 * rows.error + 2.0**-50 * np.abs(d)
    unknown = np.isnan(d)
    return np.where(unknown, -math.inf, d - wide), np.where(unknown, math.inf, d + wide)


def _token_log_ratio(rows: Rows, planned: PlannedClause) -> Measured:
    low, high = _sampled(rows)
    return np.maximum(np.maximum(low, -high), 0.0), np.maximum(np.abs(low), np.abs(high))


def _token_ratio(rows: Rows, planned: PlannedClause) -> Measured:
    low, high = _sampled(rows)
    with np.errstate(over="ignore"):
        return np.exp(low), np.exp(high)


def _token_inverse_ratio(rows: Rows, planned: PlannedClause) -> Measured:
    low, high = _sampled(rows)
    with np.errstate(over="ignore"):
        return np.exp(-high), np.exp(-low)


def _ratios(rows: Rows) -> Interval:
    """Smallest and largest `ln p - ln q` of the tokens that both sides know `[T]`; NaN where there is none."""
    p, q = rows.known
    with np.errstate(invalid="ignore"):
        d = p - q
    none: Flags = np.asarray(np.isnan(d).all(axis=1))
    filled: Floats = np.where(none[:, None], 0.0, d)
    least: Floats = np.nanmin(filled, axis=1)
    most: Floats = np.nanmax(filled, axis=1)
    return np.where(none, np.nan, least), np.where(none, np.nan, most)


def _log_ratio(rows: Rows, planned: PlannedClause) -> Measured:
    low, high = _ratios(rows)
    largest = np.maximum(np.abs(low), np.abs(high))
    least = np.nan_to_num(np.maximum(largest - 2 * rows.error, 0.0), nan=0.0)
    return least, np.where(rows.complete, largest + 2 * rows.error, math.inf)


def _logit_span(rows: Rows, planned: PlannedClause) -> Measured:
    """Differences of log-probabilities before temperature are those of logits, up to one constant a row."""
    if planned.clause.argument("mass") not in (None, Fraction(1)):
        return "a trimmed span needs whole rows"
    low, high = _ratios(rows)
    scale = rows.temperature if rows.tempered else 1.0
    span = (high - low) * scale
    wide = 4 * rows.error * scale
    return np.nan_to_num(np.maximum(span - wide, 0.0), nan=0.0), np.where(rows.complete, span + wide, math.inf)


def _kl(rows: Rows, *, swapped: bool) -> Measured:
    p, q = rows.known
    found = (
        kl_cells(q, p, error=Error(rows.error, rows.error))
        if swapped
        else kl_cells(p, q, error=Error(rows.error, rows.error))
    )
    low = np.where(found.valid, np.maximum(found.lower, 0.0), math.inf)
    return low, np.where(rows.complete & found.valid, found.upper, math.inf)


def _kl_reference(rows: Rows, planned: PlannedClause) -> Measured:
    return _kl(rows, swapped=False)


def _kl_candidate(rows: Rows, planned: PlannedClause) -> Measured:
    return _kl(rows, swapped=True)


def _agreement(rows: Rows, planned: PlannedClause) -> Measured:
    """1 where both sides have the same most probable token, 0 where they differ, the interval where a tie leaves it open."""
    if planned.top is not None and planned.top[0] != 1:
        return "agreement of more than the first token is not read from lists"
    if not rows.reference.width or not rows.candidate.width:
        return "a side gives no list of most probable tokens"
    reference, candidate = _first(rows.reference, rows.error), _first(rows.candidate, rows.error)
    low, high = [0.0] * len(rows), [1.0] * len(rows)
    for i, (a, b) in enumerate(zip(reference, candidate, strict=True)):
        low[i] = float(len(a) == 1 and a == b)
        high[i] = float(bool(a & b))
    return np.array(low, np.float64), np.array(high, np.float64)


def _first(side: Listed, error: float) -> list[set[int]]:
    """Tokens of each position that may be the most probable one."""
    out = []
    for ids, values in zip(side.ids, side.top, strict=True):
        best = np.nanmax(np.where(ids >= 0, values, -math.inf), initial=-math.inf)
        out.append({int(i) for i, v in zip(ids, values, strict=True) if i >= 0 and v >= best - 2 * error})
    return out


def _sequence(rows: Rows) -> Interval:
    """Sums over each choice `[n]`."""
    low, high = _sampled(rows)
    return np.array([low[a:b].sum() for a, b in rows.choices]), np.array([high[a:b].sum() for a, b in rows.choices])


def _sequence_ratio(rows: Rows, planned: PlannedClause) -> Measured:
    low, high = _sequence(rows)
    with np.errstate(over="ignore"):
        return np.exp(low), np.exp(high)


def _geometric_ratio(rows: Rows, planned: PlannedClause) -> Measured:
    low, high = _sequence(rows)
    sizes = np.array([b - a for a, b in rows.choices], np.float64)
    with np.errstate(over="ignore"):
        return np.exp(low / sizes), np.exp(high / sizes)


@dataclass(frozen=True)
class Measure:
    """How traffic shows a metric: from `rows` of both sides, or as a number of the exchange (`observed`).

    `untempered`: it is read from log-probabilities before temperature too. `request`: one value a request, or a choice of it.
    """

    rows: Callable[[Rows, PlannedClause], Measured] | None = None
    observed: str = ""
    untempered: bool = False
    request: bool = False
    never: str = ""


_ALL = "it is one number of all requests: give the state of a monitor that saw them to `gate` and `promote` with --evidence"
_BOTH = "it needs the scores of both sides on one prompt, which traffic does not carry"
_MEMORY = "an engine's answers do not state its memory"
_ROWS = "it needs whole rows of both sides, and answers carry the most probable tokens alone"
MEASURES: Mapping[str, Measure] = {
    "tv": Measure(_tv),
    "log_ratio": Measure(_log_ratio),
    "logit_span": Measure(_logit_span, untempered=True),
    "kl(reference || candidate)": Measure(_kl_reference),
    "kl(candidate || reference)": Measure(_kl_candidate),
    "agreement": Measure(_agreement, untempered=True),
    "token_log_ratio": Measure(_token_log_ratio),
    "token_ratio": Measure(_token_ratio),
    "token_inverse_ratio": Measure(_token_inverse_ratio),
    "sequence_ratio": Measure(_sequence_ratio, request=True),
    "geometric_ratio": Measure(_geometric_ratio, request=True),
    "latency": Measure(observed="latency", request=True),
    "time_to_first_token": Measure(observed="first", request=True),
    "failure_rate": Measure(observed="failed", request=True),
    "parse_rate": Measure(observed="parsed", request=True),
    "throughput": Measure(never=_ALL),
    "importance_ratio": Measure(never=_ROWS),
    "logit_drift": Measure(never="log-probabilities do not show a shift of all logits of a row"),
    "token_k3": Measure(never="not read from traffic; token_log_ratio is"),
    "chi2": Measure(never=_ROWS),
    "affinity": Measure(never=_ROWS),
    "rank": Measure(never=_ROWS),
    "flip_rate": Measure(never=_ROWS),
    "ess": Measure(never=_ALL),
    "perplexity_ratio": Measure(never=_ALL),
    "ece_drift": Measure(never=_ALL),
    "reward_delta": Measure(never=_BOTH),
    "accuracy_delta": Measure(never=_BOTH),
    "parse_rate_delta": Measure(never=_BOTH),
    "peak_memory": Measure(never=_MEMORY),
    "kv_cache": Measure(never=_MEMORY),
}
"""By the metric's name. A metric without a row here would be a bug: a test compares the table with the catalogue's."""


def limits_at(planned: PlannedClause, temperature: float) -> tuple[float, float]:
    """Both ends of the clause's limit, infinite where there is none."""
    lower = None if planned.lower is None else bound_at(planned.lower, temperature, down=False)
    upper = None if planned.upper is None else bound_at(planned.upper, temperature, down=True)
    return -math.inf if lower is None else lower, math.inf if upper is None else upper


def exceeding(found: Interval, planned: PlannedClause, temperature: float) -> tuple[Flags, Flags]:
    """Positions that surely exceed the limit, and those that may; NaN does both. Bool `[T]`."""
    low, high = found
    if planned.reading is not None and planned.reading.indicator and planned.clause.metric.name == "agreement":
        return ~(high >= 1.0), ~(low >= 1.0)
    lower, upper = limits_at(planned, temperature)
    surely = (low > upper) | (high < lower) | np.isnan(low) | np.isnan(high)
    maybe = ~((low >= lower) & (high <= upper))
    return surely, maybe
