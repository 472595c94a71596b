"""The table of diagnostic codes: one row a code, read by every phase that reports something."""

from __future__ import annotations

from kcverify.codes import (
    allocation,
    conformance,
    contract,
    delivery,
    exporters,
    findings,
    inputs,
    provenance,
    streams,
    syntax,
)
from kcverify.codes.model import Code, Severity

ROWS: tuple[Code, ...] = (
    *syntax.ROWS, *contract.ROWS, *findings.ROWS, *inputs.ROWS, *streams.ROWS, *conformance.ROWS, *allocation.ROWS, *delivery.ROWS,
    *provenance.ROWS,
    *exporters.ROWS,
)  # fmt: skip
BY_SLUG: dict[str, Code] = {row.slug: row for row in ROWS}
BY_ID: dict[str, Code] = {row.id: row for row in ROWS}

__all__ = ["BY_ID", "BY_SLUG", "ROWS", "Code", "Severity"]
