"""Registry of what is computed from sampled tokens alone: formula, what it estimates, sign, class; in log space.

`t` is the trainer's log-probability of a sampled token, `g` that of the engine which sampled it, `d = t - g`, `w = e^d`.
Averages are over tokens that the engine sampled. `estimates` says of what, `kind` how far that can be trusted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kcverify.readers.stream import Floats
from kcverify.streams.adding import Additive, part
from kcverify.streams.align import Pair
from kcverify.streams.intervals import Interval, median, ratio

LogTerm = Callable[[Floats, Floats], Floats]
"""Logarithms of the non-negative terms of tokens with trainer `t` and engine `g`."""


@dataclass(frozen=True)
class Estimator:
    """One row. `log_terms` gives the logarithm of each token's non-negative term, `terms` signed ones.

    `finish` turns the mean of the terms into the number; `exact_when` says what must hold for `estimates` to be exact.
    """

    name: str
    formula: str
    estimates: str
    sign: str
    kind: str
    log_terms: LogTerm | None = None
    terms: LogTerm | None = None
    finish: Callable[[float], float] = field(default=lambda mean: mean)
    sampled_from: str = "the engine (rollout)"


def log_k3(d: Floats) -> Floats:
    """`log(e^d - 1 - d)`, accurate near 0 (series) and without overflow at either end."""
    size = np.abs(d)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        near = 2 * np.log(size) - math.log(2) + np.log1p(d / 3 * (1 + d / 4 * (1 + d / 5 * (1 + d / 6))))
        middle = np.log(np.expm1(np.minimum(d, 700.0)) - d)
        far = d + np.log1p(-(1 + d) * np.exp(-np.minimum(d, 700.0)))
    out: Floats = np.where(size < 1e-2, near, np.where(d > 30, far, middle))
    return out


def log_abs_expm1(d: Floats) -> Floats:
    """`log |e^d - 1|` without overflow."""
    with np.errstate(divide="ignore", over="ignore"):
        out: Floats = np.where(d > 30, d + np.log1p(-np.exp(-np.abs(d))), np.log(np.abs(np.expm1(np.minimum(d, 30)))))
    return out


def _log_square(d: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(2 * np.log(np.abs(d)) - math.log(2))


def _log_abs(d: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.abs(d)))


_SAMPLE = "estimate"
_LOW = "lower bound"

ROWS: tuple[Estimator, ...] = (
    Estimator(
        "k1", "-d", "KL(engine‖trainer)", "any", _SAMPLE, terms=lambda t, g: g - t,
    ),
    Estimator(
        "k2", "d^2 / 2", "KL(engine‖trainer), to second order only", ">= 0", "biased estimate",
        lambda t, g: _log_square(t - g),
    ),
    Estimator(
        "k3", "e^d - 1 - d", "KL(engine‖trainer) minus the trainer's mass off the engine's support", ">= 0", _SAMPLE,
        lambda t, g: log_k3(t - g),
    ),
    Estimator(
        "k3 of -d", "e^-d - 1 + d", "chi2(engine‖trainer) - KL(engine‖trainer), not KL(trainer‖engine)", ">= 0", _SAMPLE,
        lambda t, g: log_k3(g - t),
    ),
    Estimator(
        "mean ratio", "mean e^d", "1 where the supports match; 1 minus it is the mass that truncation cut off", ">= 0",
        _SAMPLE, lambda t, g: t - g,
    ),
    Estimator(
        "chi2", "mean e^2d - 1", "chi2(trainer‖engine) where the supports match; unbiased, so few tokens may give less than 0", ">= -1", _SAMPLE,
        lambda t, g: 2 * (t - g), finish=lambda mean: mean - 1,
    ),
    Estimator(
        "TV by ratio", "mean |e^d - 1| / 2", "TV minus half the trainer's mass off the engine's support", ">= 0", _SAMPLE,
        lambda t, g: log_abs_expm1(t - g), finish=lambda mean: mean / 2,
    ),
    Estimator(
        "binary TV", "mean |e^t - e^g|", "the mean over sampled tokens of a lower bound on TV", "[0, 1]", _LOW,
        lambda t, g: np.maximum(t, g) + _log_one_minus(-np.abs(t - g)),
    ),
    Estimator(
        "mult-prob error", "mean e^|d|", "no divergence: 1 where equal, reacts to spread and to bias alike", ">= 1",
        "diagnostic", lambda t, g: np.abs(t - g),
    ),
    Estimator(
        "mean |d|", "mean |d|", "no divergence: the size of the disagreement in nats", ">= 0", "diagnostic",
        lambda t, g: _log_abs(t - g),
    ),
)  # fmt: skip


def _log_one_minus(x: Floats) -> Floats:
    """`log(1 - e^x)` for `x <= 0`."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(-np.expm1(x)))


