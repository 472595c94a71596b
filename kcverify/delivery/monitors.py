"""Evidence from states of monitors: files that `Monitor.save` wrote, merged exactly, and the records of a live monitor.

The only part of this package that needs torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kcverify import __version__
from kcverify.delivery.evidence import Evidence, of_report
from kcverify.delivery.records import KINDS, Record
from kcverify.delivery.state import key
from kcverify.diagnostics import input_error
from kcverify.elaborate.contract import Contract
from kcverify.emit.monitor import emit_monitor
from kcverify.measure.session import load_monitor
from kcverify.runtime import checkpoint
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.report import build_report, seen_cells
from kcverify.runtime.sources import SECOND


def read_states(paths: Sequence[str], contract: Contract, digest: str) -> Evidence:
    """The merged evidence of state files of one contract and temperature, in any order.

    Raises InputError: `evidence_invalid` for a file that is damaged, or of another contract or temperature.
    """
    source = emit_monitor(contract, verdicts={}, digest=digest, version=__version__)
    files, whole = [], None
    for path in paths:
        files.append((path, hashlib.sha256(Path(path).read_bytes()).hexdigest()))
        one = _loaded(path, source)
        if whole is None:
            whole = one
            continue
        try:
            whole.merge(one)
        except MonitorInputError as error:
            raise input_error("evidence_invalid", path=path, reason=str(error)) from None
    assert whole is not None
    return of_report(tuple(files), build_report(whole), contract, digest)


def _loaded(path: str, source: str) -> Any:
    try:
        state, _ = checkpoint.read(path)
        monitor = load_monitor(source, state["_extra_state"]["temperature"])
        monitor.load_state_dict(state)
    except MonitorInputError as error:
        raise input_error("evidence_invalid", path=path, reason=str(error)) from None
    except (KeyError, TypeError, RuntimeError, ValueError, AttributeError) as error:
        reason = f"it is no state of this contract's monitor ({type(error).__name__})"
        raise input_error("evidence_invalid", path=path, reason=reason) from None
    return monitor


def records(monitor: Any) -> dict[str, Record]:
    """What a live monitor has counted, a record a cell for `Store.add`; open requests count as they stand.

    Records of two moments subtract (`Record.minus`), which gives what a worker has to add. Cells whose verdict is a
    reading of all requests are left out: a store cannot hold them.
    """
    out = {}
    for (index, name), seen in seen_cells(monitor, monitor.settled_evidence()).items():
        clause = monitor.CLAUSES[index]
        if clause.evidence in KINDS and clause.source not in SECOND:
            counts = (seen.rows, seen.invalid, seen.unknown, seen.missing, seen.exceeding)
            out[key(clause.name, name)] = Record(seen.limit, seen.record, *counts)
    return out
