"""Runs the grammar's LALR tables over a text and builds the syntax tree in the same sweep.

The tables are lark's; the lexer is one pattern for every token, told apart by what the parser's state accepts. It is
written for speed: a contract of a thousand clauses is read while its author types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kcverify.source import Source, Span
from kcverify.syntax import tree

_TOKEN = re.compile(
    r"(?>[ \t\r]+|\#[^\n]*)*+(?:"
    r"(?P<CLASS>C-[A-Z]{3}-[0-9]{2})|(?P<QUANTILE>p[0-9]+\.[0-9]+)|(?P<NAME>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<NUMBER>[0-9](?:_?[0-9])*(?:\.[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9]+)?)"
    r'|(?P<STRING>"[^"\r\n]*")|(?P<_SEP>(?:\r?\n|;)(?:[ \t\r\n;]|\#[^\n]*\n)*)'
    r"|(?P<SIGN>\|\||->|<=|>=|==|!=|[-<>{}()\[\],:=^+*/%?])"
    r"|(?P<END>\Z))"
)
_BLANK = re.compile(r"(?>[ \t\r]+|\#[^\n]*)*+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_INLINE, _NODE, _NAME, _TEXT, _NUMBER = range(5)
_LEAVES = {"STRING": _TEXT, "NUMBER": _NUMBER}


@dataclass(frozen=True)
class Reduction:
    """One alternative of a rule: its symbols, which of them become parts, and what builds its node (None: inlined)."""

    origin: str
    size: int
    parts: tuple[tuple[int, int], ...]
    build: Callable[[Span, list[Any]], Any] | None
    unwraps: bool


@dataclass(frozen=True)
class Tables:
    """`actions[state][terminal]` is a state to shift to or a reduction; `goto[state][rule]` follows a reduction.

    `words` are the terminals of keywords, `signs` those of the other fixed texts.
    """

    actions: Mapping[int, Mapping[str, int | Reduction]]
    goto: Mapping[int, Mapping[str, int]]
    starts: Mapping[str, int]
    ends: Mapping[str, int]
    words: Mapping[str, str]
    signs: Mapping[str, str]


def reduction(rule: Any, builders: Mapping[str, Callable[[Span, list[Any]], Any]]) -> Reduction:
    """The reduction of one rule of lark. A rule that no builder knows is a fault of kcverify (KeyError)."""
    name = rule.origin.name
    parts = []
    for index, symbol in enumerate(rule.expansion):
        if symbol.is_term:
            if not symbol.filter_out:
                parts.append((index, _LEAVES.get(symbol.name, _NAME)))
        else:
            parts.append((index, _INLINE if symbol.name.startswith("_") else _NODE))
    build = None if name.startswith("_") else builders[rule.alias or name]
    return Reduction(name, len(rule.expansion), tuple(parts), build, bool(rule.options.expand1))


class StoppedError(Exception):
    """The text does not follow the grammar: the token (None: none starts here), its place, what would do instead."""

    def __init__(self, terminal: str | None, start: int, end: int, expected: frozenset[str]) -> None:
        super().__init__(terminal, start, end)
        self.terminal, self.start, self.end, self.expected = terminal, start, end, expected


def run(tables: Tables, text: str, source: Source, start: str, place: Callable[[int, int], Span] | None = None) -> Any:
    """The node of the rule `start` for the whole of `text`. `place` gives the span of two offsets of `text`.

    Raises StoppedError.
    """
    size = len(source.text)
    where = place or (lambda low, high: Span(source, min(low, size), min(high, size)))
    states, values = [tables.starts[start]], [None]
    begins, ends = [0], [0]
    actions, goto, final = tables.actions, tables.goto, tables.ends[start]
    position = 0
    while True:
        terminal, low, position = _next(tables, text, position, actions[states[-1]])
        while True:
            action = actions[states[-1]].get(terminal)
            if action is None:
                raise StoppedError(terminal or None, low, position, _acceptable(tables, states))
            if isinstance(action, int):
                break
            _reduce(action, text, states, values, begins, ends, where, goto)
            if terminal == "$END" and states[-1] == final:
                return values[-1]
        states.append(action)
        values.append(None)
        begins.append(low)
        ends.append(position)


def _acceptable(tables: Tables, states: list[int]) -> frozenset[str]:
    """Terminals that the parser could shift, after the reductions that they cause."""
    return frozenset(terminal for terminal in tables.actions[states[-1]] if _shifts(tables, states, terminal))


def _shifts(tables: Tables, states: list[int], terminal: str) -> bool:
    stack = list(states)
    while True:
        action = tables.actions[stack[-1]].get(terminal)
        if action is None:
            return terminal == "$END" and stack[-1] in tables.ends.values()
        if isinstance(action, int):
            return True
        if action.size:
            del stack[-action.size :]
        stack.append(tables.goto[stack[-1]][action.origin])


def _next(tables: Tables, text: str, position: int, accepted: Mapping[str, object]) -> tuple[str, int, int]:
    """Terminal, start and end of the next token; an empty terminal where none starts."""
    match = _TOKEN.match(text, position)
    if match is None:
        blank = _BLANK.match(text, position)
        low = blank.end() if blank else position
        return "", low, low + 1
    kind = match.lastgroup or ""
    low, high = match.span(kind)
    if kind == "NAME":
        keyword = tables.words.get(text[low:high], "NAME")
        return (keyword if keyword in accepted or "NAME" not in accepted else "NAME"), low, high
    if kind == "SIGN":
        return tables.signs[text[low:high]], low, high
    if kind == "END":
        return "$END", low, high
    if kind in ("CLASS", "QUANTILE") and kind not in accepted:
        word = _WORD.match(text, low)
        assert word is not None
        return _next(tables, text[: word.end()], low, accepted)
    return kind, low, high


def _reduce(
    action: Reduction,
    text: str,
    states: list[int],
    values: list[Any],
    begins: list[int],
    ends: list[int],
    where: Callable[[int, int], Span],
    goto: Mapping[int, Mapping[str, int]],
) -> None:
    """Replaces the symbols of one alternative on the stacks by the node that they make."""
    size = action.size
    base = len(states) - size
    parts: list[Any] = []
    for index, kind in action.parts:
        at = base + index
        if kind == _NODE:
            parts.append(values[at])
        elif kind == _INLINE:
            parts += values[at]
        else:
            parts.append(_leaf(kind, where(begins[at], ends[at]), text[begins[at] : ends[at]]))
    begin, end = (begins[base], ends[-1]) if size else (ends[-1], ends[-1])
    if size:
        del states[base:], values[base:], begins[base:], ends[base:]
    value: Any = parts
    if action.build is not None:
        value = parts[0] if action.unwraps and len(parts) == 1 else action.build(where(begin, end), parts)
    states.append(goto[states[-1]][action.origin])
    values.append(value)
    begins.append(begin)
    ends.append(end)


def _leaf(kind: int, span: Span, text: str) -> tree.Name | tree.Text | tree.Number:
    if kind == _NAME:
        return tree.Name(span, text)
    return tree.Text(span, text[1:-1]) if kind == _TEXT else tree.Number(span, text)
