"""The report of a monitor: verdict, evidence, witness and quantiles of every clause and slice, as plain JSON values."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import torch

from kcverify.runtime.clauses import Cell, ClauseSpec, Layout
from kcverify.runtime.evidence import Evidence, mean_limit
from kcverify.runtime.histogram import quantile, trimmed
from kcverify.runtime.ledger import Ledger
from kcverify.runtime.sequential import (
    SCALE,
    Outcome,
    Wealth,
    judge_binary,
    judge_clean,
    judge_mean,
    judge_share,
    requests_needed,
)


class Measured(Protocol):
    """What the report reads of a monitor."""

    CONTRACT: ClassVar[str]
    DIGEST: ClassVar[str]
    CLAUSES: ClassVar[tuple[ClauseSpec, ...]]
    temperature: float
    layout: Layout
    upper: dict[str, float]
    lower: dict[str, float]
    counts: torch.Tensor
    slice_counts: torch.Tensor
    cell_counts: torch.Tensor
    histograms: torch.Tensor
    worst_score: torch.Tensor
    worst_value: torch.Tensor
    worst_place: torch.Tensor
    ledger: Ledger

    def settled_evidence(self) -> Evidence:
        """The evidence with the open requests folded in."""


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
SMALLEST_RATE = 1e-12


def build_report(monitor: Measured) -> dict[str, Any]:
    """The report of `monitor.report()`."""
    evidence = monitor.settled_evidence()
    total, invalid, reference_only, candidate_only = (int(v) for v in monitor.counts.tolist())
    cells = {(c.clause, c.slice): i for i, c in enumerate(monitor.layout.cells)}
    rows = []
    for index, clause in enumerate(monitor.CLAUSES):
        for name in clause.slices or (None,):
            place = cells.get((index, name))
            rows.append(
                _unenforced(monitor, clause, name)
                if place is None or not clause.active(monitor.temperature)
                else _enforced(monitor, clause, place, evidence)
            )
    notes = sorted({n for c in monitor.CLAUSES if c.active(monitor.temperature) for n in _notes(c)})
    if invalid:
        notes.append(f"{invalid} of {total} rows are invalid (NaN, +inf, or a side without any token)")
    return {
        "contract": monitor.CONTRACT,
        "digest": monitor.DIGEST,
        "temperature": monitor.temperature,
        "rows": {
            "total": total,
            "invalid": invalid,
            "support_reference_only": reference_only,
            "support_candidate_only": candidate_only,
        },
        "requests": evidence.requests,
        "clauses": rows,
        "histograms": _histograms(monitor),
        "notes": notes,
    }


def _notes(clause: ClauseSpec) -> list[str]:
    if clause.unit != "token":
        return []
    return [f"clause {clause.name} counts tokens and rests on the assumption of independent tokens"]


def number(value: float | None) -> float | str | None:
    """A JSON number, or the string `inf`, `-inf`, `nan` for what JSON cannot write."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _head(monitor: Measured, clause: ClauseSpec, name: str | None) -> dict[str, Any]:
    upper, lower = monitor.upper[clause.name], monitor.lower[clause.name]
    return {
        "name": clause.name,
        "family": clause.family,
        "metric": clause.metric,
        "statistic": clause.statistic,
        "text": clause.text,
        "severity": clause.severity,
        "slice": name,
        "limit": {
            "lower": None if clause.lower is None else lower,
            "upper": None if clause.upper is None else upper,
        },
        "exception": clause.exception,
        "confidence": clause.confidence,
        "unit": clause.unit,
    }


def _unenforced(monitor: Measured, clause: ClauseSpec, name: str | None) -> dict[str, Any]:
    reason = clause.reason or f"does not bind at temperature {monitor.temperature}"
    evidence = dict.fromkeys(
        (
            "requests", "rows", "exceeding_rows", "exceeding_requests", "observed", "log_e_fail", "log_e_pass",
            "log_threshold_fail", "log_threshold_pass", "requests_needed",
        )
    )  # fmt: skip
    head = _head(monitor, clause, name)
    return head | {
        "verdict": "not_enforced",
        "reason": reason,
        "evidence": {"kind": "none"} | evidence,
        "max": None,
        "quantiles": {},
    }


