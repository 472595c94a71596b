"""Log ratios of sampled tokens that nothing can poison: masked positions, NaN and infinities, in values and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = ("token", "sequence", "geometric")


@dataclass(frozen=True)
class Ratios:
    """`log[B, T]`, float64, is `trainer - rollout` of each usable token, 0 elsewhere, differentiable in the trainer's side.

    `used[B, T]`: the mask. `usable[B, T]`: used tokens whose two values are numbers or minus infinity, not both at once;
    every other used token is broken: it has no ratio and is never kept. A log ratio may be infinite: plus where the
    rollout calls its own token impossible, minus where the trainer does. `kind` is the dtype of weights.
    """

    log: Tensor
    used: Tensor
    usable: Tensor
    kind: torch.dtype

    @property
    def live(self) -> Tensor:
        """Usable tokens `[B, T]` that the trainer gives a probability above 0: the others have no gradient, and are never kept."""
        return self.usable & ~torch.isneginf(self.log)

    @property
    def whole(self) -> Tensor:
        """Sequences `[B]` whose product of ratios is defined: no broken token, no infinities of both signs."""
        broken = (self.used & ~self.usable).any(1)
        both = torch.isposinf(self.log).any(1) & torch.isneginf(self.log).any(1)
        return ~broken & ~both

    def unit(self, level: str) -> tuple[Tensor, Tensor]:
        """Log ratio of each unit and whether it is defined: `[B, T]` for tokens, `[B, 1]` for sequences.

        `sequence` is the sum over the usable tokens, `geometric` their mean. Raises ValueError.
        """
        if level not in LEVELS:
            raise ValueError(f"level `{level}` is none of {', '.join(LEVELS)}")
        if level == "token":
            return self.log, self.usable
        whole = self.whole & self.used.any(1)
        total = torch.where(whole[:, None], self.log, torch.zeros_like(self.log)).sum(1, keepdim=True)
        if level == "geometric":
            total = total / self.used.sum(1, keepdim=True).clamp_min(1)
        return total, whole[:, None]

    def over_tokens(self, of_unit: Tensor) -> Tensor:
        """A value of each unit, `[B, T]` or `[B, 1]`, on every live token; 0 elsewhere."""
        spread = of_unit.to(self.kind).expand_as(self.log)
        return torch.where(self.live, spread, torch.zeros_like(spread))


def check(trainer_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> None:
    """Raise ValueError unless the three are `[B, T]`."""
    shapes = {tuple(x.shape) for x in (trainer_logprobs, rollout_logprobs, mask)}
    if len(shapes) != 1 or trainer_logprobs.dim() != 2:
        found = ", ".join(str(tuple(x.shape)) for x in (trainer_logprobs, rollout_logprobs, mask))
        raise ValueError(f"log-probabilities and mask have shapes {found}, expected [batch, tokens] for all three")


def ratios(trainer_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Ratios:
    """Log ratios of two `[B, T]` tensors of natural log-probabilities where `mask` is not 0.

    The difference is taken in float64, where that of two float32 values is exact; weights are float32 at least. The
    rollout's side gets no gradient. Raises ValueError for shapes, and for a mask that is not 0 or 1.
    """
    check(trainer_logprobs, rollout_logprobs, mask)
    kind = torch.promote_types(torch.promote_types(trainer_logprobs.dtype, rollout_logprobs.dtype), torch.float32)
    trainer, rollout = trainer_logprobs.double(), rollout_logprobs.detach().double()
    used = mask != 0
    if bool((used & (mask != 1)).any()):
        raise ValueError("a mask is 0 or 1 everywhere; weights of tokens belong into the loss")
    with torch.no_grad():
        apart = trainer - rollout
        usable = used & ~torch.isnan(apart) & ~torch.isposinf(trainer) & ~torch.isposinf(rollout)
    zero = torch.zeros((), dtype=torch.float64, device=trainer.device)
    log = torch.where(usable, trainer, zero) - torch.where(usable, rollout, zero)
    return Ratios(log, used, usable, kind)


def bounded_exp(log: Tensor, high: float, low: float = 0.0) -> Tensor:
    """`min(max(e^log, low), high)` without overflow at any `log`; its gradient is 0 where a bound binds.

    Raises ValueError unless `0 <= low <= high`, both finite, `high > 0`.
    """
    if not (0 <= low <= high < math.inf and high > 0):
        raise ValueError(f"bounds {low} and {high} of a ratio: 0 <= low <= high, finite")
    inner = log.clamp(max=math.log(high))
    if low > 0:
        inner = inner.clamp(min=math.log(low))
    return inner.exp().clamp(low, high)


def effective_share(log: Tensor) -> float:
    """`(sum w)^2 / (n sum w^2)` of `w = e^log` over the entries of a vector, in (0, 1]; 0 for none, or none above 0."""
    if log.numel() == 0:
        return 0.0
    x = log.detach()
    top = x.max()
    if torch.isneginf(top):
        return 0.0
    w = torch.isposinf(x).double() if torch.isposinf(top) else (x - top).exp()
    return float(w.sum().square() / (w.numel() * w.square().sum()))


def mean_ratio(log: Tensor) -> float:
    """Mean of `e^log`; infinite where it is beyond doubles, NaN for no entry."""
    if log.numel() == 0:
        return math.nan
    return float((torch.logsumexp(log.detach(), 0) - math.log(log.numel())).exp())
