"""Whether the evidence that a clause needs can be had: enough requests, and inputs that carry its metric."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kcverify.catalog.model import Estimator, Family, Metric
from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import Clause, Contract, Stage
from kcverify.exact import decimal_near, decimal_up
from kcverify.prove import samples

_FULL_LOGITS = "full logits of both sides"
CARRIERS: dict[str, tuple[str, ...]] = {
    "logits": (
        _FULL_LOGITS,
        "full probabilities of both sides",
        "top-k log-probabilities of both sides",
        "top-k tokens of both sides, k at least what is asked",
        "log-probability of the sampled token on both sides",
        "log-probability of each given token on both sides",
    ),
    "probabilities": (
        "full probabilities of both sides",
        "top-k log-probabilities of both sides",
        "top-k tokens of both sides, k at least what is asked",
        "log-probability of the sampled token on both sides",
        "log-probability of each given token on both sides",
    ),
    "top_log_probabilities": (
        "top-k log-probabilities of both sides",
        "top-k tokens of both sides, k at least what is asked",
    ),
    "sampled_log_probabilities": (
        "log-probability of the sampled token on both sides",
        "log-probability of each given token on both sides",
    ),
}
"""Fields of `trace` that carry distributions, and the inputs of the metric table that each of them gives."""


@dataclass(frozen=True)
class Supply:
    """Requests that a stage has seen when it ends: what its own window holds (None: not known), and its evidence.

    Evidence of stages multiplies, so a stage without a minimum of its own counts what the stages before it have seen.
    """

    stage: Stage
    window: int | None
    evidence: int | None


def window_of(stage: Stage, traffic: Fraction | None) -> int | None:
    """Requests that a stage's window holds at the declared traffic; None where the window or the traffic is open."""
    if traffic is None:
        return None
    if stage.name == "shadow" and stage.duration is not None:
        return math.floor(traffic * stage.duration * (1 if stage.mirror is None else stage.mirror))
    if stage.name == "canary" and stage.hold is not None and stage.traffic:
        return math.floor(traffic * stage.hold * sum(stage.traffic))
    if stage.name == "full" and stage.stable is not None:
        return math.floor(traffic * stage.stable)
    return None


def supplies(contract: Contract) -> Iterator[Supply]:
    """What each stage supplies, in the order of the stages."""
    seen = 0
    for stage in contract.stages:
        window = window_of(stage, contract.assumptions.traffic)
        known = [n for n in (window, stage.min_requests) if n is not None]
        own = max(known) if known else None
        evidence = own if own is None or stage.min_requests is not None else own + seen
        seen += own or 0
        yield Supply(stage, window, evidence)


def sample_findings(contract: Contract, report: Report) -> None:
    """Reports clauses whose rate no declared stage can certify."""
    stages = [s for s in supplies(contract) if s.evidence is not None]
    for clause in contract.clauses:
        wanted = samples.evidence(clause)
        if wanted is None or clause.window is not None or not stages:
            continue
        kind, rate = wanted
        count = samples.needed(kind, rate, clause.confidence)
        short = next((s for s in stages if s.evidence is not None and s.evidence < count), None)
        if short is not None:
            _short(clause, kind, rate, count, short, report)


def _short(clause: Clause, kind: str, rate: Fraction, count: int, supply: Supply, report: Report) -> None:
    seen = supply.evidence or 0
    confidence = f"{decimal_near(clause.confidence * 100, 6)}%"
    once = samples.one_look(rate, clause.confidence)
    price = decimal_near(Fraction(count, once), 3)
    what = "a mean of" if kind == "mean" else "a rate of"
    where = f" of the slice `{clause.slices[0]}`" if clause.slices else ""
    reason = (
        f"{what} {decimal_near(rate * 100, 6)}% at confidence {confidence} needs {count:,} clean requests{where} however often one looks "
        f"({once:,} in one look; peeking costs {price} times that), and `{supply.stage.name}` supplies {seen:,}"
    )
    within = (
        f"`except {decimal_up(samples.certified(kind, seen, clause.confidence) * 100, 2)}%`"
        if seen > 3
        else "a larger rate"
    )
    if clause.exception == 0:
        within = within.replace("`except ", "`a rate of ")
    hint = f"let `{supply.stage.name}` see {count:,} requests (`min {_round_up(count):_}`), or allow {within}"
    related = [Related(supply.stage.span, f"supplies {seen:,} requests")]
    report.add("unmeasurable", clause.span, related=related, name=clause.name, reason=reason, hint=hint)


def _round_up(count: int) -> int:
    """The count with two digits, rounded up."""
    scale = 10 ** max(0, len(str(count)) - 2)
    return int(-(-count // scale) * scale)


def carrier_findings(contract: Contract, report: Report) -> None:
    """Reports clauses whose metric, or whose slice, needs what `trace` does not name.

    A contract declares its inputs by naming in `trace` one of the fields of `CARRIERS`; without such a field nothing is
    said about them. A tag is known only where `trace` names `tags`.
    """
    seen = contract.observability
    if seen is None or not seen.trace:
        return
    named = [name for name in seen.trace if name in CARRIERS]
    given = {text for name in named for text in CARRIERS[name]}
    related = [Related(seen.span, "what the trace records")] if seen.span is not None else []
    for clause in contract.clauses:
        reason = (_unseen(clause.metric, named, given) if named else "") or _untagged(contract, clause)
        if reason:
            report.add("unobservable", clause.span, related=related, name=clause.name, reason=reason)


def _unseen(metric: Metric, named: list[str], given: set[str]) -> str:
    """Why the named carriers do not give the metric; empty where they do."""
    asked = {c.inputs for c in metric.carriers}
    known = {text for texts in CARRIERS.values() for text in texts}
    if metric.family not in (Family.NUMERICAL, Family.STATISTICAL) or not asked & known:
        return ""
    found = [c for c in metric.carriers if c.inputs in given]
    only_lower = all(c.estimator is Estimator.LOWER for c in metric.carriers)
    if any(c.estimator is not Estimator.LOWER for c in found) or (found and only_lower):
        return ""
    best = next(c.inputs for c in metric.carriers if c.estimator is not Estimator.LOWER or only_lower)
    have = " and ".join(f"`{name}`" for name in named)
    worth = "give a lower bound of it only, which can fail and never pass" if found else "say nothing about it"
    return f"`{metric.name}` needs {best}; {have} {worth}"


def _untagged(contract: Contract, clause: Clause) -> str:
    fields = {s.name: s.fields for s in contract.slices}
    trace = contract.observability.trace if contract.observability is not None else ()
    blind = next((name for name in clause.slices if "tags" in fields.get(name, ())), None)
    if blind is None or "tags" in trace:
        return ""
    return f"the slice `{blind}` is told by tags, and `trace` does not name `tags`"
