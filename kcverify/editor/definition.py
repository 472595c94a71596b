"""Where a name was declared."""

from __future__ import annotations

from pathlib import Path

from kcverify.diagnostics import InputError, Report
from kcverify.editor.document import Document, items, nearest, path_at
from kcverify.forms.files import read_source
from kcverify.forms.read import read
from kcverify.source import Source, Span
from kcverify.syntax import tree


def definition(document: Document, offset: int) -> Span | None:
    """The place of the declaration of the name at an offset, or None."""
    path = path_at(document, offset)
    if not path:
        return None
    use = nearest(path, tree.Use)
    if use is not None:
        file = _used(document.source, use)
        return Span(file.source, 0, 0) if file is not None else None
    inner = path[-1]
    node = nearest(path, tree.Contract)
    if not isinstance(inner, tree.Name) or node is None:
        return None
    header = nearest(path, tree.Header)
    if header is not None:
        return _parent(document, inner.text) if inner is header.parent else None
    return _declaration(node, inner.text, claims=nearest(path, tree.Split) is not None)


def _used(source: Source, use: tree.Use) -> tree.File | None:
    """The tree of a used file, as far as it can be read."""
    try:
        return read(read_source(str(Path(source.name).parent / use.path.value)), Report())
    except InputError:
        return None


def _parent(document: Document, name: str) -> Span | None:
    """The header of a contract in this file or in one that it uses."""
    files = [document.tree, *(_used(document.source, use) for use in document.tree.uses)]
    for file in files:
        for node in file.contracts if file is not None else ():
            if node.header.name.text == name:
                return node.header.name.span
    return None


def _declaration(node: tree.Contract, name: str, *, claims: bool) -> Span | None:
    """The line that declares a name; for `split`, the clause of that name."""
    found: list[tree.Name] = []
    if claims:
        found = [clause.name for block in items(node, tree.Clauses) for clause in block.clauses]
    else:
        found += [item.name for item in items(node, tree.Slice)]
        found += [item.name for item in items(node, tree.Param)]
        found += [line.name for block in items(node, tree.Assume) for line in block.assumptions]
        found += [role.alias for block in items(node, tree.Pair) for role in block.roles]
    return next((word.span for word in found if word.text == name), None)
