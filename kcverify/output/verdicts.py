"""What the formats for continuous integration share: one file's result, the words of a verdict, the failing level."""

from __future__ import annotations

from dataclasses import dataclass

from kcverify.diagnostics import Diagnostic, input_error
from kcverify.elaborate.contract import Clause
from kcverify.prove.check import Checked
from kcverify.prove.verdict import Status, Verdict
from kcverify.source import Span

LEVELS = ("L1", "L2", "L3")


@dataclass(frozen=True)
class Measured:
    """The verdict of a measured clause on a slice, at the place of the clause."""

    name: str
    verdict: str
    severity: str
    reason: str
    span: Span | None

    @property
    def finding(self) -> str:
        """It in one line."""
        return f"{self.verdict} {self.name}: {self.reason}" if self.reason else f"{self.verdict} {self.name}"


@dataclass(frozen=True)
class Result:
    """One file: its path, every diagnostic (those of its text and those of its contracts), its checked contracts.

    `measured` are verdicts of a run, where one was given.
    """

    path: str
    diagnostics: tuple[Diagnostic, ...]
    checked: tuple[Checked, ...]
    measured: tuple[Measured, ...] = ()


def results(found: list[tuple[str, list[Diagnostic], list[Checked]]]) -> list[Result]:
    """The results of `check`, the findings of a contract beside those of its file."""
    return [
        Result(path, (*diagnostics, *(d for c in checked for d in c.report.diagnostics)), tuple(checked))
        for path, diagnostics, checked in found
    ]


def verdict_finding(verdict: Verdict) -> str:
    """A verdict in one line."""
    where = f" on {verdict.scope}" if verdict.scope else ""
    reason = f": {verdict.reason}" if verdict.reason else ""
    return f"{verdict.status.value} {verdict.claim.name}{where}{reason}"


def silent(result: Result) -> list[tuple[str, Span]]:
    """Contracts of a file that claim no guarantee, each with what is to be said of it and its place."""
    claimless = [c.contract for c in result.checked if not c.contract.guarantees]
    return [(f"contract {c.name} claims no guarantee, so nothing was proved", c.span) for c in claimless]


def clause_of(diagnostic: Diagnostic, result: Result) -> Clause | None:
    """The measured clause that a finding is about: the one whose line holds its place."""
    span = diagnostic.span
    if span is None or diagnostic.code.input_fault:
        return None
    for checked in result.checked:
        for clause in checked.contract.clauses:
            home = clause.span
            if home.source is span.source and home.start <= span.start and span.end <= home.end:
                return clause
    return None


def level_of(diagnostic: Diagnostic, result: Result) -> str:
    """The severity of the clause that a finding is about, empty for other findings."""
    clause = clause_of(diagnostic, result)
    return clause.severity if clause is not None else ""


def check_level(level: str | None) -> str | None:
    """The level itself. Raises InputError: `option_invalid`."""
    if level is not None and level not in LEVELS:
        reason = f"`{level}` is not L1, L2 or L3"
        raise input_error("option_invalid", option="--fail-level", reason=reason, hint="--fail-level L2")
    return level


def exit_code(found: list[Result], code: int, fail_level: str | None) -> int:
    """The exit code where findings about clauses below a severity do not fail the run.

    Wrong input, a refuted guarantee and findings that are about no clause fail at every level; `code` is the exit code
    without a level.
    """
    if fail_level is None or code != 1:
        return code
    for result in found:
        for diagnostic in result.diagnostics:
            raised = level_of(diagnostic, result)
            if diagnostic.severity.value == "error" and (not raised or raised >= fail_level):
                return 1
        if any(v.status is Status.REFUTED for c in result.checked for v in c.verdicts):
            return 1
    unknown = any(v.status is Status.UNKNOWN for r in found for c in r.checked for v in c.verdicts)
    return 3 if unknown else 0
