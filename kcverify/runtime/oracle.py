"""The truth of the tests: every row statistic in float64, row by row and term by term, exactly rounded sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def oracle_rows(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    *,
    temperature: float = 1.0,
    sampled_ids: torch.Tensor | None = None,
) -> dict[str, list[float]]:
    """Statistics of `rows.STATISTICS` and the counts, for logits `[N, V]`; lists of N floats. Slow.

    The rules for absent tokens, support mismatch and invalid rows are those of `rows.row_statistics`.
    """
    rows: list[dict[str, float]] = []
    for index in range(reference.shape[0]):
        z = [float(v) for v in reference[index].double().tolist()]
        w = [float(v) for v in candidate[index].double().tolist()]
        token = None if sampled_ids is None else int(sampled_ids[index])
        rows.append(oracle_row(z, w, temperature, token))
    names = rows[0] if rows else (*_NAMES, "invalid", "reference_only", "candidate_only")
    return {name: [row[name] for row in rows] for name in names}


def oracle_row(z: Sequence[float], w: Sequence[float], temperature: float, token: int | None) -> dict[str, float]:
    """Statistics of one row."""
    both = [i for i in range(len(z)) if z[i] > -math.inf and w[i] > -math.inf]
    lost = [i for i in range(len(z)) if z[i] > -math.inf and w[i] == -math.inf]
    gained = [i for i in range(len(z)) if w[i] > -math.inf and z[i] == -math.inf]
    if (
        any(math.isnan(v) or v == math.inf for v in (*z, *w))
        or len(both) + len(lost) == 0
        or len(both) + len(gained) == 0
    ):
        return dict.fromkeys(_NAMES, math.nan) | {"invalid": 1.0, "reference_only": 0.0, "candidate_only": 0.0}
    out = _raw(z, w, both, mismatch=bool(lost or gained))
    out |= {"invalid": 0.0, "reference_only": float(len(lost)), "candidate_only": float(len(gained))}
    top, bottom = max(z[i] for i in (*both, *lost)), max(w[i] for i in (*both, *gained))
    log_p, p = _log_softmax({i: (z[i] - top) / temperature for i in (*both, *lost)})
    log_q, _ = _log_softmax({i: (w[i] - bottom) / temperature for i in (*both, *gained)})
    x, q = _log_ratios(z, w, temperature, both, gained, p, log_p, log_q, exact_shift=not lost and not gained)
    out |= _divergences(p, q, x, log_p, both, lost, gained)
    out["entropy_reference"] = -math.fsum(p[i] * _log(p[i]) for i in p)
    out["entropy_candidate"] = -math.fsum(q[i] * _log(q[i]) for i in q)
    out["token_log_ratio"] = math.nan
    if token is not None:
        out["token_log_ratio"] = _token(token, x, lost, gained)
    return out


_NAMES = (
    "logit_drift", "logit_span", "tv", "kl_reference_candidate", "kl_candidate_reference", "log_ratio", "ratio_min",
    "ratio_max", "chi2", "bc", "entropy_reference", "entropy_candidate", "token_log_ratio",
)  # fmt: skip


def _raw(z: Sequence[float], w: Sequence[float], both: Sequence[int], *, mismatch: bool) -> dict[str, float]:
    if mismatch:
        return {"logit_drift": math.inf, "logit_span": math.inf}
    d = [w[i] - z[i] for i in both]
    return {"logit_drift": max(abs(v) for v in d), "logit_span": max(d) - min(d)}


def _log_softmax(scaled: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """Log-probabilities and probabilities of logits whose largest is 0."""
    weight = {i: math.exp(v) for i, v in scaled.items()}
    total = math.fsum(weight.values())
    shift = math.log1p(math.fsum((*weight.values(), -1.0)))
    return {i: v - shift for i, v in scaled.items()}, {i: v / total for i, v in weight.items()}


def _log_ratios(
    z: Sequence[float],
    w: Sequence[float],
    temperature: float,
    both: Sequence[int],
    gained: Sequence[int],
    p: dict[int, float],
    log_p: dict[int, float],
    log_q: dict[int, float],
    *,
    exact_shift: bool,
) -> tuple[dict[int, float], dict[int, float]]:
    """`ln(q/p)` on common tokens and `q` on the candidate's, through a shift that keeps small drifts exact.

    Where the drift is large, both sides are normalised by themselves, so that no huge logit swallows the other's digits.
    """
    d = {i: (w[i] - z[i]) / temperature for i in both}
    x = {i: log_q[i] - log_p[i] for i in both}
    pilot = math.fsum(p[i] * d[i] for i in both)
    if exact_shift and max(abs(v - pilot) for v in d.values()) < 50.0:
        shift = math.log1p(math.fsum(p[i] * math.expm1(d[i] - pilot) for i in both))
        x = {i: (d[i] - pilot) - shift for i in both}
    near = [i for i in both if abs(x[i]) < 1.0]
    q = {i: math.exp(log_q[i]) for i in (*both, *gained)}
    return x, q | {i: math.exp(log_p[i] + x[i]) for i in near}


def _divergences(
    p: dict[int, float],
    q: dict[int, float],
    x: dict[int, float],
    log_p: dict[int, float],
    both: Sequence[int],
    lost: Sequence[int],
    gained: Sequence[int],
) -> dict[str, float]:
    lost_mass, gained_mass = math.fsum(p[i] for i in lost), math.fsum(q[i] for i in gained)
    gap = {i: p[i] * math.expm1(x[i]) if abs(x[i]) < 1 else q[i] - p[i] for i in both}
    forward = math.fsum(_excess(p[i], q[i], x[i]) for i in both) + gained_mass
    backward = math.fsum(_excess(q[i], p[i], -x[i]) for i in both) + lost_mass
    roots = math.fsum((math.sqrt(p[i]) - math.sqrt(q[i])) ** 2 for i in both) + lost_mass + gained_mass
    inf = math.inf
    return {
        "tv": 0.5 * (math.fsum(abs(v) for v in gap.values()) + lost_mass + gained_mass),
        "kl_reference_candidate": inf if lost else forward,
        "kl_candidate_reference": inf if gained else backward,
        "log_ratio": inf if lost or gained else max(abs(v) for v in x.values()),
        "ratio_min": 0.0 if gained else min((_exp(-v) for v in x.values()), default=inf),
        "ratio_max": inf if lost else max((_exp(-v) for v in x.values()), default=0.0),
        "chi2": inf if lost else math.fsum(_square(p[i], q[i], x[i], log_p[i]) for i in both) + gained_mass,
        "bc": 1.0 - 0.5 * roots,
    }


def _excess(p: float, q: float, x: float) -> float:
    """`q - p - p*x` with `q = p*exp(x)`: one non-negative term of a KL divergence."""
    return p * _expm1_minus(x) if abs(x) < 1.0 else q - p - p * x


def _expm1_minus(x: float) -> float:
    """`expm1(x) - x` without cancellation, for `|x| < 1`."""
    term, total, k = x * x / 2.0, 0.0, 2
    while abs(term) > 1e-18 * abs(total):
        total += term
        k += 1
        term *= x / k
    return total


def _square(p: float, q: float, x: float, log_p: float) -> float:
    """`(p-q)^2/q` with `q = p*exp(x)`; of a token that candidates all but ban it may be huge where `p` is nothing."""
    if abs(x) < 1.0:
        return p * math.expm1(x) ** 2 * math.exp(-x)
    return q - 2.0 * p + _exp(log_p - x)


def _token(token: int, x: dict[int, float], lost: Sequence[int], gained: Sequence[int]) -> float:
    if token in x:
        return x[token]
    return -math.inf if token in lost else math.inf if token in gained else math.nan


def _log(v: float) -> float:
    return math.log(v) if v > 0.0 else 0.0


def _exp(v: float) -> float:
    return math.exp(v) if v < 709.0 else math.inf


def oracle_top(reference: torch.Tensor, candidate: torch.Tensor, k: int, ordered: bool) -> list[float]:
    """Tie-tolerant top-k agreement of each row `[N, V]`: 1.0 where one set is a top-k set of both sides, else 0.0.

    A top-k set holds every token above the k-th largest value and, among those equal to it, as many as fit. `ordered`
    asks it of every prefix 1..k.
    """
    out = []
    for z, w in zip(reference.double().tolist(), candidate.double().tolist(), strict=True):
        most = min(k, len(z))
        out.append(float(all(_common_top(z, w, j) for j in range(1 if ordered else most, most + 1))))
    return out


def _common_top(z: Sequence[float], w: Sequence[float], k: int) -> bool:
    bounds = sorted(z, reverse=True)[k - 1], sorted(w, reverse=True)[k - 1]
    must = {i for i in range(len(z)) if z[i] > bounds[0] or w[i] > bounds[1]}
    may = {i for i in range(len(z)) if z[i] >= bounds[0] and w[i] >= bounds[1]}
    return must <= may and len(must) <= k <= len(may)
