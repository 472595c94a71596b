"""Quick fixes from the hints of diagnostics: an edit is offered only where the edited text has fewer faults."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kcverify.codes import Severity
from kcverify.diagnostics import Diagnostic, Report
from kcverify.editor.document import Document, analyse
from kcverify.forms.deprecated import ROWS as DEPRECATED
from kcverify.forms.deprecated import Spelling
from kcverify.source import Source, Span

_HINT = re.compile(r"did you mean `([^`]+)`|write ((?:`[^`]+`(?:[^`]{1,40}?\bor\b )?)+)|(?:are|one of): (.+)$")
_QUOTED = re.compile(r"`([^`]+)`")
_MOST = 4


@dataclass(frozen=True)
class Fix:
    """One edit: its title, the characters to replace, and what takes their place."""

    title: str
    span: Span
    text: str


def fixes(document: Document, diagnostic: Diagnostic, spellings: Iterable[Spelling] = DEPRECATED) -> list[Fix]:
    """The edits that the hint of a diagnostic proposes and that correct it."""
    span = diagnostic.span
    if span is None or span.source is not document.source:
        return []
    if diagnostic.hint.startswith(("leave it out", "leave the")):
        proposed = [Fix(f"remove `{span.text.strip()[:40]}`", _with_space(span), "")]
        return _checked(document, proposed, diagnostic, spellings)
    words = _proposed(diagnostic.hint)
    proposed = [Fix(f"replace by `{word}`", span, word) for word in words[:_MOST]]
    return _checked(document, proposed, diagnostic, spellings)


def _proposed(hint: str) -> list[str]:
    match = _HINT.search(hint)
    if match is None:
        return []
    if match[1]:
        return [match[1]]
    return _QUOTED.findall(match[2]) if match[2] else []


def _with_space(span: Span) -> Span:
    """The span with the spaces before it."""
    start = span.start
    while start and span.source.text[start - 1] in " \t":
        start -= 1
    return Span(span.source, start, span.end)


def _checked(document: Document, proposed: list[Fix], about: Diagnostic, spellings: Iterable[Spelling]) -> list[Fix]:
    """Those edits after which the text has fewer errors; for a warning, fewer of its kind and no more errors."""
    text, before = document.source.text, _faults(document.report, about)
    kept = []
    for fix in proposed:
        edited = Source(document.source.name, text[: fix.span.start] + fix.text + text[fix.span.end :])
        after = _faults(analyse(edited, spellings).report, about)
        if after < before and after[0] <= before[0]:
            kept.append(fix)
    return kept


def _faults(report: Report, about: Diagnostic) -> tuple[int, int]:
    """How many errors there are, and how many findings of a warning's kind."""
    same = 0 if about.severity is Severity.ERROR else sum(d.code is about.code for d in report.diagnostics)
    return len(report.errors), same
