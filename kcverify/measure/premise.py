"""What a measurement says about the guarantees: its upper confidence limits as premises of the same chains of lemmas.

A clause `metric <= tau except rho` that was measured gives the premise `metric <= tau except rho_hat`, `rho_hat` the upper
confidence limit of its exceedance rate; a mean clause gives `mean metric <= m_hat`. The rows of the lemma table carry it
on: for a mean, `E[f] <= 1 - (1 - rho_hat)(1 - f(tau))`; for a response the chance `H rho_hat` of meeting an exception.
What follows holds with the stated confidence for the traffic that was measured, and is marked `measured`, never proved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kcverify.bounds.graph import Fact, Node, best_for, propagate
from kcverify.catalog.model import Level, Mode, Statistic
from kcverify.elaborate.contract import Clause, Contract, Limit, Threshold
from kcverify.exact import decimal_exact, monitor_float_down
from kcverify.output import chain
from kcverify.prove.check import Checked
from kcverify.prove.obligations import Obligation, Piece, facts, in_graph, mode_of, narrowed, obligations, parameters
from kcverify.prove.prover import KNOWN_BEFORE
from kcverify.runtime.judgement import Seen, at_most
from kcverify.runtime.sequential import requests_needed

CONFIDENCE = Fraction(99, 100)
"""Of all statements of one run together."""


@dataclass(frozen=True)
class Run:
    """What was measured: the cells by clause name and slice (None: all traffic), where and how.

    `longest` is the largest number of tokens of a measured request; `one_look` says how the limits were computed.
    """

    cells: Mapping[tuple[str, str | None], Seen]
    temperature: float
    requests: int
    source: str
    longest: int
    complete: bool = True
    one_look: bool = False


@dataclass(frozen=True)
class Premise:
    """One measured premise: the clause with its exception (or its mean) replaced by the upper confidence limit."""

    clause: Clause
    scope: str
    value: Fraction


def measured_guarantees(checked: Checked, run: Run) -> dict[str, Any]:
    """The statements of a run as plain data: one for each guarantee and slice, each with its bound or with the reason.

    All of them hold together with `CONFIDENCE`: the error is shared out equally over every clause and slice that could
    serve as a premise, before anything is known of its data.
    """
    contract = checked.contract
    usable = [(c, s) for c in contract.clauses for s in (c.slices or ("",)) if _usable(c, s, run)]
    level = monitor_float_down((1 - CONFIDENCE) / max(len(usable), 1))
    premises = [] if run.one_look and not run.complete else _premises(usable, run, level)
    proved = {(v.claim.name, v.scope): v for v in checked.verdicts}
    statements = []
    for obligation in obligations(contract):
        verdict = proved.get((obligation.claim.name, obligation.scope))
        told = _statement(contract, obligation, premises, run, level)
        best = min(verdict.best, key=lambda r: r.slack, default=None) if verdict is not None else None
        statement = {
            "name": obligation.claim.name,
            "slice": obligation.scope or None,
            "claim": obligation.claim.text,
            "status": "measured",
            **told,
            "proved": chain.shown(best.fact.value, best.atom.upper) if best is not None else None,
            "proved_verdict": verdict.status.value if verdict is not None else None,
        }
        statements.append(statement | {"sentence": sentence(statement)})
    return {"confidence": decimal_exact(CONFIDENCE), "about": _about(contract, run), "statements": statements}


def _usable(clause: Clause, scope: str, run: Run) -> bool:
    """Whether a clause on a slice may serve as a premise, whatever its data turn out to be."""
    if (clause.name, scope or None) not in run.cells or not in_graph(clause) or clause.limit.hole:
        return False
    if clause.metric.level is not Level.TOKEN or clause.statistic not in (Statistic.MAX, Statistic.MEAN):
        return False
    return mode_of(clause) is Mode.POINT or clause.metric.range[1] == 1


def _premises(usable: Sequence[tuple[Clause, str]], run: Run, level: float) -> list[Premise]:
    found = []
    for clause, scope in usable:
        limit = at_most(run.cells[clause.name, scope or None], level, one_look=run.one_look)
        if limit is not None and limit < 1.0:
            found.append(Premise(_replaced(clause, Fraction(limit)), scope, Fraction(limit)))
    return found


def _replaced(clause: Clause, value: Fraction) -> Clause:
    """The clause as it was measured: its exception, or its mean, is `value`."""
    if mode_of(clause) is Mode.POINT:
        return replace(clause, exception=value)
    if clause.limit.upper is not None:
        return replace(clause, limit=Limit(upper=Threshold(value)))
    return replace(clause, limit=Limit(lower=Threshold(1 - value)))


def _statement(
    contract: Contract, obligation: Obligation, premises: Sequence[Premise], run: Run, level: float
) -> dict[str, Any]:
    """Bound, chain and premises of one guarantee, or `bound` None with the reason."""
    nothing: dict[str, Any] = dict.fromkeys(("bound", "relation", "quantity", "exception"))
    nothing |= {"premises": [], "chain": [], "by": []}
    within = narrowed(contract, obligation.claim)
    t = Fraction(repr(run.temperature))
    reason = _obstacle(within, obligation, t, run)
    mine = [p for p in premises if p.scope == obligation.scope]
    if within is None or reason:
        return nothing | {"reason": reason}
    if not mine:
        return nothing | {"reason": "no clause measured on this traffic has an upper confidence limit below 1"}
    clip = obligation.claim.argument("clip")
    box = parameters(within.assumptions, Piece(t, t, ()), clip if isinstance(clip, Fraction) else None)
    piece = Piece(t, t, tuple(p.clause for p in mine))
    atom = obligation.atoms[0]
    given = [f for p in mine for f in facts(p.clause, piece)]
    best = propagate(given, box, toward=[atom.node.quantity])
    rho = Fraction(1) if atom.node.mode is Mode.POINT else Fraction(0)
    fact = best_for(best, atom.node.quantity, atom.node.mode, rho)
    if fact is None:
        return nothing | {"reason": "no lemma leads from what was measured to it under the contract's assumptions"}
    known = propagate([Fact(Node("tv_seq", Mode.SEQUENCE), Fraction(1), label="any pair")], box)
    trivial = best_for(known, atom.node.quantity, atom.node.mode, Fraction(0))
    if trivial is not None and (fact.value >= trivial.value if atom.upper else fact.value <= trivial.value):
        return nothing | {"reason": _too_few(within, mine, level)}
    used = [p for p in mine if p.clause.name in fact.sources()]
    return {
        "bound": chain.shown(fact.value, atom.upper),
        "relation": "<=" if atom.upper else ">=",
        "quantity": atom.node.quantity,
        "exception": chain.percent(fact.node.rho) if fact.node.mode is Mode.POINT and fact.node.rho else None,
        "premises": [_premise_data(p, run) for p in used],
        "chain": chain.links(fact),
        "by": [f.lemma.name for f in fact.chain() if f.lemma is not None],
        "reason": "",
    }


def _obstacle(within: Contract | None, obligation: Obligation, t: Fraction, run: Run) -> str:
    """Why nothing can be said of a guarantee, or the empty string."""
    if within is None:
        return "its band lies outside the assumed range"
    if len(obligation.atoms) != 1:
        return "no lemma of the catalogue bounds it by one quantity"
    i = within.assumptions.temperature
    if i is not None and i.low is not None and i.high is not None and not (i.low <= t <= i.high):
        return f"it is about temperatures {i.low} to {i.high}, the run was at {run.temperature:g}"
    if run.one_look and not run.complete:
        return "an interrupted run has no sample of fixed size, and one look needs it"
    fields = next((s.fields for s in within.slices if s.name == obligation.scope), ())
    late = [f for f in fields if f not in KNOWN_BEFORE]
    if late and obligation.atoms[0].node.mode is Mode.SEQUENCE:
        names = ", ".join(f"`{f}`" for f in late)
        return f"the slice is chosen by {names}, which may depend on the response: no bound on responses survives that"
    return ""


def _too_few(contract: Contract, premises: Sequence[Premise], level: float) -> str:
    horizon = contract.assumptions.horizon
    pointwise = [p.value for p in premises if mode_of(p.clause) is Mode.POINT]
    if horizon is None or horizon < 2 or not pointwise or horizon * min(pointwise) < 1:
        return "what was measured leaves no bound below the trivial one"
    count = requests_needed(1.0 / horizon, 1.0 - level, "share")
    return (
        f"no more than an exception of {chain.percent(min(pointwise))} of tokens is certain, and a response of {horizon} tokens "
        f"may meet one; fewer than {count:,} clean requests say nothing"
    )


def _premise_data(premise: Premise, run: Run) -> dict[str, Any]:
    clause, seen = premise.clause, run.cells[premise.clause.name, premise.scope or None]
    text = clause.text.split(":", 1)[-1].split("->")[0].split(" except ")[0].split(" on ")[0].strip()
    if mode_of(clause) is Mode.POINT:
        told = f"{text} except {chain.percent(premise.value)} of tokens"
    elif clause.limit.upper is not None:
        told = f"mean {clause.metric.name} <= {chain.shown(premise.value, True)}"
    else:
        told = f"mean {clause.metric.name} >= {chain.shown(1 - premise.value, False)}"
    return {
        "clause": clause.name,
        "text": told,
        "upper_limit": chain.shown(premise.value, True),
        "upper_limit_exact": str(premise.value),
        "requests": seen.record.requests,
        "exceeding_requests": seen.record.exceeding,
    }


def _about(contract: Contract, run: Run) -> str:
    looks = "at this one look" if run.one_look else "however often one looks"
    parts = [
        f"about the traffic measured: {run.requests:,} requests of {run.source} at temperature {run.temperature:g}, taken as drawn "
        f"at random from it; valid {looks}; a response is taken to meet exceeding tokens as often as these requests do"
    ]
    horizon = contract.assumptions.horizon
    if horizon is not None and run.longest != horizon:
        parts.append(
            f"measured requests have up to {run.longest:,} tokens, responses of the contract up to {horizon:,}"
        )
    if any(c.unit == "token" for c in contract.clauses):
        parts.append("clauses that count tokens rest on the assumption of independent tokens")
    if contract.assumptions.sampler is None:
        parts.append("sampler = full_softmax is assumed, since the contract does not say")
    return "; ".join(parts)


def sentence(statement: Mapping[str, Any]) -> str:
    """One statement in words."""
    where = f" on {statement['slice']}" if statement["slice"] else ""
    if statement["bound"] is None:
        return f"{statement['name']}{where}: nothing can be said from this run: {statement['reason']}"
    share = f" except {statement['exception']} of tokens" if statement["exception"] else ""
    premises = " and ".join(f"{p['clause']} ({p['text']})" for p in statement["premises"])
    by = " -> ".join(statement["by"]) or "itself"
    percent = chain.percent(CONFIDENCE).replace("%", " %")
    text = (
        f"{statement['name']}{where}: {statement['quantity']} {statement['relation']} {statement['bound']}{share} "
        f"with confidence {percent}, measured, by {premises} -> {by}"
    )
    if statement["proved"] is None:
        return text
    return (
        f"{text}; if every clause holds: {statement['relation']} {statement['proved']}, {statement['proved_verdict']}"
    )
