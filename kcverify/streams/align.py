"""Pairs the requests of two streams, and the positions of a pair, by the tokens that both scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from kcverify.readers.stream import Flags, Floats, Integers, Request, Status, Stream
from kcverify.streams.adding import Additive

Tokens = npt.NDArray[Any]

ZERO_AGAINST = -2.0
"""A log-probability of exactly 0.0 is no number where the other side has less than this for the same token.

Above it, 0.0 may be the only token that a truncated sampler kept.
"""

ALL_ZERO_AGAINST = -0.1
"""Nor are an answer's numbers that are 0.0 without exception, where the other side's mean is below this."""

SENTINELS = (-9999.0, -1000.0, -100.0)
"""Values that engines write for `missing` or `impossible`; none is a log-probability that a model gives."""

LEAST = -1e4
"""Nor is anything below this: masks write the smallest number of a format."""

POSITIVE = 1e-4
"""A log-probability above this is none; below it is a rounding error of probability one."""


@dataclass
class Matching(Additive):
    """How the requests of two streams were paired: ids of both, ids that only one side has, ids that repeat.

    `by` is `id`; `tokens` where the files name requests differently and their counted tokens agree; `order` where they
    name them differently, most begin with the same token, and the rest was generated apart.
    """

    pairs: int = 0
    by: str = "id"
    only_left: list[str] = field(default_factory=list)
    only_right: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    both: list[str] = field(default_factory=list)

    def parts(self) -> dict[str, Any]:
        """All but `by`, which is the same for all shards."""
        return {name: part for name, part in vars(self).items() if name != "by"}


@dataclass(frozen=True)
class Sampled:
    """The positions of a pair that both sides scored: indices into the pair, and log-probabilities of each side."""

    at: Integers
    left: Floats
    right: Floats


@dataclass(frozen=True)
class Pair:
    """One request on both sides. Position `i` of the pair is `left_at[i]` on the left and `right_at[i]` on the right.

    Both sides have the same token there, except at `diverged`, the first position of the pair where they do not: up to
    there the pair is comparable, and rows are comparable there too, since their context is still the same. `same_text`
    says that the tokens differ and the texts do not. `mask` bool: positions that count on both sides.
    """

    request_id: str
    left: Request
    right: Request
    left_at: Integers
    right_at: Integers
    diverged: int | None = None
    same_text: bool = False
    rejoins: bool = False

    @property
    def where(self) -> str:
        """The request as messages name it."""
        return f"request {self.request_id}"

    @cached_property
    def left_mask(self) -> Flags:
        """`mask` of the left side at the positions of the pair."""
        return self.left.mask[self.left_at]

    @cached_property
    def right_mask(self) -> Flags:
        """`mask` of the right side at the positions of the pair."""
        return self.right.mask[self.right_at]

    @cached_property
    def mask(self) -> Flags:
        """Positions that count on both sides."""
        return self.left_mask & self.right_mask

    @property
    def agreed(self) -> int:
        """Positions with the same token on both sides."""
        return len(self.left_at) if self.diverged is None else self.diverged

    @cached_property
    def statuses(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """What each side's log-probability is, sentinels and impossible zeros found out by comparison."""
        n = self.agreed
        a, b = self.left.status[self.left_at[:n]].copy(), self.right.status[self.right_at[:n]].copy()
        left, right = self._raw
        for own, other, status, theirs in ((left, right, a, b), (right, left, b, a)):
            number = status == Status.VALUE
            status[number & (np.isin(own, SENTINELS) | (own < LEAST))] = Status.PLACEHOLDER
            known = (theirs == Status.VALUE) & np.isfinite(other)
            zero, counted = number & (own == 0.0), number & self.mask[:n]
            all_zero = counted.sum() >= 2 and bool((own[counted] == 0.0).all()) and (known & counted).any()
            if all_zero and float(other[known & counted].mean()) < ALL_ZERO_AGAINST:
                status[zero] = Status.PLACEHOLDER
            status[zero & known & (other < ZERO_AGAINST)] = Status.PLACEHOLDER
            status[number & (own > POSITIVE)] = Status.BROKEN
        return a, b

    @cached_property
    def _raw(self) -> tuple[Floats, Floats]:
        n = self.agreed
        return _values(self.left, self.left_at[:n]), _values(self.right, self.right_at[:n])

    @cached_property
    def sampled(self) -> Sampled:
        """The counted positions where both sides have a number for the same token."""
        a, b = self.statuses
        left, right = self._raw
        both = (a == Status.VALUE) & (b == Status.VALUE) & self.mask[: self.agreed]
        both &= np.isfinite(left) & np.isfinite(right)
        return Sampled(np.flatnonzero(both), left[both], right[both])

    @property
    def raw(self) -> tuple[Floats, Floats]:
        """Each side's log-probabilities at the positions with the same token, as the files have them."""
        return self._raw

    def token(self, position: int) -> int | str | None:
        """The token at a position of the pair, as the left side has it."""
        at = int(self.left_at[position])
        if self.left.token_ids is not None:
            return int(self.left.token_ids[at])
        return self.left.tokens[at] if self.left.tokens is not None else None

    def place(self, position: int) -> dict[str, Any]:
        """Request, position and token of a position, for evidence."""
        return {"request": self.request_id, "position": position, "token": self.token(position)}


