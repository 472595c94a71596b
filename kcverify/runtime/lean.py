"""The sums of one tile of rows in float32 (float64 for float64 logits), and the statistics that follow from them.

With `m` the largest reference logit, `e = exp((z-m)/T)`, pilot `c = E_p[w-z]`, `x = ((w-z)-c)/T`, `t = expm1(x)`,
`g = t-x`: S = sum e, X = sum e*x, G = sum e*g, D = sum e*t*x; PO and PX are the masses that only one side has.
"""

from __future__ import annotations

import math

import torch

from kcverify.runtime.sums import LARGE_DRIFT, RowSums, log_growth, row_total
from kcverify.runtime.workspace import Workspace

OFFSET = 0.5
NARROW = 8192
REACHES = (1 / 32, 1 / 8, 0.5, 1.0, 2.0, 4.0, 8.0)
_SERIES_RADIUS = 0.5


def tile_sums(
    z: torch.Tensor,
    w: torch.Tensor,
    space: Workspace,
    into: RowSums,
    wanted: frozenset[str],
    scale: float,
    *,
    top: bool = False,
) -> None:
    """Fill `into` for the rows `z`, `w` `[n, V]`.

    `top` adds whether one token is largest on both sides: the sum of its two non-positive gaps is then 0.
    """
    a, b, e, g, h, u = space.views(*z.shape)
    on_host = z.device.type == "cpu"
    one_sided = _load(z, w, a, b, h, into)
    s = into.sums
    if wanted <= {"logit_drift", "logit_span"} and not top:
        if not on_host or float(s["drift"].max()) >= OFFSET:
            _centre(z, w, h, torch.zeros_like(h[:, :1]), into)
        return
    m = a.amax(-1, keepdim=True)
    a.sub_(m)
    if top:
        s["top"].copy_(torch.sub(b, b.amax(-1, keepdim=True), out=u).add_(a).amax(-1) == 0.0)
    torch.exp(a.mul_(scale) if scale != 1.0 else a, out=e)
    if one_sided is not None:
        _one_sided_mass(a, b, e, u, one_sided, into)
    inside = row_total(e)
    pilot = torch.where(inside > 0, _dot(e, h, u) / inside, 0.0).to(a.dtype)[:, None]
    if on_host and float(s["drift"].max()) < OFFSET:
        h.sub_(pilot)
    else:
        _centre(z, w, h, pilot, into)
    if scale != 1.0:
        h.mul_(scale)
    s["S"].copy_(inside + s["PO"])
    s["pilot"].copy_(pilot[:, 0])
    if one_sided is not None:
        _candidate_only_mass(torch.where(one_sided[1], (b - m - pilot) * scale, -torch.inf), into)
    largest = torch.maximum(s["highest"] - s["pilot"], s["pilot"] - s["lowest"]) * scale
    s["largest"].copy_(largest.clamp_min(0.0))
    for start, stop, reach in _runs(s["largest"], z.shape[1]):
        _expm1_pair(h[start:stop], g[start:stop], b[start:stop], u[start:stop], space, reach)
    _weighted_sums(a, b, e, g, h, u, into, wanted)


