"""Writes a diagnostic as text: place, severity, code, message, the line with carets, other places, hint."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from kcverify.codes import Severity
from kcverify.diagnostics import Diagnostic
from kcverify.source import Span

WIDTH = 100
"""Columns of source text that are shown; a longer line is cut around the carets."""

_LONGEST = 4000
"""Characters of a message that are shown; a name of a file can be as long as the file."""
_TAB = 4
_BEFORE = 40
_BOLD, _RESET, _DIM = "\x1b[1m", "\x1b[0m", "\x1b[2m"
_COLOURS = {Severity.ERROR: "\x1b[1;31m", Severity.WARNING: "\x1b[1;33m", Severity.NOTE: "\x1b[1;36m"}


def render(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """The diagnostic as lines of text without a final line end; with `color`, ANSI colours."""
    code, span = diagnostic.code, diagnostic.span
    paint = _COLOURS[code.severity] if color else ""
    head = f"{_place(span)}: " if span else ""
    label = _painted(f"{code.severity}[{code.id} {code.slug}]", paint)
    lines = [f"{head}{label}: {_painted(_visible(diagnostic.message), _BOLD if color else '')}"]
    if span is not None:
        lines += _excerpt(span, "^", paint, color)
    for related in diagnostic.related:
        lines.append(f"  {_place(related.span)}: {_visible(related.label)}")
        lines += _excerpt(related.span, "-", _DIM if color else "", color)
    if diagnostic.hint:
        lines.append(f"  {_painted('hint:', _BOLD if color else '')} {_visible(diagnostic.hint)}")
    return "\n".join(lines)


def render_all(diagnostics: Iterable[Diagnostic], *, color: bool = False) -> str:
    """Several diagnostics with an empty line between them."""
    return "\n\n".join(render(diagnostic, color=color) for diagnostic in diagnostics)


def _place(span: Span) -> str:
    """`file:line:column` with whatever could move the cursor made visible."""
    return _visible(span.place)


def _painted(text: str, paint: str) -> str:
    return f"{paint}{text}{_RESET}" if paint else text


def _visible(text: str) -> str:
    """`text` with control and direction characters, which could rewrite the terminal, replaced; a long one cut."""
    kept = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return "".join(
        character if _width(character) or unicodedata.combining(character) else "\ufffd" for character in kept
    )


def _width(character: str) -> int:
    """Columns of one character; 0 for combining marks and for what is not shown."""
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") or unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _cell(character: str) -> tuple[str, int]:
    """What is shown for one character of a source line, and its columns."""
    if character == "\t":
        return " " * _TAB, _TAB
    if unicodedata.combining(character):
        return character, 0
    width = _width(character)
    return (character, width) if width else ("\ufffd", 1)


def _window(cells: list[tuple[str, int]], start: int) -> tuple[int, int]:
    """First and last (exclusive) cell that are shown, so that the cell `start` is among them."""
    if sum(width for _, width in cells) <= WIDTH:
        return 0, len(cells)
    first = max(0, start - _BEFORE)
    last, used = first, 0
    while last < len(cells) and used + cells[last][1] <= WIDTH:
        used += cells[last][1]
        last += 1
    return first, last


def _excerpt(span: Span, mark: str, paint: str, color: bool) -> list[str]:
    """The first line of the span with marks under it, cut to the window."""
    line, column = span.source.position(span.start)
    text = span.source.line(line)
    if len(text) > 50 * WIDTH:
        shift = max(0, column - 1 - 10 * WIDTH)
        text, column = text[shift : shift + 20 * WIDTH], column - shift
    cells = [_cell(character) for character in text]
    start = min(column - 1, len(cells))
    end = min(start + max(1, span.end - span.start), max(len(cells), start + 1))
    first, last = _window(cells, start)
    left, right = "…" if first else "", "…" if last < len(cells) else ""
    shown = left + "".join(cell for cell, _ in cells[first:last]) + right
    indent = len(left) + sum(width for _, width in cells[first:start])
    marked = sum(width for _, width in cells[start : min(end, last)]) or 1
    number = str(line)
    bar = _painted("|", _DIM if color else "")
    return [
        f"  {number} {bar} {shown}".rstrip(),
        f"  {' ' * len(number)} {bar} {' ' * indent}{_painted(mark * marked, paint)}",
    ]
