"""The answer of `compile --format json`: the monitor's source or where it was written, and the verdicts in its header."""

from __future__ import annotations

from typing import Any

from kcverify import __version__
from kcverify.prove.check import Checked


def data(checked: Checked, text: str, path: str | None) -> dict[str, Any]:
    """The whole answer as plain data; `monitor` is the source where no file was written."""
    contract = checked.contract
    return {
        "kcverify": __version__,
        "exit_code": 0,
        "contract": {"name": contract.name, "version": contract.version, "digest": checked.digest},
        "output": path,
        "lines": len(text.splitlines()),
        "guarantees": {v.claim.name + (f" on {v.scope}" if v.scope else ""): v.status.value for v in checked.verdicts},
        "monitor": text if path is None else None,
    }
