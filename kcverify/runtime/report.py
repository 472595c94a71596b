"""The report of a monitor: verdict, evidence, witness and quantiles of every clause and slice, as plain JSON values."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import torch

from kcverify.runtime.clauses import Cell, ClauseSpec, Layout, Sampled
from kcverify.runtime.evidence import Evidence, mean_limit
from kcverify.runtime.histogram import quantile, trimmed
from kcverify.runtime.judgement import Seen, at_most, judge_clause, needed, p_value
from kcverify.runtime.ledger import Ledger
from kcverify.runtime.many import Judged
from kcverify.runtime.readings import reading
from kcverify.runtime.rowplan import RowPlan
from kcverify.runtime.sequential import SCALE, Wealth
from kcverify.runtime.sources import OBSERVED, READ


class Measured(Protocol):
    """What the report reads of a monitor."""

    CONTRACT: ClassVar[str]
    DIGEST: ClassVar[str]
    CLAUSES: ClassVar[tuple[ClauseSpec, ...]]
    temperature: float
    plan: RowPlan
    layout: Layout
    upper: dict[str, float]
    lower: dict[str, float]
    counts: torch.Tensor
    slice_counts: torch.Tensor
    cell_counts: torch.Tensor
    histograms: torch.Tensor
    observed: torch.Tensor
    calibration: torch.Tensor
    worst_score: torch.Tensor
    worst_value: torch.Tensor
    worst_place: torch.Tensor
    ledger: Ledger

    def settled_evidence(self) -> Evidence:
        """The evidence with the open requests folded in."""


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
LOOKS = {False: "any number of looks", True: "one look"}
_ONE_LOOK = (
    "one look: verdicts hold for a sample whose size was fixed before it was drawn and that is looked at once; "
    "paired differences and the mean of a metric without an upper end keep their sequential test"
)


def build_report(monitor: Measured, *, one_look: bool = False) -> dict[str, Any]:
    """The report of `monitor.report()`; a function of the merged state alone.

    `one_look`: the tests of `fixed_sample` instead of the sequential ones.
    """
    evidence = monitor.settled_evidence()
    total, invalid, reference_only, candidate_only = (int(v) for v in monitor.counts.tolist())
    cells = seen_cells(monitor, evidence)
    rows, rules = [], []
    for index, clause in enumerate(monitor.CLAUSES):
        seen = [cells[index, name] for name in clause.slices or (None,) if (index, name) in cells]
        judged = judge_clause(seen, one_look=one_look) if seen else []
        for name in () if seen else clause.slices or (None,):
            rows.append(_unenforced(monitor, clause, name))
        for one, verdict in zip(seen, judged, strict=True):
            rows.append(_enforced(monitor, one, verdict, evidence, one_look))
        if judged and judged[0].rule:
            rules.append(f"clause {clause.name}: which slices fail is decided by {judged[0].rule}")
    notes = sorted({n for c in monitor.CLAUSES if c.active(monitor.temperature) for n in _notes(c)})
    notes += [*_tokenless(monitor), *rules, *([_ONE_LOOK] if one_look else [])]
    if monitor.plan.certified is not None:
        notes.append(f"total variation up to {monitor.plan.certified} is reported as its upper bound sqrt(KL/2)")
    if invalid:
        notes.append(f"{invalid} of {total} rows are invalid (NaN, +inf, or a side without any token)")
    return {
        "contract": monitor.CONTRACT,
        "digest": monitor.DIGEST,
        "temperature": monitor.temperature,
        "looks": LOOKS[one_look],
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


def seen_cells(monitor: Measured, evidence: Evidence) -> dict[tuple[int, str | None], Seen]:
    """What was measured of every enforced clause and slice, by (index of the clause, slice)."""
    out = {}
    for place, cell in enumerate(monitor.layout.cells):
        clause = monitor.CLAUSES[cell.clause]
        if not clause.active(monitor.temperature):
            continue
        rows, invalid, unknown = (
            int(v) for v in monitor.slice_counts[monitor.layout.group(clause, cell.slice)].tolist()
        )
        exceeding, missing = (int(v) for v in monitor.cell_counts[place].tolist())
        bounds = monitor.lower[clause.name], monitor.upper[clause.name]
        limit = mean_limit(clause, bounds[1], bounds[0])
        observed = monitor.observed[place].tolist()
        counts = (rows, invalid, unknown, missing, exceeding)
        if clause.source in OBSERVED:
            counts = (observed[0], observed[1], observed[3], observed[2], 0)
        score = float(monitor.worst_score[place])
        out[cell.clause, cell.slice] = Seen(
            clause,
            cell,
            evidence.records[place],
            limit,
            *counts,
            bounds=bounds,
            second=evidence.second(place) if place in monitor.layout.second else Wealth(),
            table=monitor.calibration[monitor.layout.bins(place)].tolist(),
            peak=None if score == -math.inf else score,
            observed=observed,
        )
    return out


def _tokenless(monitor: Measured) -> list[str]:
    """How many valid rows no sampled token follows, and which clauses therefore leave them out."""
    place = monitor.layout.slot.get(Sampled(None))
    names = [c.name for c in monitor.CLAUSES if c.sampled and c.active(monitor.temperature)]
    if place is None or not names:
        return []
    rows = int(monitor.counts[0]) - int(monitor.slice_counts[place, 0])
    return [f"{rows} rows have no sampled token and are not counted by {', '.join(names)}"] if rows else []


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
            "requests", "rows", "exceeding_rows", "exceeding_requests", "observed", "observed_is", "at_most", "log_e_fail", "log_e_pass",
            "log_threshold_fail", "log_threshold_pass", "p_fail", "p_pass", "many_slices", "requests_needed",
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


def _enforced(monitor: Measured, seen: Seen, judged: Judged, evidence: Evidence, one_look: bool) -> dict[str, Any]:
    clause, record, outcome = seen.clause, seen.record, judged.outcome
    place = monitor.layout.cells.index(seen.cell)
    level = 1.0 - clause.confidence
    sides = {"fail": judged.log_e_fail, "pass": judged.log_e_pass}
    logs: dict[str, Any] = {}
    for side, value in sides.items():
        logs[f"log_e_{side}"] = None if one_look else number(value)
        logs[f"p_{side}"] = p_value(value) if one_look else None
    return _head(monitor, clause, seen.cell.slice) | {
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "evidence": {
            "kind": clause.evidence,
            "requests": record.requests,
            "rows": None if clause.source in OBSERVED else seen.rows,
            "exceeding_rows": None if clause.evidence == "mean" or clause.source != "rows" else seen.exceeding,
            "exceeding_requests": None if clause.evidence == "mean" or clause.source in READ else record.exceeding,
            "observed": number(reading(seen) if clause.source in READ else _observed(record)),
            "observed_is": observed_is(clause),
            "at_most": at_most(seen, level, one_look=one_look),
            **logs,
            "log_threshold_fail": judged.log_threshold_fail,
            "log_threshold_pass": math.log(1.0 / level),
            "many_slices": judged.rule or None,
            "requests_needed": needed(clause, seen.limit, one_look=one_look),
        },
        "max": _max(monitor, place, evidence),
        "quantiles": _quantiles(monitor, clause, seen.cell),
    }


def observed_is(clause: ClauseSpec) -> str:
    """What the number `observed` of a clause is."""
    if clause.source in READ:
        return (
            "reading of all requests, no confidence"
            if clause.evidence != "paired"
            else "|mean difference| over requests"
        )
    if clause.evidence == "mean":
        value = "mean over its rows" if clause.source == "rows" else "value"
        return f"mean over requests of {'one minus ' if clause.upper is None else ''}the {value}"
    if clause.source != "rows":
        return "share of exceeding requests"
    return "mean over requests of the share of exceeding rows"


def _observed(record: Wealth) -> float | None:
    """Mean over requests of the share or value."""
    if record.infinite:
        return math.inf
    return record.total / SCALE / record.requests if record.requests else None


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
        "row": None if row < 0 else row,
        "token": None if token < 0 else token,
    }


def _quantiles(monitor: Measured, clause: ClauseSpec, cell: Cell) -> dict[str, list[Any]]:
    key = (clause.metric, cell.slice)
    if key not in monitor.layout.histograms:
        return {}
    counts = monitor.histograms[monitor.layout.histograms.index(key)].cpu()
    found = {label: quantile(counts, share) for label, share in QUANTILES.items()}
    end = _largest(monitor, clause, cell)
    return {label: [number(pair[0]), number(min(pair[1], end))] for label, pair in found.items() if pair is not None}


def _largest(monitor: Measured, clause: ClauseSpec, cell: Cell) -> float:
    """The largest value where the worst one is it, which no order statistic exceeds; else infinity."""
    place = monitor.layout.cells.index(cell)
    seen = float(monitor.worst_score[place]) > -math.inf
    value = float(monitor.worst_value[place])
    return value if seen and clause.lower is None and not math.isnan(value) else math.inf


def _histograms(monitor: Measured) -> dict[str, Any]:
    out = {}
    for index, (metric, name) in enumerate(monitor.layout.histograms):
        shown = trimmed(monitor.histograms[index].cpu())
        if name is None:
            out[metric] = {"edges": [number(e) for e in shown["edges"]], "counts": shown["counts"]}
    return out