def _values(request: Request, at: Integers) -> Floats:
    if request.logprobs is not None:
        return request.logprobs[at]
    return np.full(len(at), np.nan)


def pairs(left: Stream, right: Stream, found: Matching, by: str | None = None) -> Iterator[Pair]:
    """Pairs of requests of the same id, in the order in which the second of each pair is met; `found` is filled.

    `by` is how they are paired (see `Matching`); None looks at the first requests and decides.
    Requests wait for their counterpart in memory: streams of the same order need no more than one. A repeated id is
    noted and its later requests are left out.
    """
    found.by = way(left, right) if by is None else by
    key = _KEYS[found.by]()
    waiting: tuple[dict[str, Request], dict[str, Request]] = ({}, {})
    seen: tuple[set[str], set[str]] = (set(), set())
    late: tuple[list[str], list[str]] = ([], [])
    sources = (left.requests(), right.requests())
    live = [True, True]
    while any(live):
        for side in (0, 1):
            request = next(sources[side], None) if live[side] else None
            if request is None:
                live[side] = False
                continue
            name = key(request, side)
            if name in seen[side]:
                found.repeated.append(request.request_id)
                continue
            seen[side].add(name)
            other = waiting[1 - side].pop(name, None)
            if other is None and not live[1 - side]:
                late[side].append(request.request_id)
            elif other is None:
                waiting[side][name] = request
            else:
                found.pairs += 1
                found.both.append(other.request_id if side else request.request_id)
                yield aligned(other, request) if side else aligned(request, other)
    found.only_left += [r.request_id for r in waiting[0].values()] + late[0]
    found.only_right += [r.request_id for r in waiting[1].values()] + late[1]


_PEEK = 64
"""Requests of each side by which it is decided how to pair them."""


@dataclass(frozen=True)
class _Peek:
    """What is kept of a request to decide how requests are paired."""

    name: str
    content: str | None
    begins: object
    counted: int


def _peek(request: Request) -> _Peek:
    at = np.flatnonzero(request.mask)
    content = _content(request) if request.token_ids is not None and len(at) else None
    begins: object = None
    if len(at) and request.token_ids is not None:
        begins = int(request.token_ids[at[0]])
    elif len(at) and request.tokens is not None:
        begins = request.tokens[int(at[0])]
    return _Peek(request.request_id, content, begins, len(at))


def way(left: Stream, right: Stream) -> str:
    """What requests are paired by: their id, unless the first requests of the two sides have no id in common.

    Then by their counted tokens, where the first requests share some; or by order, where there are few, as many on both
    sides, and most begin with the same token.
    """
    heads = [next(iter(s.requests()), None) for s in (left, right)]
    if heads[0] is None or heads[1] is None or heads[0].request_id == heads[1].request_id:
        return "id"
    first = [[_peek(r) for r in islice(s.requests(), _PEEK)] for s in (left, right)]
    if {p.name for p in first[0]} & {p.name for p in first[1]}:
        return "id"
    if {p.content for p in first[0]} & {p.content for p in first[1]} - {None}:
        return "tokens"
    return "id" if len(first[0]) == _PEEK or not _alike(first[0], first[1]) else "order"


