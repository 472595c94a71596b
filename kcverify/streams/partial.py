"""Two-sided certificates of a token's total variation from what engines report: sampled token, lists, full rows.

`S` are the tokens known on both sides; everything follows from the overlap `sum min(p, q) = 1 - TV`: the known part of
it from below, and from above what the unknown masses can add at most (design note on partial information). Inputs are
log-probabilities, every answer is rounded outward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kcverify.streams.known import (
    Flags,
    Floats,
    Integers,
    Known,
    appended,
    beside,
    identifiers,
    improper,
    matrix,
    merge,
    slack,
)

_SAME = 1e-12
_BLOCK = 1 << 22
_UP = 1 + 2.0**-50


@dataclass(frozen=True)
class Error:
    """How far each reported log-probability may be from the true one, nats, on either side.

    `normalised`: whole rows are known to add up to 1 and every one of their values is within the error, which moves a
    total variation by at most `tanh(p/2) + tanh(q/2)`. Else only the listed values are within it: `(1 - e^-p) +
    (1 - e^-q)`, and the caps on tokens outside a list grow by `e^p`, `e^q`. Raises ValueError for a negative error.
    """

    p: float = 0.0
    q: float = 0.0
    normalised: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.p < np.inf and 0 <= self.q < np.inf):
            raise ValueError(f"an error is a finite number of nats, at least 0: {self.p}, {self.q}")

    @property
    def margins(self) -> tuple[float, float]:
        """What each side may move a total variation by, rounded up."""
        if self.normalised:
            return float(np.tanh(self.p / 2)) * _UP, float(np.tanh(self.q / 2)) * _UP
        return float(-np.expm1(-self.p)) * _UP, float(-np.expm1(-self.q)) * _UP

    @property
    def growth(self) -> tuple[float, float]:
        """Factors on the caps, rounded up."""
        return (1.0, 1.0) if self.normalised else (float(np.exp(self.p)) * _UP, float(np.exp(self.q)) * _UP)


EXACT = Error()
Sampled = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
"""Ids `[T]` of the sampled tokens and their log-probabilities on both sides."""


@dataclass(frozen=True)
class Bounds:
    """Total variation of each row is in `[lower - margin, upper + margin]`; float64 `[T]`, rounded outward.

    `margin` is what the declared error of the values adds. A row that no distribution can have is not `valid`; it gets
    `[0, 1]`. `unknown` is the smaller of the two unlisted masses, which is the gap where both sides are known on one
    set. `prefix_only`: the bounds do not depend on which token was sampled, which a stopped budget needs.
    """

    lower: Floats
    upper: Floats
    margin: Floats
    valid: Flags
    unknown: Floats
    prefix_only: bool
    basis: str

    def __len__(self) -> int:
        return int(self.lower.shape[0])

    @property
    def low(self) -> Floats:
        """Certified lower bound, margin included."""
        return np.maximum(0.0, self.lower - self.margin)

    @property
    def high(self) -> Floats:
        """Certified upper bound, margin included."""
        return np.minimum(1.0, self.upper + self.margin)


def _bounds(
    least: Floats, most: Floats, bad: Flags, unknown: Floats, margin: Floats, spare: float, basis: str, prefix: bool
) -> Bounds:
    """From the least and the largest overlap."""
    lower = np.clip(1.0 - most - spare, 0.0, 1.0)
    upper = np.clip(1.0 - least + spare, 0.0, 1.0)
    return Bounds(
        np.where(bad, 0.0, lower),
        np.where(bad, 1.0, upper),
        np.where(bad, 0.0, margin),
        ~bad,
        np.where(bad, 1.0, unknown),
        prefix,
        basis,
    )


def _masses(known: Known, error: Error, spare: float) -> tuple[Floats, Floats, Floats, Floats, Flags, Floats]:
    """Probabilities of both sides (NaN: unknown), masses outside the lists, bad rows, margin."""
    bad = known.conflict | improper(known.p, error.p, spare) | improper(known.q, error.q, spare)
    p, q = (np.exp(np.minimum(side, 0.0)) for side in (known.p, known.q))
    mass_p, mass_q = np.nansum(p, axis=1), np.nansum(q, axis=1)
    of_p, of_q = error.margins
    margin = of_p * np.maximum(1.0, mass_p) + of_q * np.maximum(1.0, mass_q)
    return p, q, np.maximum(0.0, 1.0 - mass_p), np.maximum(0.0, 1.0 - mass_q), bad, margin


def _least(p: Floats, q: Floats) -> Floats:
    """Overlap on the tokens that both sides know."""
    out: Floats = np.nansum(np.minimum(p, q), axis=1)
    return out


def common(
    p_logprobs: npt.ArrayLike,
    q_logprobs: npt.ArrayLike,
    ids: npt.ArrayLike | None = None,
    *,
    error: Error = EXACT,
    sampled: Sampled | None = None,
) -> Bounds:
    """Both sides known on one set: `(h + |p_r - q_r|)/2 <= TV <= (h + p_r + q_r)/2`, `h = sum |p - q|` on the set.

    Natural log-probabilities `[T, K]`; NaN is unknown, minus infinity is probability 0. `ids` int64 `[T, K]` (-1 where a
    list is shorter) let a token that is listed twice count once; without them every column is a token of its own. The
    gap is `min(p_r, q_r)`. Both ends are attained when two tokens or more are outside; with one, TV is the lower end.
    `sampled` adds a token that may be missing from the set. Raises ValueError for shapes that do not fit.
    """
    p, q = matrix(p_logprobs), matrix(q_logprobs)
    if p.shape != q.shape:
        raise ValueError(f"the sides have shapes {p.shape} and {q.shape}")
    columns = np.broadcast_to(np.arange(p.shape[1], dtype=np.int64), p.shape)
    places: Integers = columns if ids is None else identifiers(ids, p.shape)
    if sampled is not None:
        if ids is None:
            raise ValueError("a sampled token is added by its id: give `ids`")
        old = places
        places, p = appended(old, p, sampled[0], sampled[1])
        _, q = appended(old, q, sampled[0], sampled[2])
    known = merge(places, p, q, (2 * error.p + _SAME, 2 * error.q + _SAME))
    one_sided = np.isnan(known.p) | np.isnan(known.q)
    known = replace(known, p=np.where(one_sided, np.nan, known.p), q=np.where(one_sided, np.nan, known.q))
    spare = slack(known.p.shape[1])
    in_p, in_q, p_r, q_r, bad, margin = _masses(known, error, spare)
    least, rest = _least(in_p, in_q), np.minimum(p_r, q_r)
    return _bounds(least, least + rest, bad, rest, margin, spare, "both on S", sampled is None)


def sampled_token(p_logprobs: npt.ArrayLike, q_logprobs: npt.ArrayLike, *, error: Error = EXACT) -> Bounds:
    """Sampled token only: `|p_a - q_a| <= TV <= 1 - min(p_a, q_a)`, the case `S = {a}`; inputs `[T]`, NaN is unknown."""
    found = common(np.asarray(p_logprobs, np.float64).ravel(), np.asarray(q_logprobs, np.float64).ravel(), error=error)
    return replace(found, basis="sampled token", prefix_only=False)


def _cap(logprobs: Floats, growth: float) -> Floats:
    """The smallest probability of each list `[T]`, rounded up: no token outside has more. 1 for an empty list."""
    smallest = np.where(np.isnan(logprobs), np.inf, logprobs).min(axis=1, initial=0.0)
    cap: Floats = np.minimum(1.0, np.exp(smallest) * growth * _UP)
    return cap


def _listed(ids: npt.ArrayLike, logprobs: npt.ArrayLike) -> tuple[Integers, Floats]:
    values = matrix(logprobs)
    places = identifiers(ids, values.shape)
    return places, np.where(places < 0, np.nan, values)


def both_top(
    p_ids: npt.ArrayLike,
    p_logprobs: npt.ArrayLike,
    q_ids: npt.ArrayLike,
    q_logprobs: npt.ArrayLike,
    *,
    error: Error = EXACT,
    sampled: Sampled | None = None,
) -> Bounds:
    """Each side knows its own top-K only, lists `[T, K_p]` and `[T, K_q]`; a token outside a list is below its cap.

    The cap is the smallest value of the list itself. `sampled` (ids and both log-probabilities, `[T]`) adds a token
    that may be missing from either list; it changes no cap. The lower bound is exact, the upper is `1 - sum min` over the
    tokens that both know. Raises ValueError for shapes that do not fit.
    """
    (own_p, p), (own_q, q) = _listed(p_ids, p_logprobs), _listed(q_ids, q_logprobs)
    grow_p, grow_q = error.growth
    cap_p, cap_q = _cap(p, grow_p), _cap(q, grow_q)
    if sampled is not None:
        own_p, p = appended(own_p, p, sampled[0], sampled[1])
        own_q, q = appended(own_q, q, sampled[0], sampled[2])
    known = beside(own_p, p, own_q, q, (2 * error.p + _SAME, 2 * error.q + _SAME))
    spare = slack(known.p.shape[1])
    in_p, in_q, p_r, q_r, bad, margin = _masses(known, error, spare)
    least = _least(in_p, in_q)
    only_p = np.nansum(np.where(np.isnan(in_q), np.minimum(cap_q[:, None], in_p), 0.0), axis=1)
    only_q = np.nansum(np.where(np.isnan(in_p), np.minimum(cap_p[:, None], in_q), 0.0), axis=1)
    u, v = np.minimum(q_r, only_p), np.minimum(p_r, only_q)
    most = least + u + v + np.minimum(q_r - u, p_r - v)
    return _bounds(least, most, bad, np.minimum(p_r, q_r), margin, spare, "both top-K", sampled is None)


def full_against_top(
    full: npt.ArrayLike,
    top_ids: npt.ArrayLike,
    top_logprobs: npt.ArrayLike,
    *,
    error: Error = EXACT,
    sampled: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> Bounds:
    """One side full, natural log-probabilities `[T, V]`; of the other its top-K, `[T, K]` with ids below V.

    The overlap is largest when the other side's tail follows the full side below its cap, and smallest when it fills
    the cap on the tokens that the full side likes least: both ends are attained. `error.p` is that of the full side.
    `sampled` (ids and the other side's log-probability) adds a token to the list; it changes no cap. A row of the full
    side that does not add up to 1 within the error is not valid. Raises ValueError for shapes and ids that do not fit.
    """
    q, (own, p) = matrix(full), _listed(top_ids, top_logprobs)
    cap = _cap(p, error.growth[1])
    if sampled is not None:
        own, p = appended(own, p, sampled[0], sampled[1])
    if len(q) != len(p) or own.max(initial=-1) >= q.shape[1]:
        raise ValueError(f"full rows {q.shape}, lists {p.shape} with ids up to {own.max(initial=-1)}")
    known = merge(own, p, np.full(p.shape, np.nan), (2 * error.q + _SAME, 0.0))
    step = max(1, _BLOCK // max(1, q.shape[1]))
    parts = [_against(q[i : i + step], known, cap, error, i) for i in range(0, len(q), step)]
    columns = [np.concatenate([part[k] for part in parts]) if parts else np.zeros(0) for k in range(5)]
    least, most, unknown, margin, bad = columns
    spare = slack(q.shape[1] + p.shape[1])
    return _bounds(least, most, bad.astype(bool), unknown, margin, spare, "full against top-K", sampled is None)


def _against(q: Floats, known: Known, cap: Floats, error: Error, start: int) -> tuple[Floats, ...]:
    """Least and largest overlap, unknown mass, margin, bad rows of one block of full rows."""
    rows = slice(start, start + len(q))
    ids, listed, a = known.ids[rows], known.p[rows], cap[rows, None]
    spare = slack(q.shape[1] + ids.shape[1])
    of_full, of_list = error.margins
    total = np.exp(np.minimum(q, 1.0)).sum(axis=1)
    short = ~(total * np.exp(error.p) >= 1.0 - spare)  # true of a row with NaN as well
    bad = known.conflict[rows] | improper(q, error.p, spare) | improper(listed, error.q, spare) | short
    prob = np.where(bad[:, None], 0.0, np.exp(np.minimum(q, 0.0)))
    p, inside = np.exp(np.minimum(listed, 0.0)), ~np.isnan(listed)
    mass = np.nansum(p, axis=1)
    rest = np.maximum(0.0, 1.0 - mass)
    taken = np.take_along_axis(prob, np.maximum(ids, 0), 1)
    on_list = np.where(inside, np.minimum(p, taken), 0.0).sum(axis=1)
    row, column = np.nonzero(inside)
    prob[row, ids[row, column]] = np.inf
    count = np.isfinite(prob).sum(axis=1)
    room = np.where(np.isfinite(prob), np.minimum(a, prob), 0.0).sum(axis=1)
    most = on_list + np.minimum(rest, room)
    least = on_list + _filled(prob, count, rest, a[:, 0])
    margin = of_full * np.maximum(1.0, total) + of_list * np.maximum(1.0, mass)
    return least, most, rest, np.where(np.isfinite(margin), margin, 0.0), bad.astype(np.float64)


def _filled(tail: Floats, count: Integers, rest: Floats, cap: Floats) -> Floats:
    """Overlap when `rest` fills `cap` on the `count` finite tokens of each row, smallest first, then what is left."""
    full = np.where(cap > 0, np.floor(rest / np.where(cap > 0, cap, 1.0)), 0.0)
    whole = np.minimum(full, count).astype(np.int64)
    needed = int(whole.max(initial=0)) + 1
    if needed < tail.shape[1]:
        tail = np.partition(tail, needed, axis=1)[:, :needed]
    tail = np.sort(tail, axis=1)
    room = np.where(np.isfinite(tail), np.minimum(cap[:, None], tail), 0.0)
    sums = np.concatenate((np.zeros((len(tail), 1)), np.cumsum(room, axis=1)), axis=1)
    filled = np.take_along_axis(sums, whole[:, None], 1)[:, 0]
    place = np.minimum(whole, tail.shape[1] - 1)
    next_token = np.take_along_axis(tail, place[:, None], 1)[:, 0]
    remainder = np.clip(rest - whole * cap, 0.0, cap)
    out: Floats = filled + np.where(whole < count, np.minimum(remainder, next_token), 0.0)
    return out


@dataclass(frozen=True)
class Divergence:
    """KL(p || q) of each row is in `[lower, upper]`, nats, float64 `[T]`; `note` says why the upper end is infinite."""

    lower: Floats
    upper: Floats
    valid: Flags
    note: str


UNBOUNDED = "no upper bound: tokens outside the lists may have any small probability on the other side; give a floor"


def kl_cells(
    p_logprobs: npt.ArrayLike, q_logprobs: npt.ArrayLike, *, floor: float = 0.0, error: Error = EXACT
) -> Divergence:
    """KL(p || q) from cells: the known tokens `[T, K]` (each column a token) and one cell for the rest.

    Merging tokens loses divergence (log-sum inequality), so the cells give a lower bound. Nothing bounds the rest from
    above: the other side may give its tokens any small probability. With `floor`, which every token outside has at
    least on side q, `sum_rest p ln(p/q) <= p_r ln(p_r / floor)`. Raises ValueError for shapes that do not fit.
    """
    p, q = matrix(p_logprobs), matrix(q_logprobs)
    if p.shape != q.shape or not 0 <= floor <= 1:
        raise ValueError(f"shapes {p.shape} and {q.shape}, floor {floor}")
    unknown = np.isnan(p) | np.isnan(q)
    p, q = np.where(unknown, np.nan, p), np.where(unknown, np.nan, q)
    spare = slack(p.shape[1])
    bad = improper(p, error.p, spare) | improper(q, error.q, spare)
    with np.errstate(invalid="ignore"):
        d = np.where(np.isneginf(p), 0.0, p - q)  # 0 ln(0/q) = 0; p > 0 where q = 0 is infinite
        wide = error.p + error.q + 2.0**-50 * np.where(np.isinf(d), 0.0, np.abs(d))
        base = np.minimum(p, 0.0)
        small, large = np.exp(base - error.p) * (1 - 1e-14), np.exp(base + error.p) * (1 + 1e-14)
        some = large > 0
        low = np.nansum(np.where(some, np.where(d - wide >= 0, small, large) * (d - wide), 0.0), axis=1)
        high = np.nansum(np.where(some, np.where(d + wide >= 0, large, small) * (d + wide), 0.0), axis=1)
        high = np.where(np.isposinf(d).any(axis=1), np.inf, high)  # however small p is
    (p_low, p_high), (_, q_high) = (_rest(side, e, spare) for side, e in ((p, error.p), (q, error.q)))
    x = np.clip(q_high / np.e, p_low, p_high)  # x ln(x / q_r) is least at q_r / e
    tail_low = np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0) / np.maximum(q_high, 1e-300)), 0.0)
    if floor > 0:
        note, tail_high = "", p_high * np.maximum(0.0, np.log(np.maximum(p_high, 1e-300) / floor))
    else:
        note, tail_high = UNBOUNDED, np.full_like(p_high, np.inf)
    size = spare * (1 + np.where(np.isfinite(high), np.abs(high), 0.0))
    lower = np.maximum(0.0, low + tail_low - size)
    upper = np.maximum(lower, high + tail_high + size)
    return Divergence(np.where(bad, 0.0, lower), np.where(bad, np.inf, upper), ~bad, note)


def _rest(logprobs: Floats, error: float, spare: float) -> tuple[Floats, Floats]:
    """Smallest and largest mass outside the list."""
    mass = np.nansum(np.exp(np.minimum(logprobs, 0.0)), axis=1)
    low = np.maximum(0.0, 1.0 - mass * np.exp(error) - spare)
    return low, np.maximum(0.0, 1.0 - mass * np.exp(-error) + spare)
