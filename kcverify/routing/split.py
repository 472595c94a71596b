"""The split of traffic by a hash of salt and request id: sticky, monotone in the share, replayable from a log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction

from kcverify.exact import NumberError, parse_number

BITS = 64
ORDER = ("candidate", "guarded", "safe")
"""Sides from the low end of the hash range: a growing share keeps every request that it had."""


def point(salt: str, request_id: str) -> int:
    """The place of a request in [0, 2^64): the first 8 bytes of SHA-256 over salt, a zero byte and the id."""
    text = f"{salt}\0{request_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def below(place: int, share: Fraction) -> bool:
    """Whether a place is in the first `share` of the range; exact."""
    return place * share.denominator < share.numerator << BITS


def side(place: int, weights: Mapping[str, Fraction]) -> str | None:
    """The side that a place falls to, by weights that add up to 1; None where all weights are 0 (nothing serves)."""
    total = Fraction(0)
    for name in ORDER:
        total += weights.get(name, Fraction(0))
        if total and below(place, total):
            return name
    return None


def share(text: str) -> Fraction:
    """A share such as `5%` or `0.05`, exact. Raises ValueError outside [0, 1]."""
    try:
        found = parse_number(text.strip())
    except NumberError as error:
        raise ValueError(str(error)) from None
    if not 0 <= found <= 1:
        raise ValueError(f"{text} is no share")
    return found
