"""Statistics about choices, one row at a time in plain Python: what `order` is tested against."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kcverify.runtime.order import trimmed_mass


def oracle_order(
    z: Sequence[float], w: Sequence[float], wanted: Sequence[str], token: int | None = None, *, scale: float = 1.0
) -> dict[str, float]:
    """The wanted statistics of one row of logits; see `order.order_statistics` for what each means."""
    names = [n for n in wanted if token is not None or not n.startswith(("correct", "logp"))]
    if not (_usable(z) and _usable(w)):
        return dict.fromkeys(names, math.nan)
    p, q = _softmax(z, scale), _softmax(w, scale)
    best = [i for i, v in enumerate(z) if v == max(z)]
    choice = max(w[i] for i in best)
    two = sorted(z, reverse=True)[:2]
    margin = two[0] - two[1] if len(two) == 2 else math.inf
    flip = not any(w[i] == max(w) for i in best)
    found = {
        "rank": 1 + sum(v > choice for v in w),
        "margin": margin,
        "flip": float(flip),
        "flip_margin": margin if flip else 0.0,
        "confidence_reference": max(p),
        "confidence_candidate": max(q),
    }
    if token is not None:
        found |= {
            "correct_reference": float(list(z).index(max(z)) == token),
            "correct_candidate": float(list(w).index(max(w)) == token),
            "logp_reference": _log_probability(z, token, scale),
            "logp_candidate": _log_probability(w, token, scale),
        }
    for name in names:
        if (mass := trimmed_mass(name)) is not None:
            found[name] = _trimmed(z, w, p, q, mass)
    return {name: float(found[name]) for name in names}


def _usable(row: Sequence[float]) -> bool:
    return not any(math.isnan(v) or v == math.inf for v in row) and any(v > -math.inf for v in row)


def _softmax(row: Sequence[float], scale: float) -> list[float]:
    weights = [math.exp((v - max(row)) * scale) if v > -math.inf else 0.0 for v in row]
    total = math.fsum(weights)
    return [v / total for v in weights]


def _log_probability(row: Sequence[float], token: int, scale: float) -> float:
    if row[token] == -math.inf:
        return -math.inf
    total = math.fsum(math.exp((v - max(row)) * scale) for v in row if v > -math.inf)
    return (row[token] - max(row)) * scale - math.log(total)


def _trimmed(z: Sequence[float], w: Sequence[float], p: Sequence[float], q: Sequence[float], mass: float) -> float:
    """The smallest range, by trying every pair of ends."""
    present = [i for i in range(len(z)) if z[i] > -math.inf or w[i] > -math.inf]
    d = {i: w[i] - z[i] for i in present}
    best = max(d.values()) - min(d.values()) if all(math.isfinite(v) for v in d.values()) else math.inf
    for low in sorted({v for v in d.values() if math.isfinite(v)}):
        for high in sorted({v for v in d.values() if low <= v < math.inf}):
            kept = [i for i in present if low <= d[i] <= high]
            if min(math.fsum(p[i] for i in kept), math.fsum(q[i] for i in kept)) >= mass + 1e-12:
                best = min(best, high - low)
                break
    return best