ESS = Estimator(
    "ESS", "(sum w)^2 / (n sum w^2)", "effective share of the sample under importance weights", "(0, 1]", "diagnostic"
)
"""Reported beside the rows; it is a function of two of their means."""


@part
class Top:
    """The largest term with its place; equal ones go by request and position, so that order changes nothing."""

    def __init__(self) -> None:
        self.value = -math.inf
        self.place: dict[str, Any] | None = None

    def add(self, value: float, place: dict[str, Any]) -> None:
        """See a term."""
        held = self.place
        before = held is not None and (held["request"], held["position"]) <= (place["request"], place["position"])
        if held is None or value > self.value or (value == self.value and not before):
            self.value, self.place = value, place

    def merge(self, other: Top) -> None:
        """See what another saw."""
        if other.place is not None:
            self.add(other.value, other.place)


class Sums(Additive):
    """What one pass keeps of each request: a (log) sum per row, the largest term with its place, and its size.

    `order` numbers the requests as their files have them: `shard` in the upper bits, the place in the shard below.
    """

    def __init__(self, sampled_by: str = "right", shard: int = 0) -> None:
        self._sampled_by, self._shard = sampled_by, shard
        self.order = array("q")
        self.count, self.total = array("d"), array("d")
        self.size, self.worst = array("d"), array("d")
        self.sums = {row.name: array("d") for row in ROWS}
        self.largest = {row.name: Top() for row in ROWS}
        self.names: list[str] = []

    def add(self, pair: Pair) -> None:
        """Take the sampled tokens of a pair."""
        s = pair.sampled
        if not len(s.at):
            return
        t, g = (s.left, s.right) if self._sampled_by == "right" else (s.right, s.left)
        d = t - g
        self.order.append((self._shard << 40) + len(self.order))
        self.names.append(pair.request_id)
        self.count.append(len(d))
        self.total.append(float(d.sum()))
        self.size.append(float(np.abs(d).sum()) / len(d))
        self.worst.append(float(np.abs(d).max()))
        for row in ROWS:
            if row.terms is not None:
                terms = row.terms(t, g)
                self.sums[row.name].append(float(terms.sum()))
                logs = _log_abs(terms)
            else:
                assert row.log_terms is not None
                logs = row.log_terms(t, g)
                self.sums[row.name].append(_log_sum(logs))
            at = int(np.argmax(logs))
            place = pair.place(int(s.at[at])) | {"log_ratio": float(d[at])}
            self.largest[row.name].add(float(logs[at]), place)

    @property
    def tokens(self) -> int:
        """Tokens that were compared."""
        return int(math.fsum(self.count))

    def log_mean(self, name: str) -> float:
        """The logarithm of the mean term of a row of non-negative terms."""
        return log_sum(np.frombuffer(self.sums[name], dtype=np.float64)) - math.log(self.tokens)


def _log_sum(logs: Floats) -> float:
    """`log sum exp` of the tokens of one request."""
    top = float(np.max(logs))
    return top + math.log(float(np.exp(logs - top).sum())) if math.isfinite(top) else top


def log_sum(logs: Floats) -> float:
    """`log sum exp` over requests, minus infinity of nothing; the order of the terms changes nothing."""
    if not len(logs):
        return -math.inf
    top = float(np.max(logs))
    if not math.isfinite(top):
        return top
    return top + math.log(math.fsum(np.exp(logs - top)))


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf


