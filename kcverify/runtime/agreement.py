"""Agreement of the top-k tokens of two rows, tolerant of ties."""

from __future__ import annotations

import torch

from kcverify.runtime.workspace import Workspace


def top_agreement(z: torch.Tensor, w: torch.Tensor, k: int, ordered: bool, space: Workspace) -> torch.Tensor:
    """1.0 where some choice among ties gives both rows the same top-k set, else 0.0; float64 `[n]`.

    `ordered`: the same for every prefix 1..k. `z`, `w` are `[n, V]`; `k` beyond V always agrees.
    """
    a, b, *_ = space.views(*z.shape)
    a.copy_(z)
    b.copy_(w)
    k = min(k, z.shape[1])
    top_z, top_w = a.topk(k, -1).values, b.topk(k, -1).values
    agree = _same_set(a, b, top_z[:, k - 1 :], top_w[:, k - 1 :], k)
    if ordered:
        for j in range(1, k):
            agree &= _same_set(a, b, top_z[:, j - 1 : j], top_w[:, j - 1 : j], j)
    return agree.double()


def _same_set(a: torch.Tensor, b: torch.Tensor, kth_a: torch.Tensor, kth_b: torch.Tensor, k: int) -> torch.Tensor:
    """Whether a common set of k exists: everything above either boundary is at or above both, and enough is."""
    eligible = (a >= kth_a) & (b >= kth_b)
    forced = (a > kth_a) | (b > kth_b)
    outside = (forced & ~eligible).any(-1)
    return (eligible.sum(-1) >= k) & (forced.sum(-1) <= k) & ~outside
