"""Importance weights: truncated, or masked outside a window, for tokens, sequences and geometric means."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kcverify.rl.ratios import bounded_exp, ratios
from kcverify.rl.report import KEPT_FLOOR, Report, report


def truncated(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    cap: float = 2.0,
    low: float = 0.0,
    level: str = "token",
    detach: bool = True,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """Truncated importance sampling: `min(w, cap)`, with `low` also `max(w, low)`; every defined unit is kept.

    `level` `token`: the ratio of each token; `sequence`: the product over the response, on each of its tokens;
    `geometric`: the mean in logs. Weights `[B, T]`, 0 outside the mask and on tokens without a ratio. With `detach` no
    gradient flows through them. At sequence level with `low` 0 the bias left is at most `A G sum (p - cap q)_+`; else
    nothing is said about responses. Raises ValueError for shapes and bounds.
    """
    found = ratios(trainer_logprobs, rollout_logprobs, mask)
    log, defined = found.unit(level)
    inner = torch.where(defined, log, torch.zeros_like(log))
    weights = found.over_tokens(torch.where(defined, bounded_exp(inner, cap, low), torch.zeros_like(inner)))
    weights = weights.detach() if detach else weights
    with torch.no_grad():
        clipped = (log > math.log(cap)) | (log < (math.log(low) if low > 0 else -math.inf))
        keep = found.live & defined
    certifies = "bias" if level == "sequence" and low == 0 else "nothing"
    return weights, report(
        f"truncated, {level}", certifies, found, level, keep, weights, clipped=clipped, kept_floor=kept_floor
    )


def windowed(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    low: float = 0.5,
    high: float = 5.0,
    level: str = "token",
    weigh: bool = True,
    detach: bool = True,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """Weight `w` (or 1 without `weigh`) inside `[low, high]`, 0 outside: IcePop at token level, rejection at others.

    Arguments and shapes as in `truncated`. It rejects for sure where the ratio itself is what is limited; a ratio
    inside the window says nothing about the tokens that were not sampled. `high` may be infinite without `weigh`.
    Raises ValueError.
    """
    if not (0 <= low <= high and high > 0):
        raise ValueError(f"window {low} to {high} of a ratio: 0 <= low <= high")
    found = ratios(trainer_logprobs, rollout_logprobs, mask)
    log, defined = found.unit(level)
    with torch.no_grad():
        inside = (
            (log <= (math.log(high) if high < math.inf else math.inf))
            & (log >= (math.log(low) if low > 0 else -math.inf))
            & defined
        )
    inner = torch.where(inside, log, torch.zeros_like(log))
    value = bounded_exp(inner, high, low) if weigh else torch.ones_like(inner)
    weights = found.over_tokens(torch.where(inside, value, torch.zeros_like(value)))
    weights = weights.detach() if detach else weights
    keep = found.live & inside
    return weights, report(f"window, {level}", "reject", found, level, keep, weights, kept_floor=kept_floor)


def icepop(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    low: float = 0.5,
    high: float = 5.0,
    detach: bool = True,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """IcePop: the token's own ratio inside `[low, high]`, 0 outside; the defaults are the published ones."""
    return windowed(trainer_logprobs, rollout_logprobs, mask, low=low, high=high, detach=detach, kept_floor=kept_floor)
