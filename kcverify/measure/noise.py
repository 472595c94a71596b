"""Run noise: the reference against itself in calls that ought to give the same logits, and limits that lie below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kcverify.measure.figures import FIGURES, Tally
from kcverify.measure.sides import KernelSide
from kcverify.runtime.judgement import Seen
from kcverify.runtime.readings import judge_reading
from kcverify.runtime.report import build_report, number, seen_cells
from kcverify.runtime.sequential import SCALE
from kcverify.runtime.sources import OBSERVED, READ


@dataclass(frozen=True)
class Variation:
    """One way to run again.

    `obstacle(side, ids[batch, seq])` says why it does not apply, or nothing. `run(side, ids)` gives logits
    `[batch, n, vocabulary]` of the first n <= seq positions.
    """

    name: str
    title: str
    obstacle: Callable[[KernelSide, Tensor], str]
    run: Callable[[KernelSide, Tensor], Tensor]


def _nothing(side: KernelSide, ids: Tensor) -> str:
    return ""


def _one_request(side: KernelSide, ids: Tensor) -> str:
    return "" if ids.shape[0] > 1 else "the run itself has one request a call"


def _short(side: KernelSide, ids: Tensor) -> str:
    if side.basis is None:
        return "a function's rows are not known to be free of later tokens"
    return "" if ids.shape[1] > 1 else "requests have one token"


def _no_threads(side: KernelSide, ids: Tensor) -> str:
    return "" if side.device.type == "cpu" else f"threads of the CPU do not matter on {side.device.type}"


def _again(side: KernelSide, ids: Tensor) -> Tensor:
    return side.logits(ids.clone())


def _alone(side: KernelSide, ids: Tensor) -> Tensor:
    return torch.cat([side.logits(ids[i : i + 1].clone()) for i in range(len(ids))])


def _twice(side: KernelSide, ids: Tensor) -> Tensor:
    return side.logits(torch.cat((ids, ids)))[: len(ids)]


def _shorter(side: KernelSide, ids: Tensor) -> Tensor:
    return side.logits(ids[:, :-1].clone())


def _threads(side: KernelSide, ids: Tensor) -> Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        return side.logits(ids.clone())
    finally:
        torch.set_num_threads(before)


VARIATIONS: tuple[Variation, ...] = (
    Variation("repeated", "the same call again", _nothing, _again),
    Variation("alone", "one request a call", _one_request, _alone),
    Variation("twice", "twice the requests a call", _nothing, _twice),
    Variation("shorter", "without each request's last token", _short, _shorter),
    Variation("threads", "another number of threads", _no_threads, _threads),
)


def highest(tallies: Sequence[Tally]) -> dict[str, dict[str, Any]] | None:
    """The noise floor: the largest of each number over the variations; None where nothing was run."""
    if not tallies:
        return None
    numbers = [{figure.name: tally.numbers(figure) for figure in FIGURES} for tally in tallies]
    return {
        figure.name: {key: max(n[figure.name][key] for n in numbers) for key in ("mean", "max", "p99.9")}
        for figure in FIGURES
    }


def below_floor(monitor: Any, variation: Variation) -> list[dict[str, Any]]:
    """Clauses that a monitor fed with run noise alone finds beyond their limit, by more than they allow."""
    out = []
    worst = {(c["name"], c["slice"]): c["max"] for c in build_report(monitor)["clauses"]}
    for seen in seen_cells(monitor, monitor.settled_evidence()).values():
        if seen.clause.source not in OBSERVED and (share := _beyond(seen)) is not None:
            found = worst[seen.clause.name, seen.cell.slice]
            out.append(_entry(seen, variation, share, found["value"] if found else None))
    return out


def _mean(seen: Seen) -> float:
    """Mean over requests of what the clause's test adds up."""
    return math.inf if seen.record.infinite else seen.record.total / SCALE / seen.record.requests


def _beyond(seen: Seen) -> str | None:
    """What lies beyond the limit in words, None where the clause allows it: the test's numbers without its confidence."""
    clause, record, limit = seen.clause, seen.record, seen.limit
    if not record.requests:
        return None
    if clause.source in READ:
        return "over all requests" if judge_reading(seen).verdict == "fail" else None
    if clause.evidence == "mean":
        return "the mean over requests" if _mean(seen) > limit else None
    if limit >= 1.0:
        return None
    rows = f"{seen.exceeding:,} of {seen.rows:,} rows" if clause.source == "rows" else ""
    requests = f"{record.exceeding:,} of {record.requests:,} requests"
    if clause.evidence == "maximum" or limit <= 0.0:
        bad = seen.exceeding if clause.source == "rows" else record.exceeding
        return (rows or requests) if bad else None
    if clause.evidence == "share":
        return rows if _mean(seen) > limit else None
    exceeding, count = seen.counted
    return (rows if clause.unit == "token" else requests) if exceeding > limit * count else None


def _share(seen: Seen) -> float:
    """Share of rows (else of requests) beyond the limit; 1 for a mean or a reading, which has no share."""
    if seen.clause.evidence == "mean" or seen.clause.source in READ:
        return 1.0
    if seen.clause.source == "rows" and seen.rows:
        return seen.exceeding / seen.rows
    return seen.record.exceeding / seen.record.requests


def _entry(seen: Seen, variation: Variation, share: str, worst: float | str | None) -> dict[str, Any]:
    """One clause with its limit, the value that noise alone reaches, and the sentence that names both."""
    clause, (lower, upper) = seen.clause, seen.bounds
    limit, above = (upper, clause.lower is None) if clause.upper is not None else (lower, False)
    if clause.evidence == "mean":
        worst = number(_mean(seen) if clause.upper is not None else 1.0 - _mean(seen))
    where = f" on {seen.cell.slice}" if seen.cell.slice else ""
    allowed = f", {100 * clause.exception:.3g} % allowed" if clause.exception else ""
    reach = "?" if worst is None else worst if isinstance(worst, str) else f"{worst:.3g}"
    if above:
        text = f"limit {limit:.4g} is below the noise floor {reach}"
    else:
        text = f"run noise alone leaves its limits and reaches {reach}"
    text = f"clause {clause.name}{where}: {text} ({variation.title}: {share}{allowed}): it fails without any fault"
    return {
        "clause": clause.name, "slice": seen.cell.slice, "limit": number(limit), "floor": worst, "variation": variation.name,
        "beyond_share": _share(seen), "text": text,
    }  # fmt: skip
