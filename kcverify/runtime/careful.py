"""Statistics of rows that drift too far for float32 sums, one row at a time in float64 log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kcverify.runtime.sums import certificate, row_total

TERMS = ("gap", "forward", "backward", "roots", "squares", "only_p", "only_q", "entropy_p", "entropy_q")
"""Sums over tokens from which the statistics of a row follow, once both normalisers are known."""


def careful_rows(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    which: torch.Tensor,
    values: dict[str, torch.Tensor],
    scale: float,
    sampled: torch.Tensor | None,
    tv_limit: float | None = None,
) -> None:
    """Overwrite the softmax statistics in `values` for the valid rows where `which` (bool `[N]`) holds."""
    for row in which.nonzero()[:, 0].tolist():
        token = None if sampled is None else sampled[row]
        exact = careful_row(reference[row].double() * scale, candidate[row].double() * scale, token)
        if tv_limit is not None:
            exact["tv"] = certified(exact, tv_limit)
        for name in values.keys() & exact.keys():
            values[name][row] = exact[name]


def certified(values: Mapping[str, torch.Tensor], limit: float) -> torch.Tensor:
    """Total variation, or its certificate where that is at most the limit."""
    bound = certificate(values["kl_reference_candidate"])
    return torch.where(bound <= limit, bound, values["tv"])


def careful_row(a: torch.Tensor, b: torch.Tensor, token: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Every softmax statistic of one valid row of float64 logits `[V]`, temperature already folded in; 0-d tensors."""
    log_p, log_q = torch.log_softmax(a, 0), torch.log_softmax(b, 0)
    sums, ends = careful_terms(log_p, log_q)
    out = statistics_of(sums, ends)
    if token is not None:
        out["token_log_ratio"] = log_q[token] - log_p[token]
    return out


def careful_terms(log_p: torch.Tensor, log_q: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sums of `TERMS` over tokens `[V]` of float64 log-probabilities, and the ends `[4]` of what they range over.

    `ends` are the largest `ln(q/p)`, the largest `ln(p/q)`, and 1 where a token is the reference's or the candidate's
    alone: those of parts of a vocabulary meet in their maximum, the sums in their sum.
    """
    has_p, has_q = log_p > -torch.inf, log_q > -torch.inf
    both, lost, gained = has_p & has_q, has_p & ~has_q, has_q & ~has_p
    p, q = log_p.exp(), log_q.exp()
    x = torch.where(both, log_q - log_p, 0.0)
    near = x.abs() < 1.0
    forward = torch.where(near, p * (torch.expm1(x) - x), q - p - p * x)
    backward = torch.where(near, q * (torch.expm1(-x) + x), p - q + q * x)
    gap = torch.where(near & both, p * torch.expm1(x), q - p)
    far_square = q - 2.0 * p + torch.exp(torch.where(both, log_p - x, -torch.inf))
    squares = torch.where(near, p * torch.expm1(x) ** 2 * torch.exp(-x), far_square)
    terms = (
        gap.abs(), torch.where(both, forward, 0.0), torch.where(both, backward, 0.0), (p.sqrt() - q.sqrt()) ** 2,
        torch.where(both, squares, 0.0), torch.where(lost, p, 0.0), torch.where(gained, q, 0.0),
        torch.where(has_p, p * log_p, 0.0), torch.where(has_q, q * log_q, 0.0),
    )  # fmt: skip
    high, low = torch.where(both, x, -torch.inf).amax(), torch.where(both, x, torch.inf).amin()
    ends = torch.stack((high, -low, lost.any().double(), gained.any().double()))
    return {name: row_total(term[None])[0] for name, term in zip(TERMS, terms, strict=True)}, ends


def statistics_of(s: Mapping[str, torch.Tensor], ends: torch.Tensor) -> dict[str, torch.Tensor]:
    """The statistics from the sums of `TERMS` and the ends `[4, ...]` over the whole vocabulary, of the sums' shape."""
    high, low, lost, gained = ends[0], -ends[1], ends[2] > 0, ends[3] > 0
    infinite, zero = torch.full_like(high, torch.inf), torch.zeros_like(high)
    return {
        "tv": (0.5 * s["gap"]).clamp(0.0, 1.0),
        "kl_reference_candidate": torch.where(lost, infinite, (s["forward"] + s["only_q"]).clamp_min(0.0)),
        "kl_candidate_reference": torch.where(gained, infinite, (s["backward"] + s["only_p"]).clamp_min(0.0)),
        "log_ratio": torch.where(lost | gained, infinite, torch.maximum(high, -low)),
        "ratio_min": torch.where(gained, zero, torch.exp(-high)),
        "ratio_max": torch.where(lost, infinite, torch.exp(-low)),
        "chi2": torch.where(lost, infinite, s["squares"].clamp_min(0.0) + s["only_q"]),
        "bc": (1.0 - 0.5 * s["roots"]).clamp(0.0, 1.0),
        "entropy_reference": (-s["entropy_p"]).clamp_min(0.0),
        "entropy_candidate": (-s["entropy_q"]).clamp_min(0.0),
    }
