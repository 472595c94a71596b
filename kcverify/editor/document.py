"""One contract file as an editor has it: its tree, its typed contracts, its faults, and what stands at an offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from kcverify.diagnostics import Report
from kcverify.elaborate import Elaborated, elaborate_file
from kcverify.elaborate.contract import Clause, Contract
from kcverify.forms.deprecated import ROWS as DEPRECATED
from kcverify.forms.deprecated import Spelling
from kcverify.forms.read import read
from kcverify.source import Source, Span
from kcverify.syntax import tree


@dataclass(frozen=True)
class Document:
    """A file that was read; `report` has what is wrong with its text."""

    source: Source
    tree: tree.File
    found: Elaborated
    report: Report


def analyse(source: Source, spellings: Iterable[Spelling] = DEPRECATED) -> Document:
    """Read and elaborate a text; never raises."""
    report = Report()
    node = read(source, report, spellings)
    return Document(source, node, elaborate_file(node, report, parameters={}), report)


def parts(node: Any) -> Iterator[tree.Node]:
    """Nodes directly below a node."""
    for item in fields(node):
        if item.name != "span":
            yield from _nodes(getattr(node, item.name))


def _nodes(value: Any) -> Iterator[tree.Node]:
    if isinstance(value, tree.Node):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _nodes(part)


def path_at(document: Document, offset: int) -> tuple[tree.Node, ...]:
    """Nodes around an offset, the outermost first; a node also holds the offset behind its last character."""
    below: Iterator[tree.Node] = iter((*document.tree.uses, *document.tree.contracts))
    path: list[tree.Node] = []
    while True:
        around = [node for node in below if node.span.start <= offset <= node.span.end and _here(node, document)]
        if not around:
            return tuple(path)
        inner = min(around, key=lambda node: (node.span.end - node.span.start, -node.span.start))
        path.append(inner)
        below = parts(inner)


def _here(node: tree.Node, document: Document) -> bool:
    return node.span.source is document.source


def nearest(path: tuple[tree.Node, ...], kind: type) -> Any:
    """The innermost node of a kind, or None."""
    return next((node for node in reversed(path) if isinstance(node, kind)), None)


def contract_at(document: Document, path: tuple[tree.Node, ...]) -> Contract | None:
    """The typed contract around a path."""
    node = nearest(path, tree.Contract)
    if node is None:
        return None
    return next((c for c in document.found.contracts if c.span == node.header.span), None)


def clause_at(contract: Contract, node: tree.Clause) -> Clause | None:
    """The typed clause of a node; None where it has a fault."""
    return next((c for c in (*contract.clauses, *contract.guarantees) if c.span == node.span), None)


def items(node: tree.Contract, kind: type) -> list[Any]:
    """Blocks and lines of one kind of a contract."""
    return [item for item in node.items if isinstance(item, kind)]


def word_span(node: tree.Node) -> Span:
    """The first word of a node."""
    text = node.span.text
    size = next((index for index, sign in enumerate(text) if not (sign.isalnum() or sign == "_")), len(text))
    return Span(node.span.source, node.span.start, node.span.start + size)
