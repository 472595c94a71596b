"""Row statistics of two logit matrices, computed tile by tile in buffers that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kcverify.runtime.agreement import agreement_column, top_agreement
from kcverify.runtime.careful import careful_rows
from kcverify.runtime.errors import MonitorInputError, option_error, shape_error
from kcverify.runtime.lean import TileSums, tile_sums
from kcverify.runtime.workspace import Workspace

STATISTICS = (
    "logit_drift",
    "logit_span",
    "tv",
    "kl_reference_candidate",
    "kl_candidate_reference",
    "log_ratio",
    "ratio_min",
    "ratio_max",
    "chi2",
    "bc",
    "entropy_reference",
    "entropy_candidate",
    "token_log_ratio",
)
RAW_STATISTICS = frozenset({"logit_drift", "logit_span"})
LARGEST_VOCABULARY = 262_144
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class RowPlan:
    """Which statistics are computed: names of `STATISTICS`, and top-k agreements as pairs `(k, ordered)`."""

    statistics: frozenset[str]
    top: tuple[tuple[int, bool], ...] = ()

    def __post_init__(self) -> None:
        unknown = self.statistics - set(STATISTICS)
        if unknown:
            raise ValueError(f"unknown row statistics: {', '.join(sorted(unknown))}")
        if any(k < 1 or (k == 1 and ordered) for k, ordered in self.top):
            raise ValueError("a top-k agreement needs k >= 1, and an order only where k > 1")

    @property
    def softmax(self) -> bool:
        """Whether anything beyond the raw logits is needed."""
        return bool(self.statistics - RAW_STATISTICS)


@dataclass(frozen=True)
class Rows:
    """Statistics of N rows.

    `values` maps a statistic (or `agreement_k`, `agreement_k_ordered`) to float64 `[N]`; values of an invalid row are
    NaN. `invalid` is bool `[N]` (a NaN, a +inf, or a whole side at -inf). `reference_only` and `candidate_only` count
    the tokens `[N]` (int64) that have mass on one side alone. Units: logits for drift and span, nats for `kl_*`,
    `log_ratio`, `entropy_*` and `token_log_ratio` (signed, candidate over reference), none for the others. `ratio_*`
    are the smallest and largest of reference/candidate probability. Drift and span are exact for bfloat16 and float16
    logits; for float32 each difference is rounded once (relative error 2^-24 of the drift).
    """

    values: dict[str, torch.Tensor]
    invalid: torch.Tensor
    reference_only: torch.Tensor
    candidate_only: torch.Tensor

    def __len__(self) -> int:
        return int(self.invalid.shape[0])


def row_statistics(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    plan: RowPlan,
    *,
    temperature: float = 1.0,
    sampled_ids: torch.Tensor | None = None,
    workspace: Workspace | None = None,
) -> Rows:
    """Statistics of `plan` for logits `[N, V]` (bfloat16, float16, float32 or float64, any stride).

    `temperature` divides both sides for everything but `logit_drift` and `logit_span`. `sampled_ids` int64 `[N]` is
    needed for `token_log_ratio`, which is otherwise left out. Raises `MonitorInputError` for inputs that cannot be
    compared. Formulas: one sweep around the mean drift under the reference, every term of the sums non-negative.
    On a device other than the CPU one synchronisation a call decides whether any row needs the float64 path.
    """
    check_logits(reference, candidate)
    check_temperature(temperature)
    ids = check_sampled(sampled_ids, reference)
    statistics = plan.statistics if ids is not None else plan.statistics - {"token_log_ratio"}
    count, width = reference.shape
    space = (workspace or Workspace()).prepared(reference, candidate)
    sums = TileSums(count, reference.device)
    tops = {agreement_column(k, ordered): torch.zeros_like(sums.sums["S"]) for k, ordered in plan.top}
    best = (1, False) in plan.top
    for start, stop in _tiles(count, width, reference.device):
        z, w = reference[start:stop], candidate[start:stop]
        tile_sums(z, w, space, sums.rows(start, stop), statistics, 1.0 / temperature, top=best)
        for k, ordered in plan.top:
            if k > 1:
                tops[agreement_column(k, ordered)][start:stop] = top_agreement(z, w, k, ordered, space)
    if best:
        tops[agreement_column(1, False)] = sums.sums["top"]
    values = sums.finish(statistics, 1.0 / temperature, reference, candidate, ids)
    if plan.softmax:
        careful_rows(reference, candidate, sums.careful(), values, 1.0 / temperature, ids)
    values |= tops
    nan = torch.full((), torch.nan, dtype=torch.float64, device=reference.device)
    values = {name: torch.where(sums.invalid, nan, column) for name, column in values.items()}
    return Rows(values, sums.invalid, sums.reference_only, sums.candidate_only)


def check_logits(reference: torch.Tensor, candidate: torch.Tensor) -> None:
    """Raise `MonitorInputError` unless both are floating `[N, V]` of one shape and device with V in 1..262,144."""
    for what, side in (("reference_logits", reference), ("candidate_logits", candidate)):
        if not isinstance(side, torch.Tensor):
            raise option_error(what, f"a torch tensor is needed, not {type(side).__name__}")
        if side.dim() != 2:
            raise shape_error(what, list(side.shape), "[rows, vocabulary]")
        if side.dtype not in _FLOATS:
            raise option_error(what, f"dtype {side.dtype} is none of bfloat16, float16, float32, float64")
    (n, v), (m, u) = reference.shape, candidate.shape
    if v != u:
        message = f"reference has {v} vocabulary entries, candidate {u}"
        raise MonitorInputError("vocabulary_width", message, reference=v, candidate=u)
    if n != m:
        message = f"reference has {n} rows, candidate {m}"
        raise MonitorInputError("length_mismatch", message, reference=n, candidate=m)
    if not 1 <= v <= LARGEST_VOCABULARY:
        raise shape_error("reference_logits", [n, v], f"[rows, vocabulary] with 1 to {LARGEST_VOCABULARY} entries")
    if reference.device != candidate.device:
        raise option_error("candidate_logits", f"on {candidate.device}, the reference on {reference.device}")


def check_temperature(temperature: float) -> None:
    """Raise `MonitorInputError` unless it is a positive finite number."""
    if not 0.0 < temperature < float("inf"):
        raise option_error("temperature", f"{temperature} is not a positive finite number")


def check_sampled(sampled_ids: torch.Tensor | None, reference: torch.Tensor) -> torch.Tensor | None:
    """The sampled ids as int64 `[N]` on the logits' device; `MonitorInputError` for a wrong shape, type or range."""
    if sampled_ids is None:
        return None
    count, width = reference.shape
    if tuple(sampled_ids.shape) != (count,):
        raise shape_error("sampled_ids", list(sampled_ids.shape), f"[{count}]")
    if sampled_ids.dtype.is_floating_point or sampled_ids.dtype == torch.bool:
        raise option_error("sampled_ids", f"dtype {sampled_ids.dtype} holds no token ids")
    ids = sampled_ids.to(reference.device, torch.int64)
    if count and ids.device.type == "cpu" and (int(ids.min()) < 0 or int(ids.max()) >= width):
        raise option_error("sampled_ids", f"ids from {int(ids.min())} to {int(ids.max())}, vocabulary is {width} wide")
    return ids.clamp(0, width - 1)


def _tiles(count: int, width: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Row ranges that fit the cache (CPU) or amortise a launch (elsewhere)."""
    step = max(1, Workspace.elements(device) // width)
    for start in range(0, count, step):
        yield start, min(start + step, count)


__all__ = ["RAW_STATISTICS", "STATISTICS", "RowPlan", "Rows", "Workspace", "row_statistics"]
