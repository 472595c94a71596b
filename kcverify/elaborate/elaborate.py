"""From the syntax tree of a file to its typed contracts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from kcverify.diagnostics import Related, Report
from kcverify.elaborate import assumptions as assume
from kcverify.elaborate import numbers, policy, slices
from kcverify.elaborate.clauses import clause
from kcverify.elaborate.contract import Assumptions, Clause, Contract, SliceDef
from kcverify.elaborate.imports import resolve
from kcverify.elaborate.kernel import KernelContract, kernel
from kcverify.elaborate.modifiers import Context
from kcverify.elaborate.refine import compare
from kcverify.elaborate.scope import Param, RefusedError, Scope, did_you_mean, report_duplicates
from kcverify.source import Span
from kcverify.syntax import tree

_T = TypeVar("_T", bound=tree.Node)


@dataclass(frozen=True)
class Elaborated:
    """The typed contracts of one file, those of pairs and those of single kernels."""

    contracts: tuple[Contract, ...]
    kernels: tuple[KernelContract, ...]


def elaborate(file: tree.File, report: Report, *, parameters: Mapping[str, Fraction]) -> tuple[Contract, ...]:
    """The typed contracts of a file, without what is reported as an error; never raises for a tree from `parse`.

    `parameters` replaces the values of declared `param` lines, in the unit in which each is declared.
    """
    return elaborate_file(file, report, parameters=parameters).contracts


def elaborate_file(file: tree.File, report: Report, *, parameters: Mapping[str, Fraction]) -> Elaborated:
    """As `elaborate`, with the kernel contracts beside those of pairs. Reads the files that `use` names."""
    headers = [node.header for node in file.contracts]
    report_duplicates(report, "the contract", [(header.name.text, header.name.span) for header in headers])
    whole = resolve(file, report)
    declared = {item.name.text for one in whole for item in one.node.items if isinstance(item, tree.Param)}
    for name in parameters:
        if name not in declared:
            report.add("unknown_parameter", None, name=name, hint=did_you_mean(name, declared))
    contracts: list[Contract] = []
    kernels: list[KernelContract] = []
    for one in whole:
        if one.node.header.kernel:
            kernels.append(_kernel(one.node, report))
        else:
            found = len(report.diagnostics)
            contracts.append(_contract(one.node, report, parameters))
            if one.parent is not None:
                _forget_repeated(report, found)
                _check_tighter(contracts[-1], one.parent, report, parameters)
    return Elaborated(tuple(contracts), tuple(kernels))


def _forget_repeated(report: Report, start: int) -> None:
    """Drops what a child repeats: faults of lines that it inherits and that were reported for the parent."""
    known = report.diagnostics[:start]
    report.diagnostics[start:] = [found for found in report.diagnostics[start:] if found not in known]


def _check_tighter(child: Contract, node: tree.Contract, report: Report, parameters: Mapping[str, Fraction]) -> None:
    """Reports every line of a child that promises less than its parent does."""
    parent = _contract(node, Report(), parameters)
    for change in compare(parent, child):
        if not change.weakens:
            continue
        place = change.new if change.new is not None and change.new != change.old else child.span
        related = [Related(change.old, f"stricter in `{parent.name}`")] if change.old is not None else []
        what = f"the {change.what} `{change.name}`"
        report.add("loosened", place, related=related, what=what, parent=parent.name, reason=change.detail or "removed")


def _kernel(node: tree.Contract, report: Report) -> KernelContract:
    """A kernel contract; running it is not part of checking it."""
    _blocks(node, tree.Doc, report, "description")
    _blocks(node, tree.KernelClass, report, "class")
    sections = [item for item in node.items if isinstance(item, tree.KernelSection)]
    _report_repeated(report, [(section.keyword.text, section.keyword.span) for section in sections])
    report.add("not_enforced", node.header.span, what=f"kernel contract {node.header.name.text}")
    return kernel(node, report)


def _report_repeated(report: Report, blocks: list[tuple[str, Span]]) -> None:
    """Reports every block after the first of its name."""
    first: dict[str, Span] = {}
    for name, span in blocks:
        if name in first:
            related = [Related(first[name], "the first one is here")]
            report.add("duplicate_block", span, related=related, name=name)
        first.setdefault(name, span)


def _blocks(node: tree.Contract, kind: type[_T], report: Report, name: str) -> _T | None:
    """The one block of a kind; more than one is reported."""
    found = [item for item in node.items if isinstance(item, kind)]
    _report_repeated(report, [(name, _head(item.span)) for item in found])
    return found[0] if found else None


def _head(span: Span) -> Span:
    """The first line of a span."""
    return Span(span.source, span.start, span.start + len(span.text.split("\n", 1)[0]))


def _contract(node: tree.Contract, report: Report, parameters: Mapping[str, Fraction]) -> Contract:
    header = node.header
    description = _blocks(node, tree.Doc, report, "description")
    params = _params(node, report, parameters)
    pair = _blocks(node, tree.Pair, report, "pair")
    roles = assume.roles(report, pair) if pair else ()
    assumed, scope = _assumed(node, Scope(report, params), report)
    watched = _blocks(node, tree.Observability, report, "observability")
    observability = policy.observability(scope, watched) if watched else None
    found = _slices(node, scope, frozenset(observability.trace) if observability else frozenset())
    declared = frozenset(item.name.text for item in node.items if isinstance(item, tree.Slice))
    aliases = {role.alias: role.role for role in roles}
    measured, claims, refused = _clauses(node, Context(scope, aliases, declared, assumed), report)
    escalate = _blocks(node, tree.Escalate, report, "escalate")
    promote = _blocks(node, tree.Promote, report, "promote")
    split = _blocks(node, tree.Split, report, "split")
    return Contract(
        name=header.name.text,
        version=header.version.value if header.version else "",
        description=description.text.value if description else "",
        span=header.span,
        roles=roles,
        assumptions=assumed,
        slices=found,
        clauses=measured,
        guarantees=claims,
        observability=observability,
        actions=policy.actions(scope, escalate) if escalate else (),
        stages=policy.stages(scope, promote) if promote else (),
        splits=policy.splits(scope, split, measured, refused) if split else (),
        parameters=tuple((name, param.value) for name, param in params.items()),
    )


def _params(node: tree.Contract, report: Report, given: Mapping[str, Fraction]) -> dict[str, Param]:
    """The parameters in order, each of which may use those above it."""
    lines = [item for item in node.items if isinstance(item, tree.Param)]
    again = report_duplicates(report, "the parameter", [(line.name.text, line.name.span) for line in lines])
    params: dict[str, Param] = {}
    for index, line in enumerate(lines):
        if index in again:
            continue
        scope = Scope(report, dict(params))
        try:
            params[line.name.text] = _param(scope, line, given.get(line.name.text))
        except RefusedError:
            continue
    return params


def _param(scope: Scope, line: tree.Param, given: Fraction | None) -> Param:
    number = numbers.linear(scope, line.value.expression)
    value = number.constant if given is None else given
    if line.value.unit is None:
        return Param(value, number.dimension)
    row = numbers.find_unit(scope, line.value.unit, value)
    if number.dimension or not row.exact:
        raise scope.refuse("unit_wrong", line.value.unit.span, what=line.name.text, unit=row.name)
    return Param(value * row.low, row.dimension)


def _assumed(node: tree.Contract, scope: Scope, report: Report) -> tuple[Assumptions, Scope]:
    """The assumptions, and the scope with their names in it."""
    block = _blocks(node, tree.Assume, report, "assume")
    if block is None:
        return Assumptions(), scope
    found = assume.assumptions(scope, block.assumptions)
    fixed, free = assume.fixed_and_free(found, block.assumptions)
    return found, Scope(report, scope.params, fixed, free)


def _slices(node: tree.Contract, scope: Scope, traced: frozenset[str]) -> tuple[SliceDef, ...]:
    lines = [item for item in node.items if isinstance(item, tree.Slice)]
    again = report_duplicates(scope.report, "the slice", [(line.name.text, line.name.span) for line in lines])
    found = [slices.slice_of(scope, line, traced) for line in lines]
    return tuple(item for index, item in enumerate(found) if item is not None and index not in again)


def _clauses(
    node: tree.Contract, context: Context, report: Report
) -> tuple[tuple[Clause, ...], tuple[Clause, ...], frozenset[str]]:
    """Measured clauses, claims, and the names of lines that were left out."""
    blocks = [item for item in node.items if isinstance(item, tree.Clauses)]
    _report_repeated(report, [(block.keyword.text, block.keyword.span) for block in blocks])
    lines = [(block.keyword.text, line) for block in blocks for line in block.clauses]
    again = report_duplicates(report, "the clause", [(line.name.text, line.name.span) for _, line in lines])
    measured: list[Clause] = []
    claims: list[Clause] = []
    refused: set[str] = set()
    for index, (block, line) in enumerate(lines):
        typed = clause(context, line, block)
        if typed is None:
            refused.add(line.name.text)
        elif index not in again:
            (claims if block == "guarantee" else measured).append(typed)
    return tuple(measured), tuple(claims), frozenset(refused)
