"""Findings and verdicts as annotations of GitHub Actions."""

from __future__ import annotations

from kcverify.codes import Severity
from kcverify.output.sarif import relative
from kcverify.output.verdicts import Result, silent, verdict_finding
from kcverify.prove.verdict import Status
from kcverify.source import Span

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
_MEASURED = {"fail": "error", "not_enforced": "notice"}
"""Verdicts of measured clauses; every one that is neither here nor a pass is undecided, a warning."""


def text(results: list[Result]) -> str:
    """One workflow command a line."""
    lines = []
    for result in results:
        for found in result.diagnostics:
            hint = f"\nhint: {found.hint}" if found.hint else ""
            title = f"{found.code.id} {found.code.slug}"
            lines.append(_line(_COMMANDS[found.severity], title, found.message + hint, found.span, result.path))
        for verdict in (v for checked in result.checked for v in checked.verdicts):
            if verdict.status is not Status.PROVED:
                command = "error" if verdict.status is Status.REFUTED else "warning"
                title = f"{verdict.status.value} {verdict.claim.name}"
                lines.append(_line(command, title, verdict_finding(verdict), verdict.claim.span, result.path))
        for one in result.measured:
            if one.verdict != "pass":
                title = f"{one.verdict} {one.name}"
                lines.append(_line(_MEASURED.get(one.verdict, "warning"), title, one.finding, one.span, result.path))
        lines += [_line("notice", "no guarantee", said, span, result.path) for said, span in silent(result)]
    return "\n".join(lines)


def _line(command: str, title: str, message: str, span: Span | None, path: str) -> str:
    properties = {"file": relative(span.source.name if span else path)}
    if span is not None:
        line, column = span.source.position(span.start)
        end_line, end_column = span.source.position(max(span.end - 1, span.start))
        properties |= {"line": str(line), "endLine": str(end_line)}
        if line == end_line:
            properties |= {"col": str(column), "endColumn": str(end_column)}
    properties["title"] = title
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{command} {shown}::{_message(message)}"


def _message(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _message(words).replace(":", "%3A").replace(",", "%2C")
