"""Annotations of GitHub, JUnit and SARIF: the formats of `check`, with the verdicts of a run at the place of each clause."""

from __future__ import annotations

import json

from kcverify.exporters.request import Request
from kcverify.exporters.text import whole
from kcverify.output import github, junit, sarif
from kcverify.output.style import still
from kcverify.output.verdicts import Measured, Result, results


def result_of(request: Request) -> list[Result]:
    """The findings and proofs of the contract's file together with what was measured."""
    checked = [] if request.checked is None else [request.checked]
    (found,) = results([(request.path, list(request.findings), checked)])
    spans = {c.name: c.span for c in request.subject.clauses}
    clauses = () if request.verdicts is None else request.verdicts.clauses
    measured = tuple(Measured(c.where, c.verdict, c.severity, c.reason, spans.get(c.name)) for c in clauses)
    return [Result(found.path, found.diagnostics, found.checked, measured)]


def github_text(request: Request) -> str:
    """One workflow command a line; what is no printable character, and could be read as the end of one, is replaced."""
    text = github.text(result_of(request))
    shown = "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in text)
    return shown + "\n" if shown else ""


def junit_text(request: Request) -> str:
    """One suite."""
    return whole(junit.text(result_of(request)))


def sarif_text(request: Request) -> str:
    """One log."""
    return still(json.dumps(sarif.data(result_of(request)), indent=2), "\\u0023") + "\n"
