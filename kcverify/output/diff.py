"""The answer of `diff`: what a newer contract tightened, loosened, added and removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kcverify import __version__
from kcverify.diagnostics import InputError, Report, input_error
from kcverify.elaborate import Elaborated, elaborate_file
from kcverify.elaborate.contract import Contract, Predicate
from kcverify.elaborate.form import digest
from kcverify.elaborate.kernel import KernelContract
from kcverify.elaborate.refine import Change, Kind, compare
from kcverify.elaborate.refine_kernel import compare_kernels
from kcverify.forms.files import read_source
from kcverify.forms.read import read
from kcverify.output.style import paint
from kcverify.prove.slices import includes

_Any = Contract | KernelContract
_SIGNS = {Kind.TIGHTENED: "+", Kind.ADDED: "+", Kind.LOOSENED: "-", Kind.REMOVED: "-", Kind.CHANGED: "~"}


@dataclass(frozen=True)
class Comparison:
    """Changes of one contract; `old` or `new` is empty where it is in one file only."""

    old: str
    new: str
    digests: tuple[str, str]
    changes: tuple[Change, ...]


def load(path: str) -> Elaborated:
    """Every contract of a file. Raises InputError where it is not usable."""
    report = Report()
    found = elaborate_file(read(read_source(path), report), report, parameters={})
    if report.errors:
        raise InputError(*report.errors)
    return found


def compare_files(old: str, new: str, name: str | None = None) -> tuple[Comparison, ...]:
    """Contracts of the same name; where both files hold one contract, those two. Raises InputError."""
    before, after = _all(load(old), name), _all(load(new), name)
    if name is not None and not before and not after:
        reason = f"neither file holds a contract `{name}`"
        raise input_error("option_invalid", option="--contract", reason=reason, hint="use the name of a contract")
    if len(before) == len(after) == 1:
        return (_compare(before[0], after[0]),)
    names = {item.name: item for item in after}
    out = [_compare(item, names.get(item.name)) for item in before]
    known = {item.name for item in before}
    return (*out, *(_compare(None, item) for item in after if item.name not in known))


def _all(found: Elaborated, name: str | None) -> list[_Any]:
    """Contracts of both kinds, those called `name` if one is given."""
    items: list[_Any] = [*found.contracts, *found.kernels]
    return [item for item in items if name in (None, item.name)]


def _compare(old: _Any | None, new: _Any | None) -> Comparison:
    digests = (digest(old) if old is not None else "", digest(new) if new is not None else "")
    names = (old.name if old is not None else "", new.name if new is not None else "")
    return Comparison(*names, digests, _changes(old, new))


def _changes(old: _Any | None, new: _Any | None) -> tuple[Change, ...]:
    if isinstance(old, Contract) and isinstance(new, Contract):
        return compare(old, new, _covers)
    if isinstance(old, KernelContract) and isinstance(new, KernelContract):
        return compare_kernels(old, new)
    changes = [Change(Kind.REMOVED, "contract", old.name, "", old.span)] if old is not None else []
    return (*changes, *([Change(Kind.ADDED, "contract", new.name, "", None, new.span)] if new is not None else []))


def _covers(outer: Predicate, inner: Predicate) -> bool:
    return includes(outer, inner) is True


def exit_code(found: tuple[Comparison, ...]) -> int:
    """1 where the newer file is weaker anywhere, else 0."""
    return int(any(change.weakens for one in found for change in one.changes))


def text(found: tuple[Comparison, ...], color: bool) -> str:
    """The comparison for a terminal, the weaker lines first."""
    parts = []
    for one in found:
        title = one.new or one.old if one.new in ("", one.old) or not one.old else f"{one.old} -> {one.new}"
        lines = [paint(title, "bold", color)]
        if not one.changes:
            same = one.digests[0] == one.digests[1]
            lines.append("  the same contract" if same else "  the same in everything that binds")
        lines += [f"  {_line(c)}" for c in sorted(one.changes, key=lambda c: not c.weakens)]
        parts.append("\n".join(lines))
    count = sum(change.weakens for one in found for change in one.changes)
    ending = (
        f"the new one is weaker in {count} place{'s' if count != 1 else ''}" if count else "the new one is not weaker"
    )
    return "\n\n".join([*parts, ending])


def _line(change: Change) -> str:
    span = change.new or change.old
    name = f" `{change.name}`" if change.name else ""
    detail = f": {change.detail}" if change.detail else ""
    place = f"  ({span.place})" if span is not None else ""
    return f"{_SIGNS[change.kind]} {change.kind} {change.what}{name}{detail}{place}"


def data(found: tuple[Comparison, ...]) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "kcverify": __version__,
        "exit_code": exit_code(found),
        "contracts": [
            {
                "old": one.old or None,
                "new": one.new or None,
                "old_digest": one.digests[0] or None,
                "new_digest": one.digests[1] or None,
                "changes": [_change_data(change) for change in one.changes],
            }
            for one in found
        ],
    }


def _change_data(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        "weaker": change.weakens,
        "what": change.what,
        "name": change.name,
        "detail": change.detail,
        "old": change.old.place if change.old is not None else None,
        "new": change.new.place if change.new is not None else None,
    }
