"""Findings and verdicts as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from kcverify import __version__
from kcverify.codes import BY_SLUG, Code, Severity
from kcverify.diagnostics import Diagnostic
from kcverify.output.verdicts import Result, level_of, silent, verdict_finding
from kcverify.prove.verdict import Status
from kcverify.source import Span

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_RULE = {Status.REFUTED: "refuted", Status.UNKNOWN: "not_implied"}
_MEASURED = {
    "fail": ("clause_failed", ""),
    "inconclusive": ("clause_undecided", "warning"),
    "unobservable": ("clause_undecided", "warning"),
    "not_enforced": ("clause_undecided", "note"),
}
"""Rule and level of a measured verdict; empty: that of the clause's severity."""
_OF_SEVERITY = {"L1": "note", "L2": "warning", "L3": "error"}


def data(results: list[Result]) -> dict[str, Any]:
    """A SARIF log of one run; each finding of a clause has the level of the clause's severity."""
    entries: list[dict[str, Any]] = []
    rules: dict[str, Code] = {}
    for result in results:
        for diagnostic in result.diagnostics:
            rules[diagnostic.code.slug] = diagnostic.code
            entries.append(_finding(diagnostic, result))
        for one in result.measured:
            if one.verdict in _MEASURED:
                slug, level = _MEASURED[one.verdict]
                rules[slug] = BY_SLUG[slug]
                level = level or _OF_SEVERITY.get(one.severity, "error")
                entries.append(_entry(slug, level, one.finding, one.span, result.path))
        for checked in result.checked:
            for verdict in checked.verdicts:
                if verdict.status is not Status.PROVED:
                    rules[_RULE[verdict.status]] = BY_SLUG[_RULE[verdict.status]]
                    level = "error" if verdict.status is Status.REFUTED else "warning"
                    message = verdict_finding(verdict)
                    entries.append(_entry(_RULE[verdict.status], level, message, verdict.claim.span, result.path))
    order = {slug: index for index, slug in enumerate(sorted(rules))}
    for entry in entries:
        entry["ruleIndex"] = order[entry.pop("slug")]
    driver = {
        "name": "kcverify",
        "version": __version__,
        "rules": [_rule(rules[slug]) for slug in sorted(rules)],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": entries}
    notes = [_notification(said, span, result.path) for result in results for said, span in silent(result)]
    if notes:
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": notes}]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _notification(said: str, span: Span, path: str) -> dict[str, Any]:
    """What the run did not do: a contract without a guarantee is no finding, and no proof either."""
    return {"level": "note", "message": {"text": said}, "locations": [_location(span, path)]}


def _rule(code: Code) -> dict[str, Any]:
    return {
        "id": code.id,
        "name": code.slug,
        "shortDescription": {"text": code.message},
        "fullDescription": {"text": code.why},
        "help": {"text": code.fix or code.why},
        "defaultConfiguration": {"level": _LEVELS[code.severity]},
    }


def _finding(diagnostic: Diagnostic, result: Result) -> dict[str, Any]:
    raised = level_of(diagnostic, result)
    level = _OF_SEVERITY[raised] if raised else _LEVELS[diagnostic.severity]
    hint = f" ({diagnostic.hint})" if diagnostic.hint else ""
    entry = _entry(diagnostic.code.slug, level, diagnostic.message + hint, diagnostic.span, result.path)
    if diagnostic.related:
        entry["relatedLocations"] = [
            {"id": index, **_location(related.span, result.path), "message": {"text": related.label}}
            for index, related in enumerate(diagnostic.related)
        ]
    return entry


def _entry(slug: str, level: str, message: str, span: Span | None, path: str) -> dict[str, Any]:
    return {
        "slug": slug,
        "ruleId": BY_SLUG[slug].id,
        "level": level,
        "message": {"text": message},
        "locations": [_location(span, path)],
    }


def relative(path: str) -> str:
    """A path as a relative URI reference: an absolute one from the working folder, outside of it by its last part.

    So no machine's folders leak, and a file of the checked repository is found wherever it was named from.
    """
    pure = PurePath(path)
    if pure.is_absolute():
        here = Path.cwd()
        pure = pure.relative_to(here) if pure.is_relative_to(here) else PurePath(pure.name)
    return quote(pure.as_posix())


def _location(span: Span | None, path: str) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": relative(span.source.name if span else path)}}
    if span is not None:
        line, column = span.source.position(span.start)
        end_line, end_column = span.source.position(max(span.end, span.start))
        region = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
        physical["region"] = region
    return {"physicalLocation": physical}