def _load(
    z: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, into: RowSums
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """`a := z`, `b := w`, `d := w-z` with its range; tokens `(reference only, candidate only)` of a masked tile.

    A tile without a masked token or an invalid row, which its range shows, takes no further pass and gives None.
    """
    a.copy_(z)
    torch.sub(b.copy_(w), a, out=d)
    high, low = d.amax(-1), d.amin(-1)
    one_sided = None
    if z.device.type != "cpu" or not math.isfinite(float((high - low).sum())):
        one_sided = _mask(a, b, d, into)
        high, low = _present_range(a, b, d)
        d.masked_fill_((a == -torch.inf) | (b == -torch.inf), 0.0)
    into.sums["highest"].copy_(high)
    into.sums["lowest"].copy_(low)
    into.sums["drift"].copy_(torch.maximum(high.abs(), low.abs()))
    return one_sided


def _dot(x: torch.Tensor, y: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """Row-wise dot product, float64 `[n]`; the cascade of `sum` keeps float32 accurate over a long row."""
    return row_total(torch.mul(x, y, out=scratch))


def _centre(z: torch.Tensor, w: torch.Tensor, h: torch.Tensor, pilot: torch.Tensor, into: RowSums) -> None:
    """`h := (w-z) - pilot` in place; through float64 for rows whose drift would round the difference away."""
    s = into.sums
    far = s["drift"] >= OFFSET
    absent = (z == -torch.inf) | (w == -torch.inf) | into.invalid[:, None]
    wide = torch.sub(w.double(), z.double()).masked_fill_(absent, torch.nan)
    high = torch.nan_to_num(wide, -torch.inf, torch.inf, -torch.inf).amax(-1)
    low = torch.nan_to_num(wide, torch.inf, torch.inf, -torch.inf).amin(-1)
    for name, exact in (("highest", high), ("lowest", low), ("drift", torch.maximum(high.abs(), low.abs()))):
        s[name].copy_(torch.where(far, exact, s[name]))
    wide.sub_(pilot.double()).masked_fill_(absent, 0.0)
    h.copy_(torch.where(far[:, None], wide, h.sub_(pilot).double()))


def _runs(largest: torch.Tensor, width: int) -> list[tuple[int, int, float]]:
    """Rows `start:stop` whose series has one length, with its reach.

    A row's length follows from the row alone, so that no value depends on what else is in the batch. Rows of a narrow
    vocabulary, many to a tile, and rows on another device all take the longest.
    """
    rows = largest.shape[0]
    if width < NARROW or largest.device.type != "cpu":
        return [(0, rows, LARGE_DRIFT)]
    reaches = [next((r for r in REACHES if value <= r), LARGE_DRIFT) for value in largest.tolist()]
    starts = [i for i in range(rows) if i == 0 or reaches[i] != reaches[i - 1]]
    return [(a, b, reaches[a]) for a, b in zip(starts, [*starts[1:], rows], strict=True)]


def _doublings(largest: float) -> int:
    """How often `x` must be halved to come into the radius of the series."""
    reach = min(largest, LARGE_DRIFT)
    return max(0, math.ceil(math.log2(reach / _SERIES_RADIUS))) if reach > _SERIES_RADIUS else 0


def _skipped_terms(reach: float) -> int:
    """How many of the highest terms of the series are below float32's resolution for `|x| <= reach`."""
    return 3 if reach <= 1 / 32 else 2 if reach <= 1 / 8 else 0


def _expm1_pair(
    x: torch.Tensor, g: torch.Tensor, t: torch.Tensor, y: torch.Tensor, space: Workspace, reach: float
) -> None:
    """`g := expm1(x) - x` and `t := expm1(x)` with full relative accuracy of both for `|x| <= reach`; `y` is scratch.

    Series on `x/2^k`, then `g(2y) = 2 g(y) + expm1(y)^2`: every term is non-negative, so nothing cancels.
    """
    if x.dtype == torch.float64:
        torch.expm1(x, out=t)
        torch.sub(t, x, out=g).clamp_min_(0.0)
        return
    doublings = _doublings(reach)
    if doublings:
        y = torch.mul(x.clamp(-LARGE_DRIFT, LARGE_DRIFT) if doublings > 4 else x, 0.5**doublings, out=y)
    else:
        y = x
    first, second, *rest = space.series[_skipped_terms(reach) :]
    torch.addcmul(second, y, first, out=g)
    for coefficient in rest:
        torch.addcmul(coefficient, g, y, out=g)
    torch.mul(y, y, out=t)
    g.mul_(t)
    torch.add(g, y, out=t)
    for _ in range(doublings):
        g.mul_(2.0).addcmul_(t, t)
        torch.add(g, y.mul_(2.0), out=t)


def _weighted_sums(
    a: torch.Tensor,
    t: torch.Tensor,
    e: torch.Tensor,
    g: torch.Tensor,
    x: torch.Tensor,
    scratch: torch.Tensor,
    into: RowSums,
    wanted: frozenset[str],
) -> None:
    s = into.sums
    s["X"].copy_(_dot(e, x, scratch))
    s["G"].copy_(_dot(e, g, scratch))
    gain = s["X"] + s["G"] + s["PX"]
    s["b"].copy_((gain - s["PO"]) / s["S"])
    s["grown"].copy_((gain + (s["S"] - s["PO"])) / s["S"])
    b = s["b"][:, None].to(a.dtype)
    entropies = bool(wanted & {"entropy_reference", "entropy_candidate"})
    moved = torch.mul(e, t, out=g)
    if "kl_candidate_reference" in wanted or entropies:
        s["D"].copy_(_dot(moved, x, scratch))
    if entropies:
        inside = _dot(e, a, scratch)
        s["U"].add_(inside)
        s["Q"].add_(inside + s["X"] + s["D"] + _dot(moved, a, scratch))
    if "tv" in wanted:
        torch.addcmul(moved, e, b, value=-1.0, out=scratch)
        s["TV"].copy_(row_total(scratch.abs_()))
    if wanted & {"chi2", "bc"}:
        _root_sums(torch.sub(t, b, out=scratch), e, g, x, into, wanted)


def _root_sums(
    gap: torch.Tensor, e: torch.Tensor, g: torch.Tensor, x: torch.Tensor, into: RowSums, wanted: frozenset[str]
) -> None:
    """Sums of chi-squared and the affinity from `gap = t-b`; overwrites `gap`, `g` and `x`."""
    s = into.sums
    ratio = torch.exp(x.sub_(log_growth(s)[:, None].to(x.dtype)), out=x)
    if "chi2" in wanted:
        s["CHI2"].copy_(row_total(torch.mul(gap, gap, out=g).div_(ratio).mul_(e)))
    if "bc" in wanted:
        root = ratio.sqrt_().add_(1.0)
        s["BC"].copy_(row_total(gap.div_(root).square_().mul_(e)) / s["grown"] ** 2)


def _mask(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, into: RowSums) -> tuple[torch.Tensor, torch.Tensor]:
    """Find invalid rows, neutralise them, and return the tokens `(reference only, candidate only)`."""
    no_p, no_q = a == -torch.inf, b == -torch.inf
    broken = torch.isnan(a).any(-1) | torch.isnan(b).any(-1) | (a == torch.inf).any(-1) | (b == torch.inf).any(-1)
    invalid = broken | no_p.all(-1) | no_q.all(-1)
    into.invalid.copy_(invalid)
    for buffer in (a, b, d):
        buffer.masked_fill_(invalid[:, None], 0.0)
    reference_only, candidate_only = no_q & ~no_p & ~invalid[:, None], no_p & ~no_q & ~invalid[:, None]
    into.reference_only.copy_(reference_only.sum(-1))
    into.candidate_only.copy_(candidate_only.sum(-1))
    return reference_only, candidate_only


def _present_range(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest and smallest `w-z` over the tokens that both sides have."""
    absent = (a == -torch.inf) | (b == -torch.inf)
    return d.masked_fill(absent, -torch.inf).amax(-1), d.masked_fill(absent, torch.inf).amin(-1)


def _one_sided_mass(
    a: torch.Tensor,
    b: torch.Tensor,
    e: torch.Tensor,
    scratch: torch.Tensor,
    one_sided: tuple[torch.Tensor, torch.Tensor],
    into: RowSums,
) -> None:
    """Move the mass of reference-only tokens from `e` to PO (and its part of U); make `a` finite."""
    reference_only, _ = one_sided
    a.masked_fill_(a == -torch.inf, 0.0)
    into.sums["PO"].copy_(torch.where(reference_only, e, 0.0).sum(-1))
    into.sums["U"].copy_(torch.mul(e, a, out=scratch).masked_fill_(~reference_only, 0.0).sum(-1))
    e.masked_fill_(reference_only, 0.0)


def _candidate_only_mass(exponent: torch.Tensor, into: RowSums) -> None:
    """PX and its part of Q from `((w-c)-m)/T` of the tokens that only the candidate has (-inf elsewhere)."""
    mass = torch.exp(exponent)
    into.sums["PX"].copy_(mass.sum(-1))
    into.sums["Q"].copy_(mass.mul_(exponent.masked_fill(exponent == -torch.inf, 0.0)).sum(-1))
