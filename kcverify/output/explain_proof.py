"""The answer of `check --explain` and `--all-cores`: each proof as a numbered chain, and the sets that matter."""

from __future__ import annotations

from typing import Any

from kcverify.elaborate.contract import Contract
from kcverify.exact import decimal_down, decimal_near
from kcverify.output import chain
from kcverify.output.style import paint, plural, table
from kcverify.prove.check import Checked
from kcverify.prove.cores import CoreLimits, Explained, Sets, contradictory_sets, explain
from kcverify.prove.verdict import Limits, Route


def explained(
    checked: Checked, limits: Limits | None = None, *, every: bool = False, effort: CoreLimits | None = None
) -> tuple[Explained, ...]:
    """Every proved guarantee of a contract by a minimal set of clauses; with `every` all such sets."""
    found = [explain(checked.contract, v, limits or Limits(), every=every, effort=effort) for v in checked.verdicts]
    return tuple(e for e in found if e is not None)


def contradictions(checked: Checked, limits: Limits | None = None, effort: CoreLimits | None = None) -> Sets:
    """All minimal sets of clauses that exclude each other, where the check has found one."""
    if not any(d.code.slug == "contradictory" for d in checked.report.diagnostics):
        return Sets(())
    return contradictory_sets(checked.contract, limits or Limits(), effort)


def explain_data(checked: Checked, limits: Limits | None = None, *, every: bool = False) -> dict[str, Any]:
    """Minimal sets and numbered chains as plain data; all sets only with `every`."""
    out: dict[str, Any] = {"proofs": [_proof(e) for e in explained(checked, limits, every=every)]}
    if every:
        out["contradictory"] = _sets_data(contradictions(checked, limits))
    return out


def _sets_data(sets: Sets) -> dict[str, Any]:
    return {"sets": [list(s) for s in sets.found], "complete": sets.complete}


def _proof(e: Explained) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": e.verdict.claim.name,
        "slice": e.verdict.scope or None,
        "core": list(e.core),
        "routes": [_route_data(r) for r in e.routes],
        "room": {name: decimal_down(x, 3) for name, x in e.room},
    }
    if e.alternatives is not None:
        out["proving"] = _sets_data(e.alternatives)
    return out


def _route_data(route: Route) -> dict[str, Any]:
    return {
        "bound": chain.shown(route.fact.value, route.atom.upper),
        "threshold": decimal_near(route.threshold, 12),
        "slack": decimal_down(route.slack, chain.DIGITS),
        "chain": [{**link, "from": back} for link, back in zip(chain.links(route.fact), _back(route), strict=True)],
    }


def _back(route: Route) -> list[list[int]]:
    """For each fact of the chain the numbers, from 1, of the facts that it follows from."""
    place = {id(f): i for i, f in enumerate(route.fact.chain(), 1)}
    return [[place[id(p)] for p in f.premises] for f in route.fact.chain()]


def explain_text(checked: Checked, color: bool, limits: Limits | None = None, *, every: bool = False) -> str:
    """Minimal sets and numbered chains for a terminal; all sets only with `every`. Empty where nothing is proved."""
    parts = [_text(checked.contract, e, color) for e in explained(checked, limits, every=every)]
    if every:
        sets = contradictions(checked, limits)
        if sets.found:
            lines = [f"  {plural(len(sets.found), 'minimal set')} of clauses that exclude each other{_open(sets)}:"]
            parts.append("\n".join([*lines, *(f"    {_listed(s)}" for s in sets.found)]))
    return "\n\n".join(parts)


def _text(contract: Contract, e: Explained, color: bool) -> str:
    claim, names = e.verdict.claim, _listed(e.core)
    where = f" on {e.verdict.scope}" if e.verdict.scope else ""
    head = (
        f"  why {paint(claim.name, 'bold', color)}{where} holds: {names} {'proves' if len(e.core) == 1 else 'prove'} it"
    )
    total = sum(1 for c in contract.clauses if c.metric.quantity is not None)
    lines = [
        f"{head} ({len(e.core)} of {plural(total, 'clause')} in reach of the lemmas; none of them can be left out)"
    ]
    places = {c.name: c.span.place for c in contract.clauses}
    for route in e.routes:
        lines += _chain(route, places)
    if not e.routes:
        lines.append(f"    by linear arithmetic over these clauses and the lemmas: {', '.join(e.verdict.core)}")
    lines += [f"    `{name}` proves it up to {decimal_down(x, 3)}" for name, x in e.room]
    if e.alternatives is not None:
        others = [s for s in e.alternatives.found if set(s) != set(e.core)]
        told = "; ".join(_listed(s) for s in others) if others else "none"
        lines.append(f"    other minimal sets that prove it{_open(e.alternatives)}: {told}")
    return "\n".join(lines)


def _chain(route: Route, places: dict[str, str]) -> list[str]:
    rows = []
    for i, ((_, text, why), back, fact) in enumerate(
        zip(chain.rows(route.fact), _back(route), route.fact.chain(), strict=True), 1
    ):
        source = f"clause `{fact.label}`, {places.get(fact.label, '')}" if not back else ""
        reason = source or f"from {' and '.join(map(str, back))}: {why}"
        rows.append((str(i), text, reason, fact.lemma.name if fact.lemma is not None else ""))
    relation = "<=" if route.atom.upper else ">="
    bound = chain.shown(route.fact.value, route.atom.upper)
    share = f" ({decimal_down(route.slack * 100 / route.threshold, 3)}% of the limit)" if route.threshold > 0 else ""
    ending = f"      {bound} {relation} {decimal_near(route.threshold, 12)}, slack {decimal_down(route.slack, chain.DIGITS)}{share}"
    return [*table(rows, indent=6, right=frozenset({0})), ending]


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def _open(sets: Sets) -> str:
    return "" if sets.complete else " (the search stopped at its limit: there may be more)"