Key = Callable[[Request, int], str]


def _by_tokens() -> Key:
    times: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def key(request: Request, side: int) -> str:
        known = request.token_ids is not None and request.mask.any()
        content = _content(request) if known else f"without tokens {request.request_id}"
        times[side][content] += 1
        return f"{content} {times[side][content]}"

    return key


def _by_order() -> Key:
    counts = [0, 0]

    def key(request: Request, side: int) -> str:
        counts[side] += 1
        return str(counts[side])

    return key


_KEYS: dict[str, Callable[[], Key]] = {
    "id": lambda: lambda request, side: request.request_id, "tokens": _by_tokens, "order": _by_order,
}  # fmt: skip
"""Ways of pairing: what a request is paired by, given the request and its side."""


def _alike(left: Sequence[_Peek], right: Sequence[_Peek]) -> bool:
    """Whether requests may be paired by their order: as many, and most begin alike or, without tokens, are as long."""
    if len(left) != len(right):
        return False
    same = [
        a.counted == b.counted if a.begins is None or b.begins is None else a.begins == b.begins
        for a, b in zip(left, right, strict=True)
    ]
    return 2 * sum(same) > len(same)


def _content(request: Request) -> str:
    """A digest of the counted tokens."""
    assert request.token_ids is not None
    return blake2b(request.token_ids[request.mask].tobytes(), digest_size=16).hexdigest()


def aligned(left: Request, right: Request) -> Pair:
    """The pair of two requests, by whole sequences or by the counted tokens, whichever agrees further."""
    whole = (np.arange(len(left)), np.arange(len(right)))
    counted = (np.flatnonzero(left.mask), np.flatnonzero(right.mask))
    best = _along(left, right, *whole)
    if len(counted[0]) and len(counted[1]) and (best.diverged is not None or len(left) != len(right)):
        other = _along(left, right, *counted)
        good, ours = other.agreed, int(best.mask[: best.agreed].sum())
        if good > ours or (good == ours and best.diverged is not None and other.diverged is None):
            best = other
    return best


def _along(left: Request, right: Request, a: Integers, b: Integers) -> Pair:
    """The pair along given positions of each side."""
    left_ids, right_ids = _identity(left, right)
    name = left.request_id
    if left_ids is None or right_ids is None:
        n = min(len(a), len(b))
        if len(a) == len(b):
            return Pair(name, left, right, a, b)
        return Pair(name, left, right, a[: n + 1][: len(b)], b[: n + 1][: len(a)], diverged=n)
    x, y = left_ids[a], right_ids[b]
    n = min(len(x), len(y))
    different = np.flatnonzero(x[:n] != y[:n])
    if not len(different) and len(x) == len(y):
        return Pair(name, left, right, a, b)
    first = int(different[0]) if len(different) else n
    keep = min(first + 1, n)
    return Pair(
        name, left, right, a[:keep], b[:keep], diverged=first, same_text=_same_text(left, right, a, b),
        rejoins=_rejoins(x[first:], y[first:]),
    )  # fmt: skip


def _identity(left: Request, right: Request) -> tuple[Tokens | None, Tokens | None]:
    if left.token_ids is not None and right.token_ids is not None:
        return left.token_ids, right.token_ids
    if left.tokens is not None and right.tokens is not None:
        return np.asarray(left.tokens, dtype=object), np.asarray(right.tokens, dtype=object)
    return None, None


def _same_text(left: Request, right: Request, a: Integers, b: Integers) -> bool:
    if left.tokens is None or right.tokens is None:
        return False
    return "".join(left.tokens[i] for i in a) == "".join(right.tokens[i] for i in b)


def _rejoins(x: Tokens, y: Tokens) -> bool:
    """Whether two sequences that start differently end alike: at least three tokens, or half of the shorter one."""
    n = min(len(x), len(y))
    same: Sequence[bool] = (x[len(x) - n :] == y[len(y) - n :])[::-1].tolist() if n else []
    tail = next((i for i, equal in enumerate(same) if not equal), len(same))
    return tail >= 3 or (tail >= 1 and 2 * tail >= n)
