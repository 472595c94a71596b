"""Row statistics where every process holds a part of the vocabulary, as tensor-parallel engines do.

Each process sums its part; the sums of all parts add up once they share a maximum and a pilot shift (`rowstate`).
Rounds of communication, each an all-gather of float64 numbers: the sums; what needs the normaliser first (total
variation, chi-squared, affinity); normalisers and terms of the rows that drift too far for float32; and, for top-k
agreement, the k largest values and the counts around them. All processes fold in rank order and so hold the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from kcverify.runtime.backends import Job, local_sums
from kcverify.runtime.careful import TERMS, careful_terms, certified, statistics_of
from kcverify.runtime.errors import option_error
from kcverify.runtime.given import row_integers
from kcverify.runtime.rowplan import RowPlan, agreement_column
from kcverify.runtime.rows import Rows, check_logits, check_temperature, without_token
from kcverify.runtime.rowstate import FIELDS, SUMS, State, merge
from kcverify.runtime.sums import LARGE_DRIFT, RowSums, log_growth
from kcverify.runtime.workspace import Workspace, tiles

Gather = Callable[[torch.Tensor], list[torch.Tensor]]
_CANCELS = 30.0
"""How many times larger than the divergence its terms may be before float32 sums lose its digits."""


def gather_over(group: Any = None) -> Gather:
    """The all-gather of a process group (None: the default one): the tensor of every rank, in rank order."""

    def gather(mine: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, mine.contiguous(), group=group)
        return parts

    return gather


def sharded_statistics(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    plan: RowPlan,
    *,
    gather: Gather,
    first_token: int = 0,
    temperature: float = 1.0,
    sampled_ids: torch.Tensor | None = None,
) -> Rows:
    """What `row_statistics` gives for the whole vocabulary, from this process's part of it; equal on all processes.

    `reference`, `candidate` `[N, v]` are the columns from `first_token` on, the same rows on every process; parts may
    be of unequal width. `sampled_ids` int64 `[N]` are ids of the whole vocabulary; one that no part has gives NaN.
    `gather` comes from `gather_over`. Raises `MonitorInputError` for what `row_statistics` refuses, and for statistics
    about choices other than top-k agreement, which need the whole row. Rows that drift too far for float32 cost one synchronisation each.
    """
    check_logits(reference, candidate)
    check_temperature(temperature)
    if plan.order:
        raise option_error("plan", f"{', '.join(sorted(plan.order))} need the whole vocabulary on one process")
    asked = plan if sampled_ids is not None else plan.without_samples()
    scale = 1.0 / temperature
    ids = row_integers("sampled_ids", sampled_ids, "token ids", reference.shape[0], reference.device)
    own = _state(reference, candidate, asked, temperature) | _token(reference, candidate, ids, first_token)
    parts = gather(torch.stack([own[name] for name in FIELDS]))
    merged = merge([dict(zip(FIELDS, part.unbind(0), strict=True)) for part in parts], scale)
    sums = _as_sums(merged, scale)
    far = _far(sums, merged) & ~sums.invalid
    _second_sweep(reference, candidate, asked, sums, merged["m"], scale, gather)
    values = sums.finish(asked.sums - {"token_log_ratio"}, scale, reference, candidate, None, asked.certified)
    exact, shift = _exact(reference, candidate, far, scale, gather)
    if "token_log_ratio" in asked.statistics:
        values["token_log_ratio"] = (merged["token"] - sums.sums["pilot"]) * scale - log_growth(sums.sums)
    if "token_log_ratio" in asked.statistics and exact:
        exact["token_log_ratio"] = merged["token"][far] * scale - shift
    if asked.certified is not None and exact:
        exact["tv"] = certified(exact, asked.certified)
    for name in values.keys() & exact.keys():
        values[name][far] = exact[name]
    values |= _agreements(reference, candidate, asked, gather)
    values = {name: values[name].masked_fill(sums.invalid, torch.nan) for name in asked.columns}
    if ids is not None:
        without_token(values, (ids < 0) | (merged["has_token"] == 0.0))
    return Rows(values, sums.invalid, sums.reference_only, sums.candidate_only)


def _state(z: torch.Tensor, w: torch.Tensor, plan: RowPlan, temperature: float) -> State:
    """The state of this process's tokens, without that of the sampled token."""
    needed = RowPlan(plan.sums - {"tv", "chi2", "bc", "token_log_ratio"} | {"logit_span", "kl_reference_candidate"})
    sums, far = local_sums(Job(z, w, needed, temperature, None, Workspace()))
    tops = [x.amax(-1) for x in (z, w)]  # a NaN wins
    broken = ~((tops[0] < torch.inf) & (tops[1] < torch.inf))
    has_z, has_w = (top > -torch.inf for top in tops)
    one = has_z & has_w & ~broken  # both sides have a token here; else the row's sums are empty
    only = [(x > -torch.inf).sum(-1) for x in (z, w)]
    common = one & (sums.sums["highest"] >= sums.sums["lowest"])
    state = {name: torch.where(one & ~far, sums.sums[name], 0.0) for name in (*SUMS, "pilot")} | {
        "m": torch.where(has_z & ~broken, tops[0].double(), -torch.inf),
        "highest": torch.where(common, sums.sums["highest"], -torch.inf),
        "lowest": torch.where(common, sums.sums["lowest"], torch.inf),
        "lost": torch.where(one, sums.reference_only, only[0]),
        "gained": torch.where(one, sums.candidate_only, only[1]),
        "broken": broken,
        "has_z": has_z,
        "has_w": has_w,
        "far": far | (~one & (has_z | has_w)),
    }
    return {name: value.double() for name, value in state.items()} | {"gross": torch.zeros_like(state["S"])}


