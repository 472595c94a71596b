"""Reads YAML text to items with places: one document of plain lists, mappings and values, nothing that runs code."""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kcverify.diagnostics import Report
from kcverify.forms.items import Builder, Item, Scalar
from kcverify.source import Source, Span

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_WORDS = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*)?\.?[0-9]+(?:[eE][-+]?[0-9]+)?")


def read_yaml(source: Source, report: Report) -> Item:
    """The value of the text. Raises RefusedError with the fault reported.

    Refused: what is not YAML, tags, anchors, aliases, a second document, depth, a key given twice.
    """
    builder = Builder(report, "YAML")
    try:
        for event in YAML(typ="safe", pure=True).parse(io.StringIO(source.text)):
            _take(builder, source, event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = min(mark.index, len(source.text)) if mark is not None else 0
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        span = Span(source, at, min(at + 1, len(source.text)))
        raise builder.refuse("form_syntax", span, form="YAML", reason=reason) from None
    except (YAMLError, ValueError, UnicodeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise builder.refuse("form_syntax", Span(source, 0, 0), form="YAML", reason=reason) from None
    if builder.root is None:
        raise builder.refuse("no_contract", Span(source, 0, 0))
    return builder.root


def _take(builder: Builder, source: Source, event: Any) -> None:
    """One event of the reader. Raises RefusedError."""
    kind = type(event).__name__
    span = Span(source, event.start_mark.index, max(event.end_mark.index, event.start_mark.index))
    _check_plain(builder, kind, event, span)
    if kind in ("MappingStartEvent", "SequenceStartEvent"):
        builder.open(span, mapping=kind == "MappingStartEvent")
    elif kind in ("MappingEndEvent", "SequenceEndEvent"):
        builder.close(span.end)
    elif kind == "ScalarEvent":
        builder.add(Scalar(span, event.value, _kind(event)))


def _check_plain(builder: Builder, kind: str, event: Any, span: Span) -> None:
    """Raises RefusedError for what a contract has no use for and an attacker has."""
    what = ""
    if kind == "AliasEvent":
        what = "an alias (`*name`)"
    elif getattr(event, "anchor", None):
        what = "an anchor (`&name`)"
    elif getattr(event, "tag", None) not in (None, "!"):
        what = "a tag (`!name`)"
    elif kind == "DocumentStartEvent" and builder.root is not None:
        what = "a second document"
    if what:
        raise builder.refuse("form_refused", span, what=what)


def _kind(event: Any) -> str:
    if event.style is not None and event.style != "":
        return "string"
    if event.value in _NULL:
        return "null"
    if event.value in _WORDS:
        return "word"
    return "number" if _NUMBER.fullmatch(event.value) else "string"
