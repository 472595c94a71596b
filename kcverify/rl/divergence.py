"""Divergence masks on tokens (DPPO): the sampled token against the rest, or a list and the rest. Both are lower bounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kcverify.rl.ratios import Ratios, ratios
from kcverify.rl.report import KEPT_FLOOR, Report, report

KINDS = ("tv", "kl")


def _log1mexp(x: Tensor) -> Tensor:
    """`ln(1 - e^x)` for `x <= 0`; minus infinity at 0."""
    near = torch.log(-torch.expm1(x))
    far = torch.log1p(-torch.exp(x))
    return torch.where(x > -math.log(2), near, far)


def _weighed(mass: Tensor, log: Tensor) -> Tensor:
    """`mass * log`, 0 where the mass is 0."""
    return torch.where(mass > 0, mass * log, torch.zeros_like(mass))


def _sides(trainer: Tensor, rollout: Tensor) -> tuple[Tensor, Tensor]:
    return trainer.detach().double().clamp(max=0.0), rollout.detach().double().clamp(max=0.0)


def _rounding(given: Tensor, log: Tensor, mass: Tensor) -> Tensor:
    """How far the rest of a list `[..., K]` may be off because its numbers were rounded to their type."""
    step = torch.finfo(given.dtype).eps if given.dtype.is_floating_point else torch.finfo(torch.float64).eps
    return step * (1 + _weighed(mass, 1 - log).sum(-1))


def _rest(q: Tensor, p: Tensor, of_q: Tensor, of_p: Tensor) -> Tensor:
    """The least of `q ln(q / p)` over remainders `q` and `p` that may be off by `of_q` and `of_p`: the rest's part of KL."""
    most = p + of_p
    least = (most / math.e).clamp(min=(q - of_q).clamp_min(0.0), max=q + of_q)
    return _weighed(least, least.log() - most.log())


def binary_tv(trainer_logprobs: Tensor, rollout_logprobs: Tensor) -> Tensor:
    """`|p_a - q_a|` of the sampled token, float64: a lower bound of the token's total variation."""
    trainer, rollout = _sides(trainer_logprobs, rollout_logprobs)
    return (trainer.exp() - rollout.exp()).abs()


def binary_kl(trainer_logprobs: Tensor, rollout_logprobs: Tensor) -> Tensor:
    """KL(rollout || trainer) of the sampled token against the rest, nats, float64; a lower bound, infinite at worst.

    The rest of a probability that rounds to one is anything up to the rounding of its type, never nothing.
    """
    p, q = _sides(trainer_logprobs, rollout_logprobs)
    errors = (
        _rounding(given, log[..., None], log.exp()[..., None])
        for given, log in ((rollout_logprobs, q), (trainer_logprobs, p))
    )
    rest = _rest(_log1mexp(q).exp(), _log1mexp(p).exp(), *errors)
    return (_weighed(q.exp(), q - p) + rest).clamp_min(0.0)


def top_k(trainer_top: Tensor, rollout_top: Tensor, *, kind: str = "tv") -> Tensor:
    """Divergence of lists `[B, T, K]` of the same tokens, each once, and one cell for the rest; float64 `[B, T]`.

    `tv` or `kl` (KL(rollout || trainer), nats); minus infinity is an empty place or probability 0. Both are lower
    bounds of the whole row's value, roundings of the rest allowed for in `kl`. NaN where a value is NaN. Raises ValueError.
    """
    if trainer_top.shape != rollout_top.shape or trainer_top.dim() != 3 or kind not in KINDS:
        raise ValueError(f"lists {tuple(trainer_top.shape)} and {tuple(rollout_top.shape)}, kind `{kind}`")
    trainer, rollout = _sides(trainer_top, rollout_top)
    p, q = trainer.exp(), rollout.exp()
    rest_p, rest_q = ((1 - x.sum(-1)).clamp_min(0.0) for x in (p, q))
    if kind == "tv":
        return ((p - q).abs().sum(-1) + (rest_p - rest_q).abs()) / 2
    broken = torch.isnan(trainer) | torch.isnan(rollout)
    terms = torch.where(broken, torch.full_like(p, math.nan), _weighed(q, rollout - trainer))
    errors = _rounding(rollout_top, rollout, q), _rounding(trainer_top, trainer, p)
    return (terms.sum(-1) + _rest(rest_q, rest_p, *errors)).clamp_min(0.0)


def advantages_of(advantages: Tensor, found: Ratios) -> Tensor:
    """`[B]` or `[B, T]` advantages as `[B, T]`. Raises ValueError."""
    spread = advantages.detach()[:, None] if advantages.dim() == 1 else advantages.detach()
    if spread.dim() != 2 or spread.shape[0] != found.log.shape[0] or spread.shape[1] not in (1, found.log.shape[1]):
        raise ValueError(f"advantages have shape {tuple(advantages.shape)}, expected [batch] or [batch, tokens]")
    return spread.expand(found.log.shape)


def outward(advantages: Tensor, found: Ratios) -> Tensor:
    """Tokens `[B, T]` whose update moves the trainer further from the rollout: `A > 0, w > 1` or `A < 0, w < 1`."""
    a, log = advantages_of(advantages, found), found.log.detach()
    return ((a > 0) & (log > 0)) | ((a < 0) & (log < 0)) | torch.isnan(a)


def dppo(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    advantages: Tensor,
    delta: float | tuple[float, float] = 0.15,
    kind: str = "tv",
    top: tuple[Tensor, Tensor] | None = None,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """DPPO's mask, 1 or 0: a token is dropped when its update moves outward and its divergence exceeds `delta`.

    `delta` may be a pair: for `A > 0` and for `A < 0`. `kind` is `tv` or `kl`; the divergence is of the sampled token
    against the rest, or with `top` (trainer's and rollout's log-probabilities `[B, T, K]` of the same tokens) of the
    list and the rest. All are lower bounds of the row's divergence: a dropped token exceeds `delta` for sure, a kept one
    may as well. A divergence that is NaN drops the token. Raises ValueError.
    """
    if kind not in KINDS:
        raise ValueError(f"kind `{kind}` is none of {', '.join(KINDS)}")
    found = ratios(trainer_logprobs, rollout_logprobs, mask)
    above, below = delta if isinstance(delta, tuple) else (delta, delta)
    if not (above >= 0 and below >= 0):
        raise ValueError(f"a limit on a divergence is at least 0: {delta}")
    if top is not None and any(x.dim() != 3 or x.shape[:2] != found.log.shape for x in top):
        raise ValueError(f"lists have shapes {[tuple(x.shape) for x in top]}, expected [batch, tokens, K] twice")
    with torch.no_grad():
        if top is None:
            value = (binary_tv if kind == "tv" else binary_kl)(trainer_logprobs, rollout_logprobs)
        else:
            value = top_k(top[0], top[1], kind=kind)
        limit = torch.where(advantages_of(advantages, found) > 0, above, below)
        keep = found.live & ~(outward(advantages, found) & ~(value <= limit))
        weights = keep.to(found.kind)
    name = f"DPPO {'binary' if top is None else 'top-K'} {kind.upper()}"
    largest = float(value[found.usable].max()) if bool(found.usable.any()) else math.nan
    return weights, report(
        name, "reject", found, "token", keep, weights, kept_floor=kept_floor, details={"largest": largest}
    )
