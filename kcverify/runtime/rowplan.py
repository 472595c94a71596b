"""What is computed of each row: the contract's choice among the row statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kcverify.runtime.order import GIVEN_STATISTICS, is_order_statistic

STATISTICS = (
    "logit_drift",
    "logit_span",
    "tv",
    "kl_reference_candidate",
    "kl_candidate_reference",
    "log_ratio",
    "ratio_min",
    "ratio_max",
    "chi2",
    "bc",
    "entropy_reference",
    "entropy_candidate",
    "token_log_ratio",
)
RAW_STATISTICS = frozenset({"logit_drift", "logit_span"})
SAMPLED_STATISTICS = GIVEN_STATISTICS | {"token_log_ratio"}
"""Those that need the sampled token of each row."""


def agreement_column(k: int, ordered: bool) -> str:
    """Name of the column of a top-k agreement."""
    return f"agreement_{k}_ordered" if ordered else f"agreement_{k}"


@dataclass(frozen=True)
class RowPlan:
    """Which statistics are computed: names of `STATISTICS` or of `order`, and top-k agreements as pairs `(k, ordered)`.

    With a `tv_limit`, total variation is only compared with it: a row whose certificate `sqrt(KL/2)` is at most the
    limit reports the certificate, an upper bound, and costs one sweep; other rows report the value itself.
    """

    statistics: frozenset[str]
    top: tuple[tuple[int, bool], ...] = ()
    tv_limit: float | None = None

    def __post_init__(self) -> None:
        unknown = {s for s in self.statistics - set(STATISTICS) if not is_order_statistic(s)}
        if unknown:
            raise ValueError(f"unknown row statistics: {', '.join(sorted(unknown))}")
        if any(k < 1 or (k == 1 and ordered) for k, ordered in self.top):
            raise ValueError("a top-k agreement needs k >= 1, and an order only where k > 1")
        if self.tv_limit is not None and not 0.0 <= self.tv_limit < math.inf:
            raise ValueError("a limit of the total variation is a finite number of at least 0")

    @property
    def softmax(self) -> bool:
        """Whether anything beyond the raw logits is needed."""
        return bool(self.sums - RAW_STATISTICS)

    @property
    def certified(self) -> float | None:
        """The limit that a certificate may decide, None where total variation itself is asked for."""
        return self.tv_limit if "tv" in self.statistics else None

    @property
    def order(self) -> frozenset[str]:
        """The statistics about choices, which `order` computes for every backend."""
        return frozenset(s for s in self.statistics if is_order_statistic(s))

    @property
    def sums(self) -> frozenset[str]:
        """The statistics that follow from a backend's sums, and what their certificate needs."""
        return (self.statistics & set(STATISTICS)) | (
            {"kl_reference_candidate"} if self.certified is not None else set()
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the result, in order."""
        return (*sorted(self.sums | self.statistics), *(agreement_column(k, ordered) for k, ordered in self.top))

    def exact(self) -> RowPlan:
        """The same without certificates."""
        return replace(self, tv_limit=None)

    def without_samples(self) -> RowPlan:
        """The same without what needs the sampled tokens."""
        return replace(self, statistics=self.statistics - SAMPLED_STATISTICS)
