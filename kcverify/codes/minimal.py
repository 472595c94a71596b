"""Builds the rows of the code tables and the minimal contracts that they carry."""

from __future__ import annotations

from kcverify.codes.model import Code, Severity


def contract(*lines: str) -> str:
    """A contract named `c` of these lines."""
    return "\n".join(("contract c", *lines)) + "\n"


def numerical(*clauses: str) -> str:
    """A contract with these numerical clauses."""
    return contract("numerical {", *clauses, "}")


def runtime(*clauses: str) -> str:
    """A contract with these runtime clauses."""
    return contract("runtime {", *clauses, "}")


def assume(*assumptions: str) -> str:
    """A contract with these assumptions."""
    return contract("assume {", *assumptions, "}")


def row(
    id: str, slug: str, message: str, why: str, fix: str, bad: str, good: str, severity: Severity = Severity.ERROR
) -> Code:
    """A row whose errors make the input unusable."""
    return Code(id, slug, severity, message, why, fix, bad, good, input_fault=severity is Severity.ERROR)
