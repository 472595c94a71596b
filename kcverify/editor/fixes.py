"""Quick fixes from the hints of diagnostics: an edit is offered only where the edited text has fewer faults."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kcverify.diagnostics import Diagnostic
from kcverify.editor.document import Document, analyse
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


def fixes(document: Document, diagnostic: Diagnostic) -> list[Fix]:
    """The edits that the hint of a diagnostic proposes and that correct it."""
    span = diagnostic.span
    if span is None or span.source is not document.source:
        return []
    if diagnostic.hint.startswith(("leave it out", "leave the")):
        return _checked(document, [Fix(f"remove `{span.text.strip()[:40]}`", _with_space(span), "")])
    words = _proposed(diagnostic.hint)
    return _checked(document, [Fix(f"replace by `{word}`", span, word) for word in words[:_MOST]])


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


def _checked(document: Document, proposed: list[Fix]) -> list[Fix]:
    """Those edits after which the text has fewer errors."""
    text, before = document.source.text, len(document.report.errors)
    kept = []
    for fix in proposed:
        edited = text[: fix.span.start] + fix.text + text[fix.span.end :]
        if len(analyse(Source(document.source.name, edited)).report.errors) < before:
            kept.append(fix)
    return kept
