"""Parses the text of a contract file; a broken statement is reported, blanked out, and the rest parsed again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from lark import Lark
from lark.parsers.lalr_analysis import Shift

from kcverify.diagnostics import Report
from kcverify.resources import grammar_text
from kcverify.source import Source, Span
from kcverify.syntax import lalr, repair, tree
from kcverify.syntax.build import RULES
from kcverify.syntax.scan import lone_return, long_name, scan


@dataclass(frozen=True)
class SyntaxLimits:
    """What one file may cost: characters (of a file, of a name), bracket depth, errors shown, text parsed after them."""

    characters: int = 400_000
    name: int = 100
    depth: int = 64
    errors: int = 20
    work: int = 2_000_000


LIMITS = SyntaxLimits()

FRAGMENTS = (
    "metric_text", "test_text", "value_text", "range_text", "predicate_text", "amount_text", "kernel_text",
)  # fmt: skip
"""Parts of a contract that can be parsed alone."""


@cache
def _tables() -> lalr.Tables:
    """The tables of the grammar, with a builder at each reduction."""
    lark = Lark(
        grammar_text(), parser="lalr", lexer="contextual", start=["start", *FRAGMENTS], maybe_placeholders=False
    )
    table = lark.parser.parser._parse_table
    reductions: dict[Any, lalr.Reduction] = {}
    actions: dict[int, dict[str, int | lalr.Reduction]] = {}
    goto: dict[int, dict[str, int]] = {}
    for state, row in table.states.items():
        actions[state], goto[state] = {}, {}
        for name, (kind, target) in row.items():
            if kind is Shift:
                (actions if _is_terminal(name) else goto)[state][name] = target
            else:
                if target not in reductions:
                    reductions[target] = lalr.reduction(target, RULES)
                actions[state][name] = reductions[target]
    return lalr.Tables(actions, goto, table.start_states, table.end_states, *_fixed(lark.terminals))


def _is_terminal(name: str) -> bool:
    return name.isupper()


_ALTERNATIVES = re.compile(r"\(\?:([^()\[\]\\]*)\)")


def _fixed(rows: Iterable[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Terminal of each keyword, and of each other fixed text."""
    names: dict[str, str] = {"-": "MINUS"}
    for row in rows:
        alternatives = _ALTERNATIVES.fullmatch(row.pattern.value)
        if row.pattern.type == "str":
            names[row.pattern.value] = row.name
        elif alternatives is not None:
            names |= dict.fromkeys(alternatives[1].split("|"), row.name)
    words = {text: name for text, name in names.items() if text.isalpha()}
    return words, {text: name for text, name in names.items() if text not in words}


@cache
def _spellings() -> dict[str, str]:
    """What a terminal of one fixed text is written as."""
    tables = _tables()
    found: dict[str, str] = {}
    several: set[str] = set()
    for text, name in (*tables.words.items(), *tables.signs.items()):
        if name in found:
            several.add(name)
        found[name] = text
    return {name: text for name, text in found.items() if name not in several}


def parse(source: Source, report: Report, limits: SyntaxLimits = LIMITS) -> tree.File:
    """The syntax tree of a file; with errors in `report`, the tree of the statements that are not broken.

    Never raises for any text: what is beyond the limits is a diagnostic.
    """
    text, before = source.text, len(report.diagnostics)
    if len(text) > limits.characters:
        report.add("file_too_large", Span(source, 0, 0), size=len(text), limit=limits.characters)
        return tree.File(source)
    if (lone := lone_return(text)) is not None:
        report.add("lone_return", Span(source, lone, lone + 1))
        return tree.File(source)
    if (long := long_name(text, limits.name)) is not None:
        report.add("name_too_long", Span(source, *long), size=long[1] - long[0], limit=limits.name)
        return tree.File(source)
    first = scan(text)
    if first.depth > limits.depth:
        span = Span(source, first.deepest, first.deepest + 1)
        report.add("nesting_too_deep", span, depth=first.depth, limit=limits.depth)
        return tree.File(source)
    if text.startswith("\ufeff"):
        text = " " + text[1:]
    for start, end in first.open_quotes:
        report.add("unclosed_string", Span(source, start, end))
        text = repair.close_quote(text, start, end)
    return _group(_parse_repaired(source, text, report, limits), source, report, before)


