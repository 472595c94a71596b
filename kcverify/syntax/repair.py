"""Turns one failure of the parser into a diagnostic and into text of the same length without the broken statement."""

from __future__ import annotations

import difflib
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from kcverify.diagnostics import Related, Report
from kcverify.source import Source, Span
from kcverify.syntax.scan import Scan, scan

BLOCKS = (
    "pair",
    "assume",
    "numerical",
    "statistical",
    "runtime",
    "observability",
    "guarantee",
    "escalate",
    "promote",
    "scope",
    "requires",
    "ensures",
    "tolerance",
    "oracle",
    "measure",
    "violation",
)
LINES = ("use", "contract", "kernel", "class", "slice", "param", "split")

_NAMED = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "quoted text",
    "_SEP": "the end of the line",
    "COMPARE": "`<=` or `>=`",
    "FAMILY": "a block",
    "KERNEL_SECTION": "a block",
    "QUANTILE": "",
    "$END": "",
    "CLASS": "a class such as C-PRC-01",
}
_ARITHMETIC = {"+", "-", "*", "/", "^"}
_OPERAND = {"(", "-", "NAME", "NUMBER"}

_MEANT = {
    "≤": "<=", "⩽": "<=", "≥": ">=", "⩾": ">=", "→": "->", "⇒": "->", "∈": "in", "‖": "||", "∥": "||", "×": "*", "·": "*", "−": "-",
    "–": "-", "—": "-", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": '"', "’": '"', "'": '"', "`": '"', "：": ":", "；": ";",
    "，": ",", "％": "%", "（": "(", "）": ")", "｛": "{", "｝": "}", "\u00a0": " ", "\u202f": " ", "\u3000": " ",
}  # fmt: skip
"""Signs of word processors and of mathematics, and what a contract writes for them."""
_NAMES = "names have the letters a to z and A to Z, digits and `_`"


@dataclass(frozen=True)
class Failure:
    """Where the parser stopped: `kind` is `token`, `newline`, `character` or `end`."""

    kind: str
    start: int
    end: int
    expected: frozenset[str]


def close_quote(text: str, start: int, end: int) -> str:
    """`text` with the open quote at `start` turned into an empty quoted text, or blanked where there is no room."""
    replacement = '""' if end - start >= 2 else " "
    return text[:start] + replacement.ljust(end - start) + text[end:]


def after(failure: Failure, text: str, source: Source, report: Report) -> str:
    """Reports the failure and returns text in which it cannot occur again."""
    found = scan(text)
    if failure.kind == "end":
        return _at_end(failure, text, source, report, found)
    before = _boundary_before(found, failure.start)
    head = text[before + 1 : failure.start].strip()
    if text[failure.start : failure.start + 1] == "{" and head in BLOCKS and before >= 0 and text[before] in "\n;":
        opening = _enclosing(found, failure.start)
        if opening is not None:
            _report_unclosed(source, report, text, opening, failure.start)
            return f"{text[:before]}}}{text[before + 1 :]}"
    _report(failure, text, source, report, head, before)
    return _blank_statement(failure, text, found, before)


def _at_end(failure: Failure, text: str, source: Source, report: Report, found: Scan) -> str:
    """The file ended inside a block, or inside a statement."""
    if found.unmatched:
        _report_unclosed(source, report, text, found.unmatched[-1], len(text))
        return text + "\n}"
    span = _clip(source, len(text.rstrip()), len(text.rstrip()) + 1)
    report.add("unexpected", span, expected=_list(failure.expected), found="the end of the file")
    before = _boundary_before(found, len(text))
    return _fill(text, max(before, 0), len(text))


def _report_unclosed(source: Source, report: Report, text: str, opening: int, where: int) -> None:
    word = re.search(r"(\w+)[ \t]*$", text[max(0, opening - 80) : opening])
    start = opening - len(word[0]) if word else opening
    place = _clip(source, where, where + 1)
    related = [Related(place, "the block is still open here")] if where < len(source.text) else []
    report.add("unclosed_block", _clip(source, start, opening + 1), related=related, block=word[1] if word else "{")


def _report(failure: Failure, text: str, source: Source, report: Report, head: str, before: int) -> None:
    """The diagnostic of a failure on a token or character, with the nearest word that would have done."""
    span = _clip(source, failure.start, max(failure.end, failure.start + 1))
    token = text[failure.start : failure.end]
    if failure.kind == "character":
        sign = text[failure.start : failure.start + 1]
        report.add("unknown_character", span, hint=_meant(text, failure.start), character=_character(sign))
        return
    if failure.kind == "token" and not head and "contract" in failure.expected and re.fullmatch(r"\w+", token):
        hint = did_you_mean(token, BLOCKS + LINES) or f"blocks are: {', '.join(BLOCKS)}"
        report.add("unknown_block", span, name=token[:40], hint=hint)
        return
    previous = re.search(r"(\w+)\s*$", head)
    words = tuple(word for word in failure.expected if word.isalpha() and word.islower())
    hint = did_you_mean(token, words) or (did_you_mean(previous[1], words) if previous else "")
    hint = hint or _form(failure, text, token)
    name = "the end of the line" if failure.kind == "newline" else f"`{token[:40]}`"
    report.add("unexpected", span, hint=hint, expected=_list(failure.expected), found=name)


def report_fragment(failure: Failure, text: str, place: Callable[[int, int], Span], report: Report) -> None:
    """The diagnostic of a failure in a part of a contract that stands alone."""
    end = max(failure.end, failure.start + 1)
    token = text[failure.start : end]
    if failure.kind == "character" and token:
        hint = _meant(text, failure.start)
        report.add("unknown_character", place(failure.start, end), hint=hint, character=_character(token[:1]))
        return
    name = {"end": "the end", "newline": "the end of the line"}.get(failure.kind, f"`{token[:40]}`")
    expected = "the end" if "$END" in failure.expected else _list(failure.expected)
    report.add("unexpected", place(failure.start, end), expected=expected, found=name)


def _meant(text: str, start: int) -> str:
    """What to write in place of a character that the language does not have, or nothing."""
    sign = text[start : start + 1]
    if sign in _MEANT:
        return "write a plain space" if _MEANT[sign] == " " else f"write `{_MEANT[sign]}`"
    if sign.isalpha():
        return _NAMES
    digits = re.match(r"\.([0-9]{1,20})", text[start:])
    return f"write `0.{digits[1]}`" if digits else ""


def _form(failure: Failure, text: str, token: str) -> str:
    """How a number, a name or a quoted text is written, where one was tried in another form; or nothing."""
    before, rest = text[max(0, failure.start - 40) : failure.start], text[failure.start : failure.start + 40]
    whole, decimals = re.search(r"(?<![\w.])([0-9]+)$", before), re.match(r",([0-9]+)", rest)
    if whole and decimals:
        return f"write `{whole[1]}.{decimals[1]}`: decimals follow a point"
    if (
        re.search(r"[A-Za-z_]\w*$", before)
        and re.match(r"[-.]\w", rest)
        and ("version" in failure.expected or failure.expected == {":"})
    ):
        return _NAMES
    if failure.expected == {"STRING"} and re.fullmatch(r"[\w.]+", token):
        return f'write `"{token[:40]}"`'
    return ""


def did_you_mean(word: str, known: tuple[str, ...] | list[str]) -> str:
    """`did you mean ...?` with the nearest of the known words, or nothing."""
    near = difflib.get_close_matches(word[:60], known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near and near[0] != word else ""


def _list(expected: frozenset[str]) -> str:
    """`a, b or c` in the words of the language."""
    rest = set(expected)
    words: list[str] = []
    if rest >= _OPERAND:
        rest -= _OPERAND
        words.append("a number")
    elif len(rest - _ARITHMETIC) > 0:
        if "*" in rest:
            rest -= {"NAME", "%"}
        rest -= _ARITHMETIC
    words += sorted({_NAMED.get(name, f"`{name}`") for name in rest} - {""})
    if len(words) > 8:
        words = [*words[:8], "something else"]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "something else"


def _character(character: str) -> str:
    """A character as a message shows it."""
    if character.isprintable() and character.isascii():
        return f"`{character}`"
    name = unicodedata.name(character, "a control character") if character else "nothing"
    return f"U+{ord(character):04X} ({name.lower()})" if character else name


def _clip(source: Source, start: int, end: int) -> Span:
    size = len(source.text)
    return Span(source, min(start, size), min(end, size))


def _boundary_before(found: Scan, offset: int) -> int:
    """Offset of the last statement boundary before `offset`, or -1."""
    index = bisect_left(found.boundaries, offset)
    return found.boundaries[index - 1] if index else -1


def _enclosing(found: Scan, offset: int) -> int | None:
    """Offset of the innermost `{` that is open at `offset`."""
    opened = [start for start, end in found.closing.items() if start < offset < end]
    opened += [start for start in found.unmatched if start < offset]
    return max(opened, default=None)


def _fill(text: str, start: int, end: int) -> str:
    """`text` with `[start, end)` blank; newlines stay."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def _blank_statement(failure: Failure, text: str, found: Scan, before: int) -> str:
    """Blanks the statement around the failure: with its block where it is the head of one."""
    start = before + 1
    index = bisect_left(found.boundaries, failure.start)
    end = found.boundaries[index] if index < len(found.boundaries) else len(text)
    if end < len(text) and text[end] == "{":
        end = found.closing.get(end, end) + 1
    if not text[start:end].strip():
        start, end = failure.start, max(failure.end, failure.start + 1)
    statement = text[start:end]
    if statement.split()[:1] == ["contract"] and len(statement.strip()) >= 10 and "{" not in statement:
        lead = len(statement) - len(statement.lstrip())
        return text[:start] + (" " * lead + "contract _").ljust(len(statement)) + text[end:]
    return _fill(text, start, end)
