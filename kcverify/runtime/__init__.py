"""What a deployed monitor needs: torch and the standard library, nothing else of kcverify.

The names load at first use, so that the tests of `sequential`, which need no torch, can be had without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcverify.runtime.clauses import Affine, Band, ClauseSpec, Values, at_least, at_most, calibrated, signed, within
    from kcverify.runtime.errors import MonitorInputError
    from kcverify.runtime.monitor import Monitor
    from kcverify.runtime.order import k3
    from kcverify.runtime.rows import RowPlan, Rows, Workspace, row_statistics

_CLAUSES = ("Affine", "Band", "ClauseSpec", "Values", "at_least", "at_most", "calibrated", "signed", "within")
_PLACES = dict.fromkeys(_CLAUSES, "clauses") | {
    "MonitorInputError": "errors",
    "Monitor": "monitor",
    "k3": "order",
    "RowPlan": "rows",
    "Rows": "rows",
    "Workspace": "rows",
    "row_statistics": "rows",
}

__all__ = [
    "Affine",
    "Band",
    "ClauseSpec",
    "Monitor",
    "MonitorInputError",
    "RowPlan",
    "Rows",
    "Values",
    "Workspace",
    "at_least",
    "at_most",
    "calibrated",
    "k3",
    "row_statistics",
    "signed",
    "within",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it."""
    if name not in _PLACES:
        raise AttributeError(f"module 'kcverify.runtime' has no attribute {name!r}")
    return getattr(import_module(f"kcverify.runtime.{_PLACES[name]}"), name)
