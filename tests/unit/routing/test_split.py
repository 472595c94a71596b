"""The split by hash: sticky, monotone in the share, exact, replayable."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcverify.routing import split

SHARES = st.fractions(min_value=0, max_value=1, max_denominator=10_000)


def test_a_place_is_part_of_the_contract_with_logs() -> None:
    assert split.point("salt", "request-1") == split.point("salt", "request-1")
    assert split.point("salt", "request-1") != split.point("salt2", "request-1")
    assert split.point("a", "b") != split.point("a\0b", "")


@given(st.integers(0, 2**64 - 1), SHARES, SHARES)
def test_a_growing_share_keeps_every_request_that_it_had(place: int, a: Fraction, b: Fraction) -> None:
    low, high = sorted((a, b))
    assert not split.below(place, low) or split.below(place, high)
    assert split.below(place, Fraction(1)) and not split.below(place, Fraction(0))


@given(st.integers(0, 2**64 - 1), SHARES)
def test_every_place_has_one_side(place: int, share: Fraction) -> None:
    weights = {"candidate": share, "safe": 1 - share}
    assert split.side(place, weights) == ("candidate" if split.below(place, share) else "safe")
    assert split.side(place, {"guarded": share, "safe": 1 - share}) == (
        "guarded" if split.below(place, share) else "safe"
    )
    assert split.side(place, {}) is None


def test_shares_are_met() -> None:
    hits = sum(split.below(split.point("s", str(i)), Fraction(1, 20)) for i in range(20_000))
    assert abs(hits - 1000) < 120  # four standard deviations


@pytest.mark.parametrize("text", ["", "x", "101%", "-1", "2"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ValueError):
        split.share(text)
    assert split.share("5%") == Fraction(1, 20)
