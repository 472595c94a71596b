"""What an editor shows for the word under the cursor: definition, unit, and the bounds that follow from a clause."""

from __future__ import annotations

from dataclasses import dataclass

from kcverify.bounds.graph import Fact, propagate
from kcverify.catalog import metrics, units
from kcverify.catalog.model import Metric, Mode
from kcverify.editor.document import Document, clause_at, contract_at, items, nearest, path_at
from kcverify.elaborate.assumptions import FORMS
from kcverify.elaborate.contract import Clause, Contract
from kcverify.exact import decimal_down, decimal_up
from kcverify.output.catalogue import arguments_text, range_text
from kcverify.prove.obligations import facts, parameters, whole_piece
from kcverify.prove.prover import prove
from kcverify.prove.verdict import Limits
from kcverify.source import Span
from kcverify.syntax import expressions, tree

SHOWN = ("log_ratio", "tv", "kl_candidate_reference", "bc", "tv_seq", "reward_drift", "pg_bias", "clip_share")
"""Quantities whose bounds are shown, in this order."""

_LIMITS = Limits(solver_ms=300, candidates=8, remedy_steps=8)


@dataclass(frozen=True)
class Hover:
    """Markdown about the characters of a span."""

    text: str
    span: Span


def hover(document: Document, offset: int) -> Hover | None:
    """What to show at an offset, or None where there is nothing to say."""
    path = path_at(document, offset)
    if not path:
        return None
    inner = path[-1]
    contract = contract_at(document, path)
    text = ""
    if isinstance(inner, tree.Unit):
        text = _unit(inner.text)
    elif isinstance(inner, tree.Name):
        text = _name(path, inner, contract)
    elif isinstance(inner, tree.Number | tree.Hole) and contract is not None:
        text = _threshold(path, contract)
    return Hover(text, inner.span) if text else None


def _unit(name: str) -> str:
    row = units.BY_NAME.get(name)
    return f"**{row.name}**: {row.title}" if row is not None else ""


def _name(path: tuple[tree.Node, ...], name: tree.Name, contract: Contract | None) -> str:
    parent = path[-2] if len(path) > 1 else None
    if isinstance(parent, tree.MetricUse) and parent.name is name:
        return "\n\n".join(part for part in (_metric_use(parent), _threshold(path, contract)) if part)
    if isinstance(parent, tree.Clause) and parent.name is name:
        return _threshold(path, contract)
    if isinstance(parent, tree.Assumption) and parent.name is name and name.text in FORMS:
        return f"assumption **{name.text}**: `{FORMS[name.text].form}`"
    node = nearest(path, tree.Contract)
    return _declared(node, name.text) if node is not None else ""


def _declared(node: tree.Contract, name: str) -> str:
    """What a slice, parameter, assumption or kernel of the contract was declared as."""
    for item in items(node, tree.Slice):
        if item.name.text == name:
            return f"slice **{name}** = `{expressions.predicate(item.predicate)}`"
    for item in items(node, tree.Param):
        if item.name.text == name:
            return f"parameter **{name}** = `{expressions.value(item.value)}`"
    for block in items(node, tree.Assume):
        for line in block.assumptions:
            if line.name.text == name:
                return f"assumed: `{' '.join(line.span.text.split())}`"
    for block in items(node, tree.Pair):
        for role in block.roles:
            if role.alias.text == name:
                return f"{role.role.text} **{name}** = `{role.kernel.value}`"
    return ""


def _metric_use(use: tree.MetricUse) -> str:
    rows = [row for known, row in metrics.BY_NAME.items() if known.partition("(")[0] == use.name.text]
    exact = [row for row in rows if row.name == expressions.metric(use)]
    return "\n\n---\n\n".join(metric(row) for row in _distinct(exact or rows))


def _distinct(rows: list[Metric]) -> list[Metric]:
    return [row for index, row in enumerate(rows) if row not in rows[:index]]


def metric(row: Metric) -> str:
    """A metric as Markdown."""
    unit = f"`{row.dimension.value}`" if row.dimension.value else "none"
    lines = [
        f"**{row.name}**: {row.title}",
        row.definition,
        f"unit: {unit}; range {range_text(row)}; good is `{row.direction.value}`",
    ]
    if row.arguments:
        lines.append(f"arguments: `{arguments_text(row)}`")
    return "\n\n".join(lines)


def _threshold(path: tuple[tree.Node, ...], contract: Contract | None) -> str:
    """What follows from the clause around the path, or the verdict on the claim around it."""
    node = nearest(path, tree.Clause)
    clause = clause_at(contract, node) if contract is not None and node is not None else None
    if contract is None or clause is None:
        return ""
    return follows(contract, clause) if clause.severity else _verdict(contract, clause)


def follows(contract: Contract, clause: Clause) -> str:
    """The bounds that one clause gives by itself, as a Markdown list; empty where no lemma speaks about it."""
    if clause.limit.hole:
        return "`?` is filled by `kcverify derive` with the largest limit that the guarantees allow"
    piece = whole_piece(contract, clause.slices[0] if clause.slices else "")
    best = propagate(facts(clause, piece), parameters(contract.assumptions, piece), SHOWN)
    shown = []
    for name in SHOWN:
        found = [fact for node, fact in best.items() if node.quantity == name and fact.lemma is not None]
        shown += [_fact(fact) for fact in found[:1]]
    return "\n".join(["follows from this clause alone:", *shown]) if shown else ""


def _fact(fact: Fact) -> str:
    mode = "mean " if fact.node.mode is Mode.MEAN else ""
    upper = fact.quantity.upper
    number = decimal_up(fact.value, 5) if upper else decimal_down(fact.value, 5)
    unit = fact.quantity.dimension.value
    exception = (
        f" except {decimal_up(fact.node.rho * 100, 3)}%" if fact.node.mode is Mode.POINT and fact.node.rho else ""
    )
    name = fact.lemma.name if fact.lemma is not None else ""
    return f"- {mode}`{fact.node.quantity}` {'<=' if upper else '>='} {number}{f' {unit}' if unit else ''}{exception} ({name})"


def _verdict(contract: Contract, claim: Clause) -> str:
    """The verdict on one claim."""
    if any(clause.limit.hole for clause in contract.clauses):
        return "depends on a `?`: see `kcverify derive`"
    lines = []
    for verdict in prove(contract, _LIMITS):
        if verdict.claim.name == claim.name:
            where = f" on `{verdict.scope}`" if verdict.scope else ""
            lines.append(f"**{verdict.status.value}**{where}{f': {verdict.reason}' if verdict.reason else ''}")
            for route in verdict.best:
                upper = route.atom.upper
                number = decimal_up(route.fact.value, 5) if upper else decimal_down(route.fact.value, 5)
                lines.append(f"best bound {number}, from {', '.join(f'`{name}`' for name in route.fact.sources())}")
    return "\n\n".join(lines)