def _token(z: torch.Tensor, w: torch.Tensor, ids: torch.Tensor | None, first: int) -> State:
    """`token`: `w-z` of the sampled token where it is in this part (`has_token` 1), else 0."""
    if ids is None:
        nothing = torch.zeros(z.shape[0], dtype=torch.float64, device=z.device)
        return {"token": nothing, "has_token": nothing}
    place = ids - first
    here = (place >= 0) & (place < z.shape[1])
    place = place.clamp(0, z.shape[1] - 1)[:, None]
    drift = w.gather(1, place)[:, 0].double() - z.gather(1, place)[:, 0].double()
    return {"token": torch.where(here, drift, 0.0), "has_token": here.double()}


def _as_sums(merged: State, scale: float) -> RowSums:
    """The merged state as the sums of a whole row."""
    out = RowSums(merged["m"].shape[0], merged["m"].device)
    s = out.sums
    for name in (*SUMS, "pilot", "highest", "lowest"):
        s[name].copy_(merged[name])
    gain = s["X"] + s["G"] + s["PX"]
    s["b"].copy_((gain - s["PO"]) / s["S"])
    s["grown"].copy_((gain + (s["S"] - s["PO"])) / s["S"])
    s["drift"].copy_(torch.maximum(s["highest"].abs(), s["lowest"].abs()))
    reach = torch.maximum(s["highest"] - s["pilot"], s["pilot"] - s["lowest"]) * scale
    s["largest"].copy_(torch.where(s["highest"] >= s["lowest"], reach.clamp_min(0.0), 0.0))
    out.invalid.copy_((merged["broken"] > 0) | (merged["has_z"] == 0) | (merged["has_w"] == 0))
    out.only.copy_(torch.stack((merged["lost"], merged["gained"])) * ~out.invalid)
    return out


def _far(sums: RowSums, merged: State) -> torch.Tensor:
    """Rows `[N]` whose float32 sums are not to be trusted: far drift, lopsided masks, a pilot far from the mass."""
    s = sums.sums
    common = s["S"] - s["PO"]
    inner = (s["X"] + s["G"]) / common
    growth, large = torch.log1p(inner), inner >= 1.0
    alone = (s["PO"] + s["PX"]) / common
    spread = torch.where(large, growth - s["X"] / common, s["G"] / common - (inner - growth)) + alone
    size = torch.where(large, growth, s["G"] / common) + merged["gross"] / common
    lost = (s["X"].abs() + s["G"] + merged["gross"]) / common / s["grown"]
    sound = (size <= _CANCELS * spread) & (lost <= 16.0 * s["largest"].clamp_min(1.0))
    sound &= lost * s["b"].abs().clamp_max(1.0) <= _CANCELS * spread
    return (merged["far"] > 0) | sums.careful(LARGE_DRIFT) | ~sound


