"""Deprecated spellings: still read, with a warning that names what replaces them, and replaced by `fmt` and `convert`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from kcverify.diagnostics import Report
from kcverify.syntax import tree

_T = TypeVar("_T")


@dataclass(frozen=True)
class Spelling:
    """One deprecated word: what it names (a key of PLACES), the word, what replaces it, and the version that says so."""

    kind: str
    old: str
    new: str
    since: str


ROWS: tuple[Spelling, ...] = ()
"""Words of earlier minor versions; version 1.0 is the first, so nothing is older than it."""

PLACES: dict[str, tuple[type[tree.Node], str]] = {
    "metric": (tree.MetricUse, "name"),
    "argument": (tree.Named, "name"),
    "statistic": (tree.Clause, "statistic"),
    "assumption": (tree.Assumption, "name"),
    "role": (tree.Role, "role"),
    "field": (tree.Comparison, "field"),
    "action": (tree.Rule, "action"),
    "option": (tree.Option, "name"),
    "stage": (tree.Stage, "name"),
}
"""What a word names -> the node that it stands in, and the part of it."""


def renewed(file: tree.File, report: Report, spellings: Iterable[Spelling] = ROWS) -> tree.File:
    """The file in the words of today; each word that was replaced is a warning at its place."""
    rows = {(*PLACES[row.kind], row.old): row for row in spellings}
    if not rows:
        return file
    return replace(file, contracts=tuple(_renewed(node, report, rows) for node in file.contracts))


def _renewed(node: _T, report: Report, rows: dict[tuple[type[tree.Node], str, str], Spelling]) -> _T:
    """A node with the parts below it renewed; the same object where nothing in it is deprecated."""
    if isinstance(node, tuple):
        parts = tuple(_renewed(part, report, rows) for part in node)
        return node if all(a is b for a, b in zip(parts, node, strict=True)) else parts  # type: ignore[return-value]
    if not isinstance(node, tree.Node):
        return node
    changed: dict[str, Any] = {}
    for item in fields(node):
        before = getattr(node, item.name)
        row = rows.get((type(node), item.name, before.text)) if isinstance(before, tree.Name) else None
        if row is not None:
            hint = f"write `{row.new}`"
            report.add("deprecated", before.span, hint=hint, kind=row.kind, old=row.old, since=row.since)
            changed[item.name] = replace(before, text=row.new)
        elif item.name != "span":
            after = _renewed(before, report, rows)
            if after is not before:
                changed[item.name] = after
    return replace(node, **changed) if changed else node
