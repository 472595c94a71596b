"""Masks on responses and prefixes: trust-region masking, cumulative prefix budgets, stopped prefixes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kcverify.rl.divergence import binary_tv, outward
from kcverify.rl.ratios import Ratios, ratios
from kcverify.rl.report import KEPT_FLOOR, Report, report

ROUNDING = 1e-6
"""A divergence below 0 by no more than this is a rounded 0; one further below is an estimate, and bounds nothing."""


def _given(divergence: Tensor | None, found: Ratios, fallback: Tensor) -> Tensor:
    """Divergence of each used token, float64 `[B, T]`: NaN, a value below 0 by more than rounding, and broken tokens are
    plus infinity, unused ones 0.
    """
    if divergence is not None and divergence.shape != found.log.shape:
        raise ValueError(f"divergences have shape {tuple(divergence.shape)}, expected {tuple(found.log.shape)}")
    value = fallback if divergence is None else divergence.detach().double()
    known = found.usable & (value >= -ROUNDING)
    value = torch.where(known, value.clamp_min(0.0), torch.full_like(value, math.inf))
    return torch.where(found.used, value, torch.zeros_like(value))


def k3(log_ratio: Tensor) -> Tensor:
    """`e^d - 1 - d`, float64, infinite where `d` is: its mean over rollout samples is KL(rollout || trainer) where the
    supports match; of one token it bounds nothing."""
    d = log_ratio.detach().double()
    return torch.where(torch.isinf(d), torch.full_like(d, math.inf), torch.expm1(d) - d)


def trust_region(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    max_kl: float | None = None,
    mean_kl: float | None = None,
    mean_log_ratio: float | None = None,
    divergence: Tensor | None = None,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """Keep a response iff `max_t KL_t <= max_kl`, `mean_t KL_t <= mean_kl` and `|mean_t d_t| <= mean_log_ratio`.

    Only the limits that are given bind; one must be. `divergence[B, T]` is KL(rollout || trainer) of each token's whole
    row, nats, or an upper bound of it: then a kept response is inside the region for sure, as far as its own contexts
    go. Without it `k3` of the sampled token stands in: a detector, no bound. `mean_log_ratio` (length-normalised) is one
    always. Divide the gradient by the whole batch, dropped responses included (`policy_loss` does). Raises ValueError.
    """
    limits = {"max_kl": max_kl, "mean_kl": mean_kl, "mean_log_ratio": mean_log_ratio}
    given = {name: value for name, value in limits.items() if value is not None}
    if not given or not all(value >= 0 for value in given.values()):
        raise ValueError(f"limits {given or 'none'}: give at least one, each at least 0")
    found = ratios(trainer_logprobs, rollout_logprobs, mask)
    with torch.no_grad():
        value = _given(divergence, found, k3(found.log))
        count = found.used.sum(1).clamp_min(1)
        seen = {
            "max_kl": value.amax(1) if value.shape[1] else value.sum(1),
            "mean_kl": value.sum(1) / count,
            "mean_log_ratio": found.unit("geometric")[0][:, 0].abs(),
        }
        keep = found.whole.clone()
        for name, limit in given.items():
            keep &= seen[name] <= limit
        kept = keep[:, None] & found.live
        weights = kept.to(found.kind)
    bounding = divergence is not None and set(given) <= {"max_kl", "mean_kl"}
    details = {name: float(seen[name].max()) if seen[name].numel() else math.nan for name in given}
    return weights, report(
        "trust region", "accept" if bounding else "detector", found, "sequence", kept, weights,
        kept_floor=kept_floor, details={"largest": details},
    )  # fmt: skip


def prefix_budget(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    advantages: Tensor,
    delta: float = 0.15,
    budget: float = 0.02,
    weight_min: float = 0.8,
    adaptive: bool = True,
    divergence: Tensor | None = None,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """CPPO's mask, 1 or 0: a limit on each token that its prefix may have used up.

    With weights `w_t` falling from 1 at the first to `weight_min` at the last of n tokens, `Z_t = w_t D_t`, sums over the
    prefix `S`, `W`: keep iff the update moves inward or `Z_t <= min(delta, delta + b W_(t-1) - S_(t-1))`. `b` is `budget`,
    or with `adaptive` the 90 % quantile of the response's `D`, between `budget` and twice that. `D` is the binary
    total variation of the sampled token (a lower bound), or `divergence[B, T]`. A token without a divergence counts as
    1, its largest value. Raises ValueError.
    """
    if not (delta >= 0 and budget >= 0 and 0 < weight_min <= 1):
        raise ValueError(f"delta {delta}, budget {budget}, weight_min {weight_min}")
    found = ratios(trainer_logprobs, rollout_logprobs, mask)
    with torch.no_grad():
        value = _given(divergence, found, binary_tv(trainer_logprobs, rollout_logprobs)).clamp(max=1.0)
        used = found.used.double()
        rank, count = used.cumsum(1), used.sum(1, keepdim=True)
        weight = used * (weight_min + (1 - weight_min) * (count - rank) / (count - 1).clamp_min(1))
        weight = torch.where(found.used & (count == 1), torch.ones_like(weight), weight)
        step = weight * value
        allowed = torch.full_like(count, budget)
        if adaptive and value.numel():
            listed = torch.where(found.used, value, torch.full_like(value, math.nan))
            allowed = torch.nanquantile(listed, 0.9, dim=1, keepdim=True).nan_to_num(budget).clamp(budget, 2 * budget)
        room = delta + allowed * (weight.cumsum(1) - weight) - (step.cumsum(1) - step)
        inside = step <= room.clamp(max=delta)
        keep = found.live & (inside | ~outward(advantages, found))
        weights = keep.to(found.kind)
    return weights, report("CPPO prefix budget", "reject", found, "token", keep, weights, kept_floor=kept_floor)


def stopped(found: Ratios, upper: Tensor, budget: float) -> tuple[Tensor, Tensor]:
    """Live tokens `[B, T]` before each response's stop, and what was spent until then, `[B]`. Raises ValueError."""
    if not budget >= 0:
        raise ValueError(f"a budget is at least 0: {budget}")
    value = _given(upper, found, found.log.detach()).clamp(max=1.0)
    past = value.cumsum(1) * (1 + 2.0**-52 * value.shape[1]) > budget
    return found.live & ~past, torch.where(past, torch.zeros_like(value), value).sum(1)


def stopped_prefix(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    upper: Tensor,
    budget: float,
    prefix_only: bool,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """Keep the tokens before the first whose certified `upper[B, T]` takes the response's sum past `budget`.

    If every upper bound depends on the prefix only (`prefix_only`) and the policy that is deployed is the reference's own
    from the stop on, the total variation of whole responses is at most `budget`; a mask alone makes no policy
    revert. NaN counts as 1. Raises ValueError.
    """
    found = ratios(trainer_logprobs, rollout_logprobs, mask)
    keep, spent = stopped(found, upper, budget)
    weights = keep.to(found.kind)
    details = {"budget": budget, "spent": float(spent.max()) if spent.numel() else 0.0}
    certifies = "accept" if prefix_only else "detector"
    return weights, report(
        "stopped prefix", certifies, found, "token", keep, weights, kept_floor=kept_floor, details=details
    )
