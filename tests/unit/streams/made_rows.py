"""Rows, lists and truncations that the tests of identity checks share."""

from __future__ import annotations

import numpy as np
from made_streams import compared, log_softmax, request, stream


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def logits(rows: int = 400, width: int = 64, seed: int = 0, peak: float = 2.5) -> np.ndarray:
    return rng(seed).normal(size=(rows, width)) * peak


def noisy(x: np.ndarray, size: float, seed: int = 1) -> np.ndarray:
    return x + size * rng(seed).normal(size=x.shape)


def whole(reference: np.ndarray, candidate: np.ndarray, length: int = 50, **declared):
    def side(x):
        return stream([request(f"r{i:04}", logits=x[i : i + length]) for i in range(0, len(x), length)], **declared)

    return compared(side(reference), side(candidate))


def top(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    lp = log_softmax(x)
    ids = np.argsort(-lp, axis=1)[:, :k]
    return ids, np.take_along_axis(lp, ids, 1)


def lists(reference: np.ndarray, candidate: np.ndarray, k: int = 10, length: int = 50):
    sides = []
    for x in (reference, candidate):
        ids, lp = top(x, k)
        sides.append([
            request(f"r{i:04}", top_ids=ids[i : i + length], top_logprobs=lp[i : i + length],
                    token_ids=np.zeros(len(ids[i : i + length])))
            for i in range(0, len(x), length)
        ])  # fmt: skip
    return compared(*sides)


def truncated(x: np.ndarray, top_p: float) -> np.ndarray:
    p = np.exp(log_softmax(x))
    order = np.argsort(-p, axis=1)
    kept = np.take_along_axis(p, order, 1).cumsum(1) - np.take_along_axis(p, order, 1) < top_p
    out = np.full_like(x, -np.inf)
    np.put_along_axis(out, order, np.where(kept, np.take_along_axis(x, order, 1), -np.inf), 1)
    return out
