"""Statistics of rows that drift too far for float32 sums, one row at a time in float64 log-probabilities."""

from __future__ import annotations

import torch

from kcverify.runtime.lean import row_total


def careful_rows(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    which: torch.Tensor,
    values: dict[str, torch.Tensor],
    scale: float,
    sampled: torch.Tensor | None,
) -> None:
    """Overwrite the softmax statistics in `values` for the valid rows where `which` (bool `[N]`) holds."""
    for row in which.nonzero()[:, 0].tolist():
        token = None if sampled is None else sampled[row]
        exact = careful_row(reference[row].double() * scale, candidate[row].double() * scale, token)
        for name in values.keys() & exact.keys():
            values[name][row] = exact[name]


def careful_row(a: torch.Tensor, b: torch.Tensor, token: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Every softmax statistic of one valid row of float64 logits `[V]`, temperature already folded in; 0-d tensors."""
    has_p, has_q = a > -torch.inf, b > -torch.inf
    both, lost, gained = has_p & has_q, has_p & ~has_q, has_q & ~has_p
    log_p, log_q = torch.log_softmax(a, 0), torch.log_softmax(b, 0)
    p, q = log_p.exp(), log_q.exp()
    x = torch.where(both, log_q - log_p, 0.0)
    zero = torch.zeros((), dtype=torch.float64, device=a.device)
    infinite = torch.full_like(zero, torch.inf)
    any_lost, any_gained = lost.any(), gained.any()
    near = x.abs() < 1.0
    forward = torch.where(near, p * (torch.expm1(x) - x), q - p - p * x)
    backward = torch.where(near, q * (torch.expm1(-x) + x), p - q + q * x)
    gap = torch.where(near & both, p * torch.expm1(x), q - p)
    roots = 0.5 * _total((p.sqrt() - q.sqrt()) ** 2)
    far_square = q - 2.0 * p + torch.exp(torch.where(both, log_p - x, -torch.inf))
    squares = torch.where(both, torch.where(near, p * torch.expm1(x) ** 2 * torch.exp(-x), far_square), 0.0)
    high = torch.where(both, x, -torch.inf).amax()
    low = torch.where(both, x, torch.inf).amin()
    only_p, only_q = _total(torch.where(lost, p, 0.0)), _total(torch.where(gained, q, 0.0))
    one_sided = any_lost | any_gained
    out = {
        "tv": (0.5 * _total(gap.abs())).clamp(0.0, 1.0),
        "kl_reference_candidate": torch.where(any_lost, infinite, _total(torch.where(both, forward, 0.0)) + only_q),
        "kl_candidate_reference": torch.where(any_gained, infinite, _total(torch.where(both, backward, 0.0)) + only_p),
        "log_ratio": torch.where(one_sided, infinite, torch.maximum(high, -low)),
        "ratio_min": torch.where(any_gained, zero, torch.exp(-high)),
        "ratio_max": torch.where(any_lost, infinite, torch.exp(-low)),
        "chi2": torch.where(any_lost, infinite, _total(squares).clamp_min(0.0) + only_q),
        "bc": (1.0 - roots).clamp(0.0, 1.0),
        "entropy_reference": -_total(torch.where(has_p, p * log_p, 0.0)),
        "entropy_candidate": -_total(torch.where(has_q, q * log_q, 0.0)),
    }
    for name in ("kl_reference_candidate", "kl_candidate_reference", "entropy_reference", "entropy_candidate"):
        out[name] = out[name].clamp_min(0.0)
    if token is not None:
        out["token_log_ratio"] = log_q[token] - log_p[token]
    return out


def _total(x: torch.Tensor) -> torch.Tensor:
    return row_total(x[None])[0]
