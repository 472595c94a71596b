"""Row statistics of two logit matrices: one semantics, whichever backend computes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kcverify.runtime.errors import MonitorInputError, option_error, shape_error
from kcverify.runtime.given import check_dense, check_integers
from kcverify.runtime.operator import run
from kcverify.runtime.rowplan import RAW_STATISTICS, SAMPLED_STATISTICS, STATISTICS, RowPlan
from kcverify.runtime.workspace import Workspace

LARGEST_VOCABULARY = 262_144
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


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
    backend: str | None = None,
) -> Rows:
    """Statistics of `plan` for logits `[N, V]` (bfloat16, float16, float32 or float64, any stride).

    `temperature` divides both sides for everything but `logit_drift` and `logit_span`. `sampled_ids` int64 `[N]` is
    needed for `token_log_ratio`, which is otherwise left out, and NaN where an id is -1 (no token was sampled) or, on
    another device and in a compiled graph, beyond the vocabulary (on the host that is an error). `backend` names a row
    of `backends.BACKENDS`; None takes the fastest one that can run here. No gradients pass. Raises `MonitorInputError`
    for inputs that cannot be compared. Formulas: one sweep around a pilot shift, every term of the sums non-negative.
    On a device other than the CPU the `lean` backend synchronises once a call to decide whether any row needs the
    float64 path.
    """
    check_logits(reference, candidate)
    check_temperature(temperature)
    ids = check_sampled(sampled_ids, reference)
    asked = plan if ids is not None else plan.without_samples()
    table, invalid, only = run(reference, candidate, asked, temperature, ids, workspace, backend)
    values = dict(zip(asked.columns, table.unbind(0), strict=True))
    if sampled_ids is not None:
        given = sampled_ids.to(reference.device, torch.int64)
        without_token(values, (given < 0) | (given >= reference.shape[1]))
    return Rows(values, invalid, only[0], only[1])


def without_token(values: dict[str, torch.Tensor], none: torch.Tensor) -> None:
    """Set what is about the sampled token to NaN in the rows that have none, bool `[N]`."""
    for name in values.keys() & SAMPLED_STATISTICS:
        values[name] = values[name].masked_fill(none, torch.nan)


def check_logits(reference: torch.Tensor, candidate: torch.Tensor) -> None:
    """Raise `MonitorInputError` unless both are floating `[N, V]` of one shape and device with V in 1..262,144."""
    for what, side in (("reference_logits", reference), ("candidate_logits", candidate)):
        check_dense(what, side)
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
    if not isinstance(temperature, int | float):
        raise option_error("temperature", f"{type(temperature).__name__} is no number")
    if not 0.0 < temperature < float("inf"):
        raise option_error("temperature", f"{temperature} is not a positive finite number")


def check_sampled(sampled_ids: torch.Tensor | None, reference: torch.Tensor) -> torch.Tensor | None:
    """The sampled ids as int64 `[N]` on the logits' device, 0 for -1 (none); `MonitorInputError` for a wrong shape, type or range."""
    if sampled_ids is None:
        return None
    count, width = reference.shape
    check_integers("sampled_ids", sampled_ids, "token ids")
    if tuple(sampled_ids.shape) != (count,):
        raise shape_error("sampled_ids", list(sampled_ids.shape), f"[{count}]")
    ids = sampled_ids.to(reference.device, torch.int64)
    if torch.compiler.is_compiling():
        return ids.clamp(0, width - 1)
    if count and ids.device.type == "cpu" and (int(ids.min()) < -1 or int(ids.max()) >= width):
        raise option_error("sampled_ids", f"ids from {int(ids.min())} to {int(ids.max())}, vocabulary is {width} wide")
    return ids.clamp(0, width - 1)


__all__ = ["RAW_STATISTICS", "STATISTICS", "RowPlan", "Rows", "Workspace", "row_statistics"]
