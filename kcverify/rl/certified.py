"""C-DPPO: tokens accepted or rejected by two-sided certificates, from lists that grow until they decide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kcverify.rl.divergence import outward
from kcverify.rl.ratios import ratios
from kcverify.rl.report import KEPT_FLOOR, Report, report
from kcverify.streams.decisions import ACCEPT, adaptive_common
from kcverify.streams.partial import EXACT, Error


def certified(
    trainer_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    *,
    top: tuple[Tensor, Tensor, Tensor],
    delta: float = 0.15,
    advantages: Tensor | None = None,
    start: int = 8,
    error: Error = EXACT,
    kept_floor: float = KEPT_FLOOR,
) -> tuple[Tensor, Report]:
    """Mask of 1 and 0: a token is kept when its total variation is at most `delta` for sure, whole vocabulary included.

    `top` is ids int64 (-1: empty), trainer's and rollout's log-probabilities of these tokens, `[B, T, K]`, most probable
    first; for a stopped budget they must not depend on the sampled token. The first `start` of them are tried, then twice as many; undecided with all K is a rejection. With
    `advantages` a token whose update moves inward is kept whatever its divergence. `error` is how far the values may be
    off. The certificates run in numpy on the CPU. The details have the share that each outcome took, `upper` and
    `lower` (float64 `[B, T]`, margin included). Raises ValueError.
    """
    found = ratios(trainer_logprobs, rollout_logprobs, mask)
    ids, *sides = (x.detach().cpu() for x in top)
    shape = tuple(ids.shape)
    if len(shape) != 3 or shape[:2] != tuple(found.log.shape) or any(tuple(x.shape) != shape for x in sides):
        raise ValueError(f"lists have shapes {[tuple(x.shape) for x in top]}, expected [batch, tokens, K] three times")
    if not delta >= 0 or shape[2] == 0:
        raise ValueError(f"a limit of {delta} on lists of {shape[2]} tokens: at least 0, and at least one")
    usable = found.usable.cpu().numpy().reshape(-1)
    p, q = (x.double().numpy().reshape(-1, shape[2])[usable] for x in sides)
    outcome = adaptive_common(p, q, delta, ids.numpy().reshape(-1, shape[2])[usable], start=start, error=error)

    def spread(values: npt.NDArray[Any], empty: float) -> Tensor:
        whole = np.full(usable.shape, empty, dtype=values.dtype)
        whole[usable] = values
        return torch.from_numpy(whole.reshape(shape[:2])).to(found.log.device)

    with torch.no_grad():
        accepted = spread(outcome.decision == ACCEPT, False)
        keep = found.live & (accepted if advantages is None else accepted | ~outward(advantages, found))
        weights = keep.to(found.kind)
    count = max(1, int(usable.sum()))
    details = {
        "accepted": int((outcome.decision == ACCEPT).sum()) / count,
        "undecided": int(outcome.forced.sum()) / count,
        "longest": int(outcome.length.max(initial=0)),
        "lower": spread(outcome.lower, math.nan),
        "upper": spread(outcome.upper, math.nan),
    }
    certifies = "accept and reject" if advantages is None else "accept and reject of outward updates"
    return weights, report("C-DPPO", certifies, found, "token", keep, weights, kept_floor=kept_floor, details=details)
