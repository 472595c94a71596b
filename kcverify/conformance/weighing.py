"""Rows of attention: which ones the declared arithmetic decides.

A score `q k / sqrt(d)` is off by at most `b = gamma_(d + 2) |q||k| / sqrt(d)` in every order of evaluation. Where b is small the weights
are off by about as much. Where it is large, as near the overflow of operands, they are still decided if one score is above all others
by more than what both are off by and the span beyond which an exponential vanishes, even times the largest value: then its weight
is 1 and what the others add is below the smallest normal number. Any other row is left open: conforming orders give any weights there.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import log

import torch
from torch import Tensor

from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Declared

SMALL = Fraction(1, 8)
"""Exponents off by no more keep the derivation of a softmax."""
_ROOM = 1 + 2.0**-4


@dataclass(frozen=True)
class Rows:
    """Masks `[m]`: scores off by little; weights 0 and 1 in every order. `scores` bounds |q||k| / sqrt(d) of the first, None without."""

    ordinary: Tensor
    decided: Tensor
    scores: Tensor | None

    @property
    def open(self) -> Tensor:
        """Neither."""
        return ~(self.ordinary | self.decided)


def vanishing(name: str) -> Fraction:
    """Beyond this span `exp(-span)` is below the smallest normal number, which an error of `underflow` covers; 7/10 > ln 2."""
    return (1 / t.smallest_normal(name)).numerator.bit_length() * Fraction(7, 10)


def rows(q: Tensor, k: Tensor, v: Tensor, d: Declared, causal: bool) -> Rows | None:
    """Of float64 operands `[m, d]`, `[n, d]`, `[n, e]`; None where the scores have no bound at all."""
    off = t.gamma(q.shape[-1] + 2, d.accumulator).value
    if off is None:
        return None
    root = q.shape[-1] ** 0.5
    scores, sizes = q @ k.mT / root, q.abs() @ k.abs().mT / root
    seen = torch.ones_like(scores, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    sizes = torch.where(seen, sizes, 0.0)
    each = sizes * (float(off) + (8 * float(t.unit_roundoff(d.accumulator)) if d.base == "2" else 0.0)) * _ROOM
    ordinary = each.amax(-1) <= float(SMALL)
    low, high = (torch.where(seen, scores + sign * each, -torch.inf) for sign in (-1, 1))
    top = low.argmax(-1, keepdim=True)
    others = high.scatter(-1, top, -torch.inf).amax(-1)
    most = float(v.abs().max()) if v.numel() else 0.0
    wanted = float(vanishing(d.accumulator)) + log(max(most, 1.0))
    decided = (low.gather(-1, top)[:, 0] - others) >= wanted * _ROOM
    kept = sizes[ordinary]
    return Rows(ordinary, decided & ~ordinary, kept.max() if kept.numel() else None)


def open_rows(q: Tensor, k: Tensor, v: Tensor, d: Declared, causal: bool) -> Tensor:
    """The rows left open, `[m, 1]`; none where nothing can be said of any."""
    found = rows(q, k, v, d, causal)
    return (found.open if found is not None else torch.zeros(q.shape[0], dtype=torch.bool))[:, None]
