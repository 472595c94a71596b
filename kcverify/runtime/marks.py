"""Which states a state was added up from: random marks, and what is left of them after a reduction of fixed size.

Keys (of open requests, or marks) fall into 4,096 buckets by a hash. Over all ranks a bucket is told by its smallest and
largest key, their number and their sum: that gives every key back where a bucket has at most three. Marks of a bucket
with more are told by one number, `-1 - bucket`, which stands for whatever may be there. At 100 states that happens to
no bucket (1 in 17,000 has one), at 1,000 states to one in every second sync.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Set
from dataclasses import dataclass

import torch

from kcverify.runtime.errors import option_error
from kcverify.runtime.witness import LAST

BUCKETS = 4096
_MIX = -7046029254386353131  # the odd 64-bit integer nearest to 2^64 over the golden ratio


def new_mark() -> int:
    """A mark that no other state has."""
    return secrets.randbits(62)


def read_marks(found: Iterable[object]) -> set[int]:
    """Marks of a saved state. Raises `MonitorInputError` for what is no integer of 64 bits."""
    marks = set(found)
    if not all(isinstance(mark, int) and -(2**63) <= mark < 2**63 for mark in marks):
        raise option_error("state", "its origins are no integers of 64 bits")
    return {int(mark) for mark in marks if isinstance(mark, int)}


def overlap(first: Set[int], second: Set[int]) -> str | None:
    """Why two states must not be added up: a mark of both, or one in a full bucket of the other; None if they may."""
    if first & second:
        return "both hold the counts of one and the same state: its rows would count twice"
    (mine, full), (theirs, others) = _split(first), _split(second)
    if full & (theirs | others) or mine & others:
        return "both may hold the counts of one and the same state: one is of so many that they cannot be told apart"
    return None


def _split(marks: Set[int]) -> tuple[set[int], set[int]]:
    """Buckets of the marks, and full buckets."""
    full = {-1 - mark for mark in marks if _is_full(mark)}
    known = torch.tensor([mark for mark in marks if not _is_full(mark)], dtype=torch.int64, device="cpu")
    return set(_bucket(known).tolist()), full


def _is_full(mark: int) -> bool:
    return -BUCKETS <= mark < 0


def _bucket(keys: torch.Tensor) -> torch.Tensor:
    return ((keys * _MIX) >> 52) & (BUCKETS - 1)


@dataclass(frozen=True)
class Told:
    """Keys by bucket: `least` int64 `[2, BUCKETS]`, the smallest key and the smallest complement of a key (minima over
    the ranks), and `sums` int64 `[2, BUCKETS]`, the number of keys and their sum modulo 2^64 (sums over the ranks)."""

    least: torch.Tensor
    sums: torch.Tensor

    def shared(self) -> torch.Tensor:
        """Keys that two ranks have, as far as a bucket of two or three keys, or of equal keys, shows it: int64 `[k]`."""
        (low, high), (count, _), third = self._ends(), self.sums, self._third()
        twice = (count > 1) & (low == high)
        middle = (count == 3) & ((third == low) | (third == high))
        return torch.where(middle, third, low)[twice | middle]

    def full(self) -> torch.Tensor:
        """Whether a rank's state has a full bucket in which another rank has a mark too: bool `[BUCKETS]`."""
        low = self.least[0]
        return (self.sums[0] > 1) & (low < 0) & (low >= -BUCKETS)

    def marks(self) -> set[int]:
        """Every key, or `-1 - bucket` for those of a bucket that has more than three."""
        (low, high), (count, _), third = self._ends(), self.sums, self._third()
        number = torch.arange(BUCKETS, dtype=torch.int64, device=count.device)
        known = (low[(count > 0) & (count < 4)], high[(count > 1) & (count < 4)], third[count == 3])
        return set(torch.cat((*known, (-1 - number)[count > 3])).tolist())

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.least[0], ~self.least[1]

    def _third(self) -> torch.Tensor:
        low, high = self._ends()
        return self.sums[1] - low - high


def told(keys: Iterable[int], device: torch.device) -> Told:
    """What one rank tells of its keys."""
    key = torch.tensor(list(keys), dtype=torch.int64, device=device)
    bucket = torch.where((key < 0) & (key >= -BUCKETS), -1 - key, _bucket(key))
    least = torch.full((2, BUCKETS), LAST, dtype=torch.int64, device=device)
    sums = torch.zeros(2, BUCKETS, dtype=torch.int64, device=device)
    least[0].scatter_reduce_(0, bucket, key, "amin")
    least[1].scatter_reduce_(0, bucket, ~key, "amin")
    sums[0].scatter_add_(0, bucket, torch.ones_like(key))
    sums[1].scatter_add_(0, bucket, key)
    return Told(least, sums)