def results(sums: Sums) -> list[dict[str, Any]]:
    """One row for each estimator: its value with an interval over requests, and the largest single token's share.

    A mean beyond float64 is `inf` with `log_mean` finite: no infinity is multiplied with anything.
    """
    if not sums.tokens:
        return []
    out = [_result(row, sums) for row in ROWS]
    log_ess = 2 * sums.log_mean("mean ratio") - _log_mean_square(sums)
    out.append(
        _about(ESS)
        | {
            "value": _exp(log_ess),
            "lower": None,
            "upper": None,
            "unit": "request",
            "log_mean": log_ess,
            "largest_token": None,
        }
    )
    return out


def _log_mean_square(sums: Sums) -> float:
    return sums.log_mean("chi2")


def _about(row: Estimator) -> dict[str, Any]:
    return {
        "name": row.name, "formula": row.formula, "estimates": row.estimates, "sign": row.sign, "class": row.kind,
        "sampled_from": row.sampled_from,
    }  # fmt: skip


def _result(row: Estimator, sums: Sums) -> dict[str, Any]:
    held = np.frombuffer(sums.sums[row.name], dtype=np.float64)
    counts = np.frombuffer(sums.count, dtype=np.float64)
    log_largest, place = sums.largest[row.name].value, sums.largest[row.name].place or {}
    if row.terms is not None:
        values, whole = held, None
        size = math.fsum(np.abs(held))
        share = _exp(log_largest) / size if size > 0 else None
        share = share if share is None or share <= 1 else None
        log_mean = None
    else:
        with np.errstate(over="ignore"):
            values = np.exp(held)
        whole = log_sum(held)
        share = _exp(log_largest - whole) if math.isfinite(whole) else None
        log_mean = whole - math.log(sums.tokens)
    found = _interval(row, values, counts, log_mean)
    largest = None if share is None else place | {"share": share}
    return _about(row) | {
        "value": found.value, "lower": found.lower, "upper": found.upper, "unit": found.unit, "log_mean": log_mean,
        "largest_token": largest,
    }  # fmt: skip


def _interval(row: Estimator, values: Floats, counts: Floats, log_mean: float | None) -> Interval:
    if not np.isfinite(values).all():
        mean = math.inf if log_mean is None else _exp(log_mean)
        return Interval(row.finish(mean), -math.inf, math.inf, "request", len(counts))
    found = ratio(values, counts)
    ends = sorted((row.finish(found.lower), row.finish(found.upper)))
    value = row.finish(found.value if log_mean is None else _exp(log_mean))
    floor = {">= 0": 0.0, "[0, 1]": 0.0, ">= -1": -1.0}.get(row.sign, -math.inf)
    return Interval(value, max(floor, ends[0]), ends[1], found.unit, found.n)


BAD_SIZE, BAD_TIMES, BAD_LEAST = 1.0, 10.0, 0.1
"""A sequence is bad whose mean |d| is above 1 nat, or above 0.1 nat and ten times the median sequence's."""


def sequences(sums: Sums, most: int = 10) -> dict[str, Any] | None:
    """Weights of whole sequences, the worst ones by index, and the share that is bad; None without sampled tokens."""
    if not sums.tokens:
        return None
    size, total = np.frombuffer(sums.size), np.frombuffer(sums.total)
    middle = median(sums.size)
    bad = (size > BAD_SIZE) | ((size >= BAD_LEAST) & (size > BAD_TIMES * middle))
    place = {n: index for index, n in enumerate(sorted(sums.order))}
    order = sorted(range(len(size)), key=lambda i: (-size[i], sums.names[i]))[:most]
    log_weight = median(sums.total)
    return {
        "count": len(size), "median_log_weight": log_weight, "median_weight": _exp(log_weight),
        "log_weight_range": [float(total.min()), float(total.max())], "mean_abs_median": middle,
        "bad": int(bad.sum()), "bad_share": float(bad.mean()),
        "worst": [
            {
                "index": place[sums.order[i]], "request": sums.names[i], "tokens": int(sums.count[i]), "mean_abs": float(size[i]),
                "max_abs": float(sums.worst[i]), "log_weight": float(total[i]),
            }
            for i in order
        ],
    }  # fmt: skip
