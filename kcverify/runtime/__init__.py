"""What a deployed monitor needs: torch and the standard library, nothing else of kcverify."""

from kcverify.runtime.clauses import Affine, Band, ClauseSpec, Values, at_least, at_most, calibrated, signed, within
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.monitor import Monitor
from kcverify.runtime.order import k3
from kcverify.runtime.rows import RowPlan, Rows, Workspace, row_statistics

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
