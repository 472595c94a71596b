"""What an identity check is given and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kcverify.codes import BY_SLUG, Severity
from kcverify.readers.stream import Stream
from kcverify.streams.align import Matching, Pair
from kcverify.streams.rows import Names, Tops, Whole

SIDES = ("left", "right")
ROLE = {"left": "reference", "right": "candidate"}
"""The first file is the reference, the second the candidate."""


@dataclass(frozen=True)
class Setting:
    """What a comparison is told: the streams, which side sampled the tokens, windows and floors to test against."""

    left: Stream
    right: Stream
    sampled_by: str = "right"
    window: tuple[float, float] | None = None
    kept_floor: float | None = None
    names: Names = field(default_factory=Names)

    def side(self, name: str) -> Stream:
        """The stream of `left` or `right`."""
        return self.left if name == "left" else self.right

    @property
    def other(self) -> str:
        """The side that did not sample the tokens."""
        return "left" if self.sampled_by == "right" else "right"


@dataclass(frozen=True)
class Finding:
    """One identity finding: its code, the holes of the message, the cause in words, the evidence as plain data."""

    slug: str
    holes: Mapping[str, Any]
    cause: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """Of the code's row."""
        return BY_SLUG[self.slug].severity

    @property
    def message(self) -> str:
        """The message of the code's row, filled in."""
        return BY_SLUG[self.slug].message.format(**self.holes)


class Observer:
    """One check. It sees everything once, keeps little, and answers at the end."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def pair(self, pair: Pair) -> None:
        """See a pair of requests."""

    def whole(self, rows: Whole) -> None:
        """See rows of logits of both sides."""

    def tops(self, rows: Tops) -> None:
        """See lists of most probable tokens of both sides."""

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """What was found."""
        yield from ()


class First:
    """A count with its first place, where first is by request and position, so that order changes nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.place: dict[str, Any] | None = None

    def add(self, count: int, place: dict[str, Any]) -> None:
        """Count more, the first of them at `place`."""
        if count <= 0:
            return
        self.count += count
        if self.place is None or _key(place) < _key(self.place):
            self.place = place

    @property
    def where(self) -> str:
        """The place in words."""
        if self.place is None:
            return "nowhere"
        return f"request {self.place['request']}, position {self.place['position']}"


def _key(place: Mapping[str, Any]) -> tuple[str, int]:
    return str(place["request"]), int(place["position"])


def show(value: float) -> str:
    """A number for a message: four digits."""
    return f"{value:.4g}"