def parse_fragment(
    kind: str,
    text: str,
    source: Source,
    place: Callable[[int, int], Span],
    report: Report,
    limits: SyntaxLimits = LIMITS,
) -> Any:
    """The node of one part of a contract, or None where a fault was reported.

    `kind` is one of FRAGMENTS; `place` gives the span in `source` of two offsets of `text`.
    """
    if (long := long_name(text, limits.name)) is not None:
        report.add("name_too_long", place(*long), size=long[1] - long[0], limit=limits.name)
        return None
    found = scan(text)
    if found.depth > limits.depth:
        report.add("nesting_too_deep", place(0, len(text)), depth=found.depth, limit=limits.depth)
        return None
    if found.comments or found.open_quotes:
        start, end = (found.comments or found.open_quotes)[0]
        report.add("unknown_character", place(start, end), character=f"`{text[start]}`")
        return None
    try:
        return lalr.run(_tables(), text, source, kind, place)
    except lalr.StoppedError as error:
        failure = _failure(error, text)
        repair.report_fragment(failure, text, place, report)
        return None


def _parse_repaired(source: Source, text: str, report: Report, limits: SyntaxLimits) -> list[Any]:
    """Items of the file in order, after as many repairs as the limits allow."""
    work = errors = 0
    while True:
        try:
            items: list[Any] = lalr.run(_tables(), text + "\n", source, "start")
            return items
        except lalr.StoppedError as error:
            failure = _failure(error, text)
            work, errors = work + failure.start, errors + 1
            if errors > limits.errors or work > limits.work:
                report.add("more_errors")
                return []
            text = repair.after(failure, text, source, report)


def _failure(error: lalr.StoppedError, text: str) -> repair.Failure:
    """Where the parser stopped, on what, and what it would have accepted."""
    kinds = {"$END": "end", "_SEP": "newline", None: "character"}
    kind = kinds.get(error.terminal, "token")
    start = len(text) if kind == "end" else min(error.start, len(text))
    found = (text + "\n")[start : error.end].rstrip("\n")
    end = start + (1 if kind == "character" else len(found))
    return repair.Failure(kind, start, end, frozenset(_spellings().get(name, name) for name in error.expected))


def _group(items: list[Any], source: Source, report: Report, before: int) -> tree.File:
    """Headers with the items that follow them; `before` diagnostics are not of this file."""
    uses: list[tree.Use] = []
    orphans: list[Any] = []
    groups: list[tuple[tree.Header, list[Any]]] = []
    for item in items:
        if isinstance(item, tree.Use):
            uses.append(item)
        elif isinstance(item, tree.Header):
            groups.append((item, []))
        elif not groups:
            orphans.append(item)
        else:
            if isinstance(item, tree.KernelSection | tree.KernelClass) != groups[-1][0].kernel and not _either(item):
                kind = "kernel contract" if groups[-1][0].kernel else "contract of a pair"
                report.add("wrong_kind", _first_line(item.span), block=_first_word(item.span), kind=kind)
            groups[-1][1].append(item)
    if orphans:
        span = orphans[0].span
        report.add("outside_contract", _first_line(span), block=_first_word(span))
    if not groups and len(report.diagnostics) == before:
        report.add("no_contract", Span(source, 0, 0))
    contracts = tuple(
        tree.Contract(Span(source, header.span.start, [header, *parts][-1].span.end), header, tuple(parts))
        for header, parts in groups
    )
    return tree.File(source, tuple(uses), contracts)


def _either(item: Any) -> bool:
    """Whether an item may stand in both kinds of contract."""
    return isinstance(item, tree.Doc)


def _first_word(span: Span) -> str:
    words = span.text.split(maxsplit=1)
    return words[0][:40] if words else ""


def _first_line(span: Span) -> Span:
    """The part of a span on its first line."""
    return Span(span.source, span.start, span.start + len(span.text.split("\n", 1)[0]))
