"""Marks of states through a reduction of fixed size, without processes: what the ranks tell is added up here."""

from __future__ import annotations

import random
from functools import reduce

import pytest
import torch

from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.marks import _MIX, Told, overlap, read_marks, told

HOST = torch.device("cpu")


def together(*ranks: set[int]) -> Told:
    """What every rank knows after the minima and the sums."""
    each = [told(keys, HOST) for keys in ranks]
    return Told(reduce(torch.minimum, (t.least for t in each)), torch.stack([t.sums for t in each]).sum(0))


def in_bucket(bucket: int, count: int) -> set[int]:
    """Marks of one bucket: the hash multiplies by an odd number, which can be undone."""
    back = pow(_MIX, -1, 1 << 64)
    marks = ((((bucket << 52) + 977 * i) * back) % (1 << 64) for i in range(1, 1 << 20))
    return {m for m, _ in zip((m for m in marks if m < 1 << 62), range(count), strict=False)}


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_the_marks_of_all_ranks_come_back(count: int) -> None:
    draw = random.Random(count)
    ranks = [{draw.getrandbits(62) for _ in range(count)} for _ in range(3)]
    found = together(*ranks)
    assert found.marks() == set().union(*ranks)
    assert not len(found.shared()) and not bool(found.full().any())


@pytest.mark.parametrize("others", [0, 1])
def test_a_mark_of_two_ranks_is_seen_beside_another(others: int) -> None:
    marks = sorted(in_bucket(7, 1 + others))
    for shared in marks:
        rest = set(marks) - {shared}
        assert together({shared}, {shared} | rest).shared().tolist() == [shared]
        assert together({shared}, {shared}, rest).shared().tolist() == [shared]


def test_three_marks_of_a_bucket_come_back_and_more_stand_for_all_of_it() -> None:
    marks, other = in_bucket(9, 5), in_bucket(10, 1)
    three = set(sorted(marks)[:3])
    assert together(three - {min(three)}, {min(three)}, other).marks() == three | other
    full = together(marks, other).marks()
    assert full == {-1 - 9} | other
    assert overlap(full, {min(marks)}) and overlap({max(marks)}, full) and overlap({-1 - 9}, full)
    assert "cannot be told apart" in str(overlap({min(marks)}, {-1 - 9}))
    assert overlap({-1 - 9}, other) is None and overlap({-1 - 9}, {-1 - 10}) is None
    assert bool(together({-1 - 9}, {min(marks)}).full().any()) and not bool(together({-1 - 9}, other).full().any())
    assert together({-1 - 9}, {-1 - 9}).shared().tolist() == [-1 - 9]
    assert together({-1 - 9}, other).marks() == {-1 - 9} | other


def test_thousands_of_states_are_never_taken_for_new_ones() -> None:
    draw = random.Random(5)
    ranks = [{draw.getrandbits(62) for _ in range(3000)} for _ in range(2)]
    synced = together(*ranks).marks()
    assert len(synced) < 6000
    assert all(overlap(synced, {mark}) and overlap({mark}, synced) for mark in [*ranks[0]][:50])
    fresh = [draw.getrandbits(62) for _ in range(200)]
    assert sum(overlap(synced, {mark}) is None for mark in fresh) > 150


def test_marks_of_a_file_are_integers_of_64_bits() -> None:
    assert read_marks([1, 1, -5]) == {1, -5}
    for wrong in ([1 << 63], ["1"], [1.0]):
        with pytest.raises(MonitorInputError, match="origins"):
            read_marks(wrong)
