"""The policy-gradient loss that masks and weights go into: a dropped token leaves the sum, not the denominator."""

from __future__ import annotations

import torch
from torch import Tensor

from kcverify.rl.ratios import check


def policy_loss(
    trainer_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    mask: Tensor,
    *,
    by: str = "token",
    total: float | None = None,
) -> Tensor:
    """`-(1/N) sum_t weight_t A_t ln p_t` over the mask; its gradient is that of the weighted policy gradient.

    All `[B, T]`, advantages also `[B]`. `N` counts the whole batch, dropped tokens included: tokens of the mask (`by`
    `token`) or responses with at least one (`sequence`); `total` replaces it where a batch is split over devices. A
    token of weight 0 takes part in neither value nor gradient, whatever its log-probability. Raises ValueError.
    """
    check(trainer_logprobs, weights, mask)
    if by not in ("token", "sequence"):
        raise ValueError(f"`by` is `token` or `sequence`, not `{by}`")
    spread = advantages[:, None] if advantages.dim() == 1 else advantages
    if spread.dim() != 2 or spread.shape[0] != mask.shape[0] or spread.shape[1] not in (1, mask.shape[1]):
        raise ValueError(f"advantages have shape {tuple(advantages.shape)}, expected [batch] or [batch, tokens]")
    if total is not None and not total > 0:
        raise ValueError(f"the loss is divided by a number above 0: {total}")
    live = (mask != 0) & (weights != 0)
    zero = torch.zeros((), dtype=trainer_logprobs.dtype, device=trainer_logprobs.device)
    terms = torch.where(live, weights, zero) * torch.where(live, spread.expand(mask.shape), zero)
    summed = (terms * torch.where(live, trainer_logprobs, zero)).sum()
    counted = (mask != 0).sum() if by == "token" else (mask != 0).any(1).sum()
    return -summed / (counted.clamp_min(1) if total is None else total)
