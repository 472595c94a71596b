"""What a mask or a weighting did to a batch: ratios before any clip, share kept, effective samples, findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kcverify.rl.ratios import Ratios, effective_share, mean_ratio

KEPT_FLOOR = 0.5
"""Share of tokens (or sequences) below which a mask counts as hiding a failure, unless another floor is given."""


@dataclass(frozen=True)
class Report:
    """One call of a method on a batch.

    `unit` is what is kept or dropped: `token` or `sequence`. Every count is over the mask, broken tokens (NaN, plus
    infinity) included: they stay in each denominator and are never kept. `impossible` counts tokens that the rollout
    gave probability 0 although it sampled them. `log_ratio_min`, `log_ratio_max`, `mean_ratio` and `ess` are of the
    ratios before any clip or mask, of tokens or of whole sequences; `weight_ess` is of the returned weights.
    `mask_hides_failure`: the kept share is below `kept_floor`, nothing was there to keep, or a contract's clause had
    more dropped than it allows.
    """

    method: str
    certifies: str
    unit: str
    tokens: int
    kept_tokens: int
    sequences: int
    kept_sequences: int
    kept_share: float
    kept_floor: float
    mask_hides_failure: bool
    clipped_share: float
    broken: int
    impossible: int
    vanished: int
    log_ratio_min: float
    log_ratio_max: float
    mean_ratio: float
    ess: float
    weight_ess: float
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against using the batch."""
        return not self.findings

    @property
    def findings(self) -> tuple[str, ...]:
        """What a reader must know, in words."""
        out = []
        if self.tokens == 0:
            out.append("the mask counts no token")
        elif self.kept_share < self.kept_floor:
            out.append(
                f"mask_hides_failure: {self.method} kept {self.kept_share:.4g} of the {self.unit}s, "
                f"the floor is {self.kept_floor:.4g}"
            )
        if self.broken:
            out.append(f"{self.broken} tokens have no log ratio (NaN or plus infinity)")
        if self.impossible:
            out.append(f"{self.impossible} tokens were sampled at probability 0")
        if self.vanished:
            out.append(f"{self.vanished} tokens have probability 0 under the trainer")
        out += [str(text) for text in self.details.get("findings", ())]
        return tuple(out)

    def data(self) -> dict[str, Any]:
        """Plain data, for logs; tensors of the details are left out."""
        plain = {name: value for name, value in self.details.items() if not isinstance(value, Tensor)}
        return asdict(replace(self, details=plain)) | {"ok": self.ok, "findings": list(self.findings)}


def _extreme(log: Tensor, name: str) -> float:
    return float(getattr(log, name)()) if log.numel() else math.nan


def report(
    method: str,
    certifies: str,
    found: Ratios,
    level: str,
    keep: Tensor,
    weights: Tensor,
    *,
    clipped: Tensor | None = None,
    kept_floor: float = KEPT_FLOOR,
    details: Mapping[str, Any] | None = None,
) -> Report:
    """Count one call: `keep[B, T]` are the kept tokens, `clipped` marks units whose weight was bounded.

    A sequence is kept when all its tokens are. Raises ValueError for a floor outside [0, 1].
    """
    if not 0 <= kept_floor <= 1:
        raise ValueError(f"a floor on the kept share is in [0, 1]: {kept_floor}")
    with torch.no_grad():
        log, defined = found.unit(level)
        used, keep = found.used, keep & found.live
        any_used = used.any(1)
        tokens, sequences = int(used.sum()), int(any_used.sum())
        kept_tokens = int(keep.sum())
        kept_sequences = int((any_used & ~(used & ~keep).any(1)).sum())
        unit = "token" if level == "token" else "sequence"
        total, kept = (tokens, kept_tokens) if unit == "token" else (sequences, kept_sequences)
        share = kept / total if total else 0.0
        chosen = log[defined]
        return Report(
            method, certifies, unit, tokens, kept_tokens, sequences, kept_sequences, share, kept_floor,
            share < kept_floor or total == 0,
            0.0 if clipped is None or not total else int((clipped & defined).sum()) / total,
            int((used & ~found.usable).sum()),
            int(torch.isposinf(found.log).sum()), int(torch.isneginf(found.log).sum()),
            _extreme(chosen, "min"), _extreme(chosen, "max"), mean_ratio(chosen), effective_share(chosen),
            effective_share(weights[used].double().log()),
            dict(details or {}),
        )  # fmt: skip
