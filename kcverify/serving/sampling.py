"""Draws one token from a row of logits as engines do, and reads log-probabilities off rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: vLLM's names and meanings; temperature 0 is greedy, top_k 0 and top_p 1 cut nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Scored:
    """A token, its log-probability in nats (NaN where the row has none), its rank (1 is the most probable, 0 unknown), and the K most probable."""

    token: int
    logprob: float
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


def processed(logits: Row, s: Sampling) -> Row:
    """Logits after temperature and truncation, minus infinity where the sampler cannot go; greedy leaves them alone."""
    if s.temperature == 0.0:
        return logits
    z = logits / s.temperature
    if s.top_k <= 0 and s.top_p >= 1.0 and s.min_p <= 0.0:
        return z
    if 0 < s.top_k < len(z):
        z = np.where(z < np.partition(z, -s.top_k)[-s.top_k], -np.inf, z)
    if s.min_p > 0.0:
        z = np.where(z < z.max() + np.log(s.min_p), -np.inf, z)
    if s.top_p < 1.0:
        order = np.argsort(-z, kind="stable")
        p = np.exp(z[order] - z[order[0]])
        before = np.cumsum(p) - p
        z = z.copy()
        z[order[before >= s.top_p * p.sum()]] = -np.inf
    return z


def draw(z: Row, s: Sampling, noise: np.random.Generator) -> int:
    """One token of processed logits; of a row with a NaN token 0, which is what an arg-max of NaN gives engines."""
    top = z.max()
    if np.isnan(top):
        return 0
    if s.temperature == 0.0:
        return int(z.argmax())
    mass = np.exp(z - top).cumsum()
    return min(int(np.searchsorted(mass, noise.random() * mass[-1], side="right")), len(z) - 1)


def log_softmax(logits: NDArray[Any]) -> Row:
    """Natural log-probabilities of the last axis, computed in float64 and rounded to float32 as engines report them."""
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = wide - wide.max(-1, keepdims=True)
        out = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return np.asarray(out.astype(np.float32), dtype=np.float64)


def score(row: Row, token: int, k: int) -> Scored:
    """`token` in a row of log-probabilities, with the `k` most probable, the largest first; a NaN row has none of them."""
    own = float(row[token])
    if own != own:
        return Scored(token, own)
    return Scored(token, own, 1 + int((row > own).sum()), most_probable(row, k))


def most_probable(row: Row, k: int) -> tuple[tuple[int, float], ...]:
    """The `k` tokens of the largest finite log-probability, the smaller id first among equals."""
    if k <= 0:
        return ()
    order = np.argsort(-row, kind="stable")[:k]
    return tuple((i, v) for i, v in zip(order.tolist(), row[order].tolist(), strict=True) if v != -np.inf)


def score_prompt(rows: Row, ids: list[int], k: int) -> list[Scored]:
    """Every token of a prompt but its first, given those before it; `rows[t]` are log-probabilities of `ids[t + 1]`."""
    return [score(rows[t], token, k) for t, token in enumerate(ids[1:])]
