"""Names of torch, of Python and of the check itself that a kernel's module or call replaces: the check must not run on them.

A kernel shares the process with its check. Functions and classes that it puts in the place of others are put back after every
call, and named. What it does to objects in place, or finds by searching the memory of the process, is not seen.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import is_
from types import ModuleType
from typing import Any

import torch

Space = ModuleType | type | dict[str, ModuleType]
Snapshot = list[tuple[Space, dict[str, Any]]]

_ABSENT: Any = object()
_OURS = ("kcverify.conformance", "kcverify.diagnostics")
_FIXED: tuple[Space, ...] = (
    torch, torch.Tensor, torch.nn.functional, torch.linalg, builtins, Fraction, sys.modules,
)  # fmt: skip
_ITSELF = frozenset({(torch, "Storage"), (torch, "manual_seed")})
"""Names that torch replaces by itself, for another default format and when its compiler is loaded."""
_MOST = 6
"""Names that are shown."""


@dataclass(frozen=True)
class Change:
    """One name of a module or class: what it was and what it became; absent on either side."""

    space: Space
    name: str
    old: Any
    new: Any

    @property
    def said(self) -> str:
        """As Python would name it."""
        if isinstance(self.space, dict):
            return f"sys.modules[{self.name!r}]"
        return f"{self.space.__name__}.{self.name}".removeprefix("builtins.")


_known: dict[int, tuple[Space, ...]] = {}
_watching: list[bool] = []
"""One for every kernel from elsewhere that is being called; without one nothing is looked at, which takes time around every call."""


@contextlib.contextmanager
def watching(on: bool) -> Iterator[None]:
    """Meanwhile names are compared around every call, if `on`."""
    if on:
        _watching.append(on)
    try:
        yield
    finally:
        if on:
            _watching.pop()


def _spaces() -> tuple[Space, ...]:
    """Modules and classes that are watched; looked for again when modules were loaded meanwhile."""
    count = len(sys.modules)
    if count not in _known:
        modules = [m for n, m in list(sys.modules.items()) if n.startswith(_OURS) and isinstance(m, ModuleType)]
        classes = {
            id(c): c
            for m in modules
            for c in vars(m).values()
            if isinstance(c, type) and c.__module__.startswith(_OURS)
        }
        _known.clear()
        _known[count] = (*_FIXED, *modules, *classes.values())
    return _known[count]


def snapshot() -> Snapshot:
    """What the watched names stand for now; nothing while no kernel from elsewhere is called."""
    if not _watching:
        return []
    return [(space, dict(_names(space))) for space in _spaces()]


def _names(space: Space) -> Mapping[str, Any]:
    return space if isinstance(space, dict) else vars(space)


def _counts(space: Space, name: str, old: Any, new: Any) -> bool:
    """Whether a difference is one of code: modules may keep values, and load more of themselves."""
    if isinstance(space, dict):
        return old is not _ABSENT and (new is not _ABSENT or name.startswith(("torch", *_OURS)))
    if (space, name) in _ITSELF:
        return False
    if isinstance(space, type):
        return not name.startswith(("_abc", "__abstract", "__annot")) and any(
            callable(x) or hasattr(type(x), "__get__") for x in (old, new) if x is not _ABSENT
        )
    if old is _ABSENT:
        return space.__name__.startswith(_OURS) and hasattr(builtins, name)
    return callable(old)


def changes(before: Snapshot) -> tuple[Change, ...]:
    """Names that stand for something else than they did."""
    found = []
    for space, old in before:
        now = _names(space)
        if len(now) == len(old) and all(map(is_, now.values(), old.values())):
            continue
        for name in dict.fromkeys((*old, *now)):
            a, b = old.get(name, _ABSENT), now.get(name, _ABSENT)
            if a is not b and _counts(space, name, a, b):
                found.append(Change(space, name, a, b))
    return tuple(found)


def _put(space: Space, name: str, value: Any) -> None:
    with contextlib.suppress(AttributeError, TypeError):
        if isinstance(space, dict):
            space[name] = value
        elif value is _ABSENT:
            delattr(space, name)
        else:
            setattr(space, name, value)


def undo(found: tuple[Change, ...]) -> None:
    """What was there before."""
    for one in found:
        _put(one.space, one.name, one.old)


def redo(found: tuple[Change, ...]) -> None:
    """What a module put there, for its own calls."""
    for one in found:
        if not isinstance(one.space, dict) and not one.space.__name__.startswith(_OURS):
            _put(one.space, one.name, one.new)


def said(found: tuple[Change, ...]) -> str:
    """The names in words."""
    names = [one.said for one in found]
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return "replaces " + ", ".join(names[:_MOST]) + more if names else ""
