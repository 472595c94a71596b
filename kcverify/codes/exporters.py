"""Codes about what is told to other systems: measured clauses in their formats, telemetry that nobody takes (KC85x)."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity

ROWS: tuple[Code, ...] = (
    Code(
        "KC850",
        "telemetry_refused",
        Severity.ERROR,
        "{endpoint} did not take the {what}",
        "Telemetry that was not taken is lost; a run that reports success without it would hide that.",
        "check that a collector listens there for OTLP over HTTP, or leave `--endpoint` out and write a file",
        input_fault=True,
    ),
    Code(
        "KC851",
        "clause_failed",
        Severity.ERROR,
        "the measured clause `{name}` fails: {reason}",
        "The evidence against the clause's limit reached its threshold, or a value was not finite.",
        "look at the worst cases in the report of `kcverify measure`",
    ),
    Code(
        "KC852",
        "clause_undecided",
        Severity.WARNING,
        "the measured clause `{name}` is {verdict}: {reason}",
        "Neither side has enough evidence, or inputs of the clause were not given. That is no pass.",
        "measure more requests, or give what the reason names",
    ),
)
