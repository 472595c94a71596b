"""Reads JSON text (RFC 8259, nothing more) to items with places."""

from __future__ import annotations

import json
import re

from kcverify.diagnostics import Report
from kcverify.forms.items import Builder, Item, Scalar
from kcverify.source import Source, Span

_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<word>true|false|null)|(?P<sign>[\[\]{},:])|(?P<rest>(?s:.))"
)
_BLANK = re.compile(r"[ \t\r\n]*")
_ENDS = {"[": "]", "{": "}"}


def read_json(source: Source, report: Report) -> Item:
    """The value of the text. Raises RefusedError with the fault reported: not JSON, too deep, a key given twice."""
    text, builder = source.text, Builder(report, "JSON")
    open_signs: list[str] = []
    state, position = "value", _end_of_blank(text, 0)
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        token, span = match[0], Span(source, match.start(), match.end())
        kind = token if match.lastgroup == "sign" else match.lastgroup or ""
        state = _step(builder, open_signs, state, kind, token, span)
        position = _end_of_blank(text, match.end())
    if state != "end" or builder.root is None:
        raise builder.refuse("form_syntax", Span(source, len(text), len(text)), form="JSON", reason="it ends too early")
    return builder.root


def _end_of_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    assert match is not None
    return match.end()


def _step(builder: Builder, open_signs: list[str], state: str, kind: str, token: str, span: Span) -> str:
    """Takes one token in a state (`value`, `first`, `key`, `colon`, `next`, `end`) and gives the next state."""
    if state in ("value", "first") and kind in ("string", "number", "word") and not builder.wants_key:
        builder.add(_scalar(kind, token, span))
        return "next" if open_signs else "end"
    if state in ("value", "first") and kind in _ENDS and not builder.wants_key:
        builder.open(span, mapping=kind == "{")
        open_signs.append(kind)
        return "first"
    if state in ("key", "first") and kind == "string" and builder.wants_key:
        builder.add(_scalar(kind, token, span))
        return "colon"
    if state == "colon" and kind == ":":
        return "value"
    if state == "next" and kind == ",":
        return "key" if open_signs[-1] == "{" else "value"
    if state in ("next", "first") and open_signs and kind == _ENDS[open_signs[-1]]:
        open_signs.pop()
        builder.close(span.end)
        return "next" if open_signs else "end"
    raise builder.refuse("form_syntax", span, form="JSON", reason=_reason(state, builder.wants_key, token))


def _reason(state: str, key: bool, token: str) -> str:
    if state in ("key", "first", "value"):
        wanted = "a quoted key" if key else "a value"
    else:
        wanted = {"colon": "`:`", "next": "`,` or the end of this part", "end": "nothing more"}[state]
    return f"expected {wanted}, found `{token[:20]}`"


def _scalar(kind: str, token: str, span: Span) -> Scalar:
    return Scalar(span, json.loads(token) if kind == "string" else token, kind)