def _second_sweep(
    z: torch.Tensor, w: torch.Tensor, plan: RowPlan, sums: RowSums, m: torch.Tensor, scale: float, gather: Gather
) -> None:
    """Fill TV, CHI2 and BC of `sums` in float64, a tile of rows at a time."""
    if not plan.sums & {"tv", "chi2", "bc"}:
        return
    out = torch.zeros(3, z.shape[0], dtype=torch.float64, device=z.device)
    s = sums.sums
    for start, stop in tiles(z.shape[0], z.shape[1], z.device):
        a, b = z[start:stop].double(), w[start:stop].double()
        common = (a > -torch.inf) & (b > -torch.inf)
        gain, grown, pilot, top = (x[start:stop, None] for x in (s["b"], s["grown"], s["pilot"], m))
        e = torch.where(common, torch.exp((a - top) * scale), 0.0)
        x = torch.where(common, (b - a - pilot) * scale, 0.0)
        gap, ratio = torch.expm1(x) - gain, torch.exp(x) / grown
        terms = (gap.abs(), gap * gap / ratio, (gap / (ratio.sqrt() + 1.0)) ** 2 / grown**2)
        for row, term in zip(out, terms, strict=True):
            row[start:stop] = (e * term).sum(-1)
    for part in gather(out):
        for name, column in zip(("TV", "CHI2", "BC"), part.unbind(0), strict=True):
            s[name].add_(column)


def _exact(
    z: torch.Tensor, w: torch.Tensor, far: torch.Tensor, scale: float, gather: Gather
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The softmax statistics of the rows where `far` holds, from float64 terms; and `ln(Z_q/Z_p)` of those rows.

    Every process sees the same `far`, so all take part in the same rounds.
    """
    rows = far.nonzero()[:, 0].tolist()
    if not rows:
        return {}, torch.zeros(0, dtype=torch.float64, device=z.device)
    a, b = (x[rows].double() * scale for x in (z, w))
    ends = gather(torch.stack((torch.logsumexp(a, -1), torch.logsumexp(b, -1))))
    norm_p, norm_q = torch.logsumexp(torch.stack(ends), 0)
    found = [careful_terms(p - lp, q - lq) for p, q, lp, lq in zip(a, b, norm_p, norm_q, strict=True)]
    terms = torch.stack([torch.stack([t[name] for t, _ in found]) for name in TERMS])
    parts = gather(torch.cat((terms, torch.stack([e for _, e in found], -1))))
    total, ends_of = parts[0][: len(TERMS)].clone(), torch.stack([p[len(TERMS) :] for p in parts]).amax(0)
    for part in parts[1:]:
        total += part[: len(TERMS)]
    return statistics_of(dict(zip(TERMS, total.unbind(0), strict=True)), ends_of), norm_q - norm_p


def _agreements(z: torch.Tensor, w: torch.Tensor, plan: RowPlan, gather: Gather) -> dict[str, torch.Tensor]:
    """Tie-tolerant top-k agreement: global k-th values from the parts' largest, then counts around them."""
    if not plan.top:
        return {}
    most = max(k for k, _ in plan.top)
    own = torch.full((2, most, z.shape[0]), -torch.inf, dtype=torch.float64, device=z.device)
    for side, x in enumerate((z, w)):
        k = min(most, x.shape[1])
        own[side, :k] = x.topk(k, -1).values.double().t()
    own_width = torch.full((1, 1), float(z.shape[1]), dtype=torch.float64, device=z.device)
    width = sum(int(part[0, 0]) for part in gather(own_width))
    largest = torch.cat(gather(own), 1).sort(1, descending=True).values
    cuts = sorted({min(j, width) for k, ordered in plan.top for j in (range(1, k + 1) if ordered else (k,))})
    counts = torch.zeros(len(cuts), 3, z.shape[0], dtype=torch.float64, device=z.device)
    for index, j in enumerate(cuts):
        ka, kb = (largest[side, j - 1][:, None].to(torch.float64) for side in (0, 1))
        fits, must = (z.double() >= ka) & (w.double() >= kb), (z.double() > ka) | (w.double() > kb)
        counts[index] = torch.stack((fits.sum(-1), must.sum(-1), (must & ~fits).sum(-1))).double()
    eligible, forced, outside = torch.stack(gather(counts)).sum(0).unbind(1)
    same = {j: (eligible[i] >= j) & (forced[i] <= j) & (outside[i] == 0) for i, j in enumerate(cuts)}
    out = {}
    for k, ordered in plan.top:
        asked = [min(j, width) for j in (range(1, k + 1) if ordered else (k,))]
        out[agreement_column(k, ordered)] = torch.stack([same[j] for j in asked]).all(0).double()
    return out
