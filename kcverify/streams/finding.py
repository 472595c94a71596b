"""What an identity check is given and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kcverify.codes import BY_SLUG, Severity
from kcverify.readers.stream import Stream
from kcverify.streams.adding import Additive, First
from kcverify.streams.align import Matching, Pair
from kcverify.streams.rows import Names, Tops, Whole

__all__ = ("ROLE", "SIDES", "Finding", "First", "Observer", "Setting", "show")

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
    """One identity finding: its code, the holes of the message, the cause in words, the evidence as plain data.

    `left_out`: rows without a number for this reason, by family of numbers (see `bearing`); `voids`: families that this
    finding voids beyond what its row says.
    """

    slug: str
    holes: Mapping[str, Any]
    cause: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    voids: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        """Of the code's row."""
        return BY_SLUG[self.slug].severity

    @property
    def message(self) -> str:
        """The message of the code's row, filled in."""
        return BY_SLUG[self.slug].message.format(**self.holes)


class Observer(Additive):
    """One check. It sees everything once, keeps little that adds up over shards, and answers at the end."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    @property
    def setting(self) -> Setting:
        """What the comparison was told."""
        return self._setting

    def close(self) -> None:
        """Nothing more comes of this shard."""

    def pair(self, pair: Pair) -> None:
        """See a pair of requests."""

    def whole(self, rows: Whole) -> None:
        """See rows of logits of both sides."""

    def tops(self, rows: Tops) -> None:
        """See lists of most probable tokens of both sides."""

    def findings(self, matching: Matching) -> Iterator[Finding]:
        """What was found."""
        yield from ()


def show(value: float) -> str:
    """A number for a message: four digits."""
    return f"{value:.4g}"