def _enforced(monitor: Measured, clause: ClauseSpec, place: int, evidence: Evidence) -> dict[str, Any]:
    cell, record = monitor.layout.cells[place], evidence.records[place]
    rows, invalid, unknown = (int(v) for v in monitor.slice_counts[monitor.layout.slot[cell.slice]].tolist())
    exceeding, missing = (int(v) for v in monitor.cell_counts[place].tolist())
    limit = mean_limit(clause, monitor.upper[clause.name], monitor.lower[clause.name])
    tested = _test(clause, record, rows, exceeding, limit)
    outcome = _verdict(clause, cell, tested, (rows, invalid, unknown, missing))
    threshold = math.log(1.0 / (1.0 - clause.confidence))
    return _head(monitor, clause, cell.slice) | {
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "evidence": {
            "kind": clause.evidence,
            "requests": record.requests,
            "rows": rows,
            "exceeding_rows": None if clause.evidence == "mean" or clause.source != "rows" else exceeding,
            "exceeding_requests": None if clause.evidence == "mean" else record.exceeding,
            "observed": number(_observed(record)),
            "log_e_fail": number(tested.log_e_fail),
            "log_e_pass": number(tested.log_e_pass),
            "log_threshold_fail": threshold,
            "log_threshold_pass": threshold,
            "requests_needed": _needed(clause, limit),
        },
        "max": _max(monitor, place, evidence),
        "quantiles": _quantiles(monitor, clause, cell),
    }


def _test(clause: ClauseSpec, record: Wealth, rows: int, exceeding: int, limit: float) -> Outcome:
    """The sequential test of the clause's kind of evidence on the merged record."""
    if clause.evidence == "mean":
        return judge_mean(record, limit, clause.confidence, bounded=clause.bounded)
    if limit >= 1.0:
        return Outcome("pass", "the clause allows every unit to exceed its limit")
    if clause.evidence == "maximum" or limit <= 0.0:
        seen = exceeding if clause.source == "rows" else record.exceeding
        return judge_clean(seen, record.requests, clause.minimum_requests, clause.confidence)
    if clause.evidence == "share":
        return judge_share(record, limit, clause.confidence)
    tokens = clause.unit == "token"
    counted = (exceeding, rows) if tokens else (record.exceeding, record.requests)
    return judge_binary(*counted, limit, clause.confidence)


def _verdict(clause: ClauseSpec, cell: Cell, tested: Outcome, counts: tuple[int, int, int, int]) -> Outcome:
    """The test's outcome unless the inputs say otherwise: invalid rows fail closed, missing inputs never pass.

    `counts`: rows, invalid rows, rows of unknown membership, rows without the inputs that the clause needs.
    """
    rows, invalid, unknown, missing = counts
    if invalid:
        return Outcome("fail", f"{invalid} of {rows} rows are invalid (NaN, +inf, or a side without any token)")
    if tested.verdict == "fail":
        return tested
    if unknown:
        return Outcome("unobservable", f"the mask of slice {cell.slice} was not given for {unknown} rows")
    if missing:
        return Outcome("unobservable", f"{' and '.join(clause.inputs)} not given for {missing} rows")
    if rows == 0:
        return Outcome("inconclusive", "no rows were measured")
    if tested.verdict == "pass" and clause.unit == "token":
        return Outcome("pass", tested.reason + ", assuming independent tokens", tested.log_e_fail, tested.log_e_pass)
    return tested


def _observed(record: Wealth) -> float | None:
    """Mean over requests of the share or value."""
    if record.infinite:
        return math.inf
    return record.total / SCALE / record.requests if record.requests else None


def _needed(clause: ClauseSpec, limit: float) -> int | None:
    """Clean requests (tokens for `unit token`) until pass; None where no number of them is enough or any is."""
    if clause.evidence == "maximum" or (clause.evidence != "mean" and limit <= 0.0):
        return clause.minimum_requests
    if not SMALLEST_RATE <= limit < 1.0 or not clause.bounded:
        return None
    return requests_needed(limit, clause.confidence, clause.evidence)


def _max(monitor: Measured, place: int, evidence: Evidence) -> dict[str, Any] | None:
    """The worst value with request, row within it, and token."""
    worst = evidence.worst[place]
    if worst is not None:
        value, request = worst
        name = monitor.ledger.names.get(request, request)
        return {"value": number(value), "request": name, "row": None, "token": None}
    if float(monitor.worst_score[place]) == -math.inf:
        return None
    key, row, token = (int(v) for v in monitor.worst_place[place].tolist())
    return {
        "value": number(float(monitor.worst_value[place])),
        "request": monitor.ledger.names.get(key, key),
        "row": row,
        "token": None if token < 0 else token,
    }


def _quantiles(monitor: Measured, clause: ClauseSpec, cell: Cell) -> dict[str, list[Any]]:
    key = (clause.metric, cell.slice)
    if key not in monitor.layout.histograms:
        return {}
    counts = monitor.histograms[monitor.layout.histograms.index(key)].cpu()
    found = {label: quantile(counts, share) for label, share in QUANTILES.items()}
    return {label: [number(pair[0]), number(pair[1])] for label, pair in found.items() if pair is not None}


def _histograms(monitor: Measured) -> dict[str, Any]:
    out = {}
    for index, (metric, name) in enumerate(monitor.layout.histograms):
        shown = trimmed(monitor.histograms[index].cpu())
        if name is None:
            out[metric] = {"edges": [number(e) for e in shown["edges"]], "counts": shown["counts"]}
    return out
