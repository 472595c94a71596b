"""What one pass over pairs of requests keeps: the checks, the drift, the estimators. It adds up over shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcverify.streams import estimators
from kcverify.streams.align import Matching, Pair
from kcverify.streams.checks_tokens import token_versions
from kcverify.streams.drift import Drift
from kcverify.streams.finding import Setting
from kcverify.streams.identity import Identity
from kcverify.streams.projects import Reported
from kcverify.streams.rows import mixed_rows, top_rows, whole_rows


@dataclass(frozen=True)
class Options:
    """What a comparison may be told beyond its two streams."""

    sampled_by: str = "candidate"
    project: str | None = None
    fail_on: str = "error"
    window: tuple[float, float] | None = None
    kept_floor: float | None = None


DEFAULT = Options()


class Observation:
    """The state of a comparison. `shard` numbers the requests of this state behind those of earlier ones."""

    def __init__(self, setting: Setting, project: str | None = None, shard: int = 0) -> None:
        self.setting, self.matching = setting, Matching()
        self.identity, self.drift = Identity(setting), Drift()
        self.sums = estimators.Sums(setting.sampled_by, shard)
        self.reported = None if project is None else Reported(project, setting.sampled_by)

    def take(self, pairs: Iterable[Pair]) -> None:
        """See every pair. Infinities are counted where they arise."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for pair in pairs:
                self._take(pair)
            self.identity.close()

    def _take(self, pair: Pair) -> None:
        mixed = any(len(token_versions(request)) > 1 for request in (pair.left, pair.right))
        self.identity.pair(pair)
        if not mixed:
            self.drift.pair(pair)
            self.sums.add(pair)
            if self.reported is not None:
                self.reported.add(pair)
        drift = None if mixed else self.drift
        for block in whole_rows(pair):
            self.identity.whole(block)
            if drift is not None and block.widths[0] == block.widths[1] and block.good.any():
                drift.whole(block)
        width = self.setting.left.value("vocabulary")
        same = width if width == self.setting.right.value("vocabulary") and isinstance(width, int) else None
        for lists in top_rows(pair, self.setting.names, same):
            self.identity.tops(lists)
            if drift is not None:
                drift.tops(lists)
        for lists, whole, _ in mixed_rows(pair):
            self.identity.tops(lists)
            if drift is not None:
                drift.tops(lists, whole)

    def _parts(self) -> dict[str, Any]:
        named = {"matching": self.matching, "identity": self.identity, "drift": self.drift, "sums": self.sums}
        return named if self.reported is None else named | {"reported": self.reported}

    def merge(self, other: Observation) -> None:
        """Add what another saw, of other requests under the same setting; the order of merging changes nothing."""
        theirs = other._parts()
        for name, part in self._parts().items():
            part.merge(theirs[name])

    def dump(self) -> dict[str, Any]:
        """The state as JSON data."""
        return {name: part.dump() for name, part in self._parts().items()}

    def load(self, told: Mapping[str, Any]) -> None:
        """Take what `dump` wrote. Raises KeyError, TypeError, ValueError where it did not."""
        for name, part in self._parts().items():
            part.load(told[name])
