"""Compares two kernel contracts line by line: a line that cannot be compared counts as weaker."""

from __future__ import annotations

from kcverify.elaborate.kernel import PARTS, KernelContract
from kcverify.elaborate.refine import Change, Kind

_WEAKER_WHEN_ADDED = frozenset({"requires"})
_WEAKER_WHEN_REMOVED = frozenset({"ensures", "tolerance", "violation"})


def compare_kernels(old: KernelContract, new: KernelContract) -> tuple[Change, ...]:
    """Differences of two kernel contracts."""
    before, after = dict(old.lines), dict(new.lines)
    changes: list[Change] = []
    for part in PARTS:
        gone = [line for line in before.get(part, ()) if line not in after.get(part, ())]
        more = [line for line in after.get(part, ()) if line not in before.get(part, ())]
        for line in gone:
            kind = Kind.TIGHTENED if part in _WEAKER_WHEN_ADDED else Kind.REMOVED
            if part in _WEAKER_WHEN_ADDED | _WEAKER_WHEN_REMOVED:
                changes.append(Change(kind, part, "", f"without `{line}`", old.span, new.span))
            else:
                changes.append(Change(Kind.LOOSENED, part, "", f"`{line}` reads otherwise", old.span, new.span))
        for line in more:
            if part in _WEAKER_WHEN_ADDED:
                changes.append(Change(Kind.LOOSENED, part, "", f"needs `{line}` too", old.span, new.span))
            elif part in _WEAKER_WHEN_REMOVED:
                changes.append(Change(Kind.ADDED, part, "", f"with `{line}`", old.span, new.span))
    if old.class_name != new.class_name:
        changes.append(Change(Kind.CHANGED, "class", new.class_name, f"was {old.class_name}", old.span, new.span))
    return tuple(changes)
