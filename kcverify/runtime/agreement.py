"""Agreement of the top-k tokens of two rows, tolerant of ties."""

from __future__ import annotations

import torch

_CHUNK = 256
"""Neighbouring tokens of which first only the largest is looked at."""


def top_agreement(z: torch.Tensor, w: torch.Tensor, k: int, ordered: bool) -> torch.Tensor:
    """1.0 where some choice among ties gives both rows the same top-k set, else 0.0; float64 `[n]`.

    `ordered`: the same for every prefix 1..k. `z`, `w` are `[n, V]`; `k` beyond V always agrees. On the CPU a wide row
    is decided by its few largest tokens; elsewhere whole rows are counted, which waits for nothing.
    """
    k = min(k, z.shape[1])
    sizes = range(1 if ordered else k, k + 1)
    if z.device.type != "cpu" or z.shape[1] < 4 * (k + 1) * _CHUNK:
        top_z, top_w = z.topk(k, -1).values, w.topk(k, -1).values
        agree = torch.ones_like(top_z[:, 0], dtype=torch.bool)
        for j in sizes:
            agree &= _same_set(z, w, top_z[:, j - 1 : j], top_w[:, j - 1 : j], j)
        return agree.double()
    first, second = _Largest(z, k + 1), _Largest(w, k + 1)
    ends = slice(sizes.start - 1, k)
    untied = ~(first.tied[:, ends] | second.tied[:, ends]).any(-1)
    agree = torch.ones_like(untied)
    for j in sizes:
        agree &= (first.places[:, :j, None] == second.places[:, None, :j]).sum((1, 2)) == j
    for row in (~untied).nonzero()[:, 0].tolist():
        agree[row] = _agree_tied(first, second, row, sizes)
    return agree.double()


class _Largest:
    """The k largest tokens of each row of `x` `[n, V]`: they lie in the k chunks with the largest maxima, or in the rest.

    `values` are sorted, `places` are theirs, `tied` bool `[n, k-1]` tells whether the next one is as large.
    """

    def __init__(self, x: torch.Tensor, k: int) -> None:
        chunks = x.shape[1] // _CHUNK
        self.whole = chunks * _CHUNK
        self.body, self.rest = x[:, : self.whole].unflatten(1, (chunks, _CHUNK)), x[:, self.whole :]
        self.maxima = self.body.amax(-1)
        chosen = self.maxima.topk(k, -1).indices
        parts = self.body.gather(1, chosen[:, :, None].expand(-1, -1, _CHUNK)).flatten(1)
        self.values, at = torch.cat((parts, self.rest), 1).topk(k, -1)
        inside = chosen.gather(1, (at // _CHUNK).clamp_max(k - 1)) * _CHUNK + at % _CHUNK
        self.places = torch.where(at < k * _CHUNK, inside, at - k * _CHUNK + self.whole)
        self.tied = self.values[:, 1:] == self.values[:, :-1]

    def tokens(self, row: int, chosen: torch.Tensor) -> torch.Tensor:
        """The row's tokens in the chosen chunks and in the rest, `[1, m]`."""
        return torch.cat((self.body[row, chosen].flatten(), self.rest[row]))[None]


def _agree_tied(first: _Largest, second: _Largest, row: int, sizes: range) -> torch.Tensor:
    """Whether the row agrees for every size, counted over the chunks that reach either side's last boundary."""
    last = sizes.stop - 2
    reach = (first.maxima[row] >= first.values[row, last]) | (second.maxima[row] >= second.values[row, last])
    chosen = reach.nonzero()[:, 0]
    a, b = first.tokens(row, chosen), second.tokens(row, chosen)
    agree = torch.ones((), dtype=torch.bool, device=a.device)
    for j in sizes:
        kth_a, kth_b = first.values[row, j - 1 : j, None], second.values[row, j - 1 : j, None]
        agree &= _same_set(a, b, kth_a, kth_b, j)[0]
    return agree


def _same_set(a: torch.Tensor, b: torch.Tensor, kth_a: torch.Tensor, kth_b: torch.Tensor, k: int) -> torch.Tensor:
    """Whether a common set of k exists: everything above either boundary is at or above both, and enough is."""
    eligible = (a >= kth_a) & (b >= kth_b)
    forced = (a > kth_a) | (b > kth_b)
    outside = (forced & ~eligible).any(-1)
    return (eligible.sum(-1) >= k) & (forced.sum(-1) <= k) & ~outside
