"""Writes a contract that extends another out in full, on the level of the syntax tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from kcverify.syntax import tree

_T = TypeVar("_T")


def merged(parent: tree.Contract, child: tree.Contract) -> tree.Contract:
    """The child with everything of its parent that it does not state itself.

    What the child states again takes the place of the parent's line; what the child states twice stays twice, so that
    it is reported as it would be without a parent.
    """
    items = list(parent.items)
    seen: set[object] = set()
    for item in child.items:
        key = _key(item)
        place = next((index for index, old in enumerate(items) if _key(old) == key), None)
        if place is None or key in seen:
            items.append(item)
        else:
            items[place] = _joined(items[place], item)
        seen.add(key)
    return tree.Contract(child.span, child.header, tuple(items))


def _key(item: tree.Block) -> object:
    """What of a parent an item of a child stands for."""
    if isinstance(item, tree.Slice | tree.Param):
        return type(item), item.name.text
    return (type(item), item.keyword.text) if isinstance(item, tree.Clauses) else type(item)


def _over(old: Iterable[_T], new: Iterable[_T], name: Callable[[_T], str]) -> tuple[_T, ...]:
    """The new ones in the places of the old ones of the same name, the others behind."""
    items = list(old)
    places = {name(item): index for index, item in enumerate(items)}
    for item in new:
        place = places.pop(name(item), None)
        if place is None:
            items.append(item)
        else:
            items[place] = item
    return tuple(items)


def _joined(old: Any, new: Any) -> Any:
    """One block of both; a block without a row here is replaced as a whole."""
    row = _ROWS.get(type(new))
    if row is None:
        return new
    part, name = row
    return replace(new, **{part: _over(getattr(old, part), getattr(new, part), name)})


_ROWS: dict[type, tuple[str, Callable[[Any], str]]] = {
    tree.Pair: ("roles", lambda role: role.role.text),
    tree.Assume: ("assumptions", lambda node: node.name.text),
    tree.Clauses: ("clauses", lambda node: node.name.text),
    tree.Observability: ("lines", lambda line: line.keyword),
    tree.Escalate: ("rules", lambda rule: rule.severity.text),
    tree.Promote: ("stages", lambda stage: stage.name.text),
}
"""The part of a block that is joined line by line, and the name of a line."""
