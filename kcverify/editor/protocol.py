"""Places and findings of a contract in the words of the Language Server Protocol."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls import protocol
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import PositionCodec, TextDocument

from kcverify.codes import Severity
from kcverify.diagnostics import Diagnostic
from kcverify.editor.document import Document, analyse
from kcverify.output.verdicts import verdict_finding
from kcverify.prove.verdict import Status, Verdict
from kcverify.source import Source, Span

_SEVERITIES = {
    Severity.ERROR: lsp.DiagnosticSeverity.Error,
    Severity.WARNING: lsp.DiagnosticSeverity.Warning,
    Severity.NOTE: lsp.DiagnosticSeverity.Information,
}
_TOP = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))


_converter: Any = protocol.default_converter  # pygls states no types for it


def to_data(found: list[lsp.Diagnostic]) -> Any:
    """Diagnostics as the JSON data of the protocol."""
    return _converter().unstructure(found)


def from_data(data: Any) -> list[lsp.Diagnostic]:
    """Diagnostics from the JSON data of the protocol."""
    found: list[lsp.Diagnostic] = _converter().structure(data, list[lsp.Diagnostic])
    return found


def position(source: Source, codec: PositionCodec, offset: int) -> lsp.Position:
    """An offset as line and column in the units of the client."""
    line, column = source.position(min(offset, len(source.text)))
    start = source.line_starts[line - 1]
    return lsp.Position(line - 1, codec.client_num_units(source.text[start : start + column - 1]))


def offset_of(source: Source, codec: PositionCodec, place: lsp.Position) -> int:
    """The offset of a line and column of the client; beyond a line's end, that end."""
    if place.line >= len(source.line_starts):
        return len(source.text)
    start = source.line_starts[place.line]
    units = 0
    text = source.line(place.line + 1)
    for index, character in enumerate(text):
        if units >= place.character:
            return start + index
        units += codec.client_num_units(character)
    return start + len(text)


def range_of(span: Span, codec: PositionCodec) -> lsp.Range:
    """A span in the units of the client."""
    return lsp.Range(position(span.source, codec, span.start), position(span.source, codec, span.end))


def uri_of(source: Source, own: TextDocument) -> str:
    """URI of a source: the document itself, or a file that it uses."""
    if source.name == (to_fs_path(own.uri) or own.uri):
        return str(own.uri)
    return from_fs_path(str(Path(source.name).resolve())) or str(own.uri)


def read_document(document: TextDocument) -> Document:
    """The contract file that an editor has open."""
    return analyse(Source(to_fs_path(document.uri) or document.uri, document.source))


def _place(span: Span) -> str:
    """A place in another file, without its folder."""
    line, column = span.source.position(span.start)
    return f"{Path(span.source.name).name}:{line}:{column}"


def diagnostics(found: Iterable[Diagnostic], document: TextDocument) -> list[lsp.Diagnostic]:
    """Diagnostics in the words of the protocol, with hints and second places; those of used files at the top."""
    out = []
    codec = document.position_codec
    for item in found:
        where, message = _TOP, item.message
        if item.span is not None and uri_of(item.span.source, document) == document.uri:
            where = range_of(item.span, codec)
        elif item.span is not None:
            message = f"{_place(item.span)}: {message}"
        related = [
            lsp.DiagnosticRelatedInformation(
                lsp.Location(uri_of(r.span.source, document), range_of(r.span, codec)), r.label
            )
            for r in item.related
        ]
        hint = f"\nhint: {item.hint}" if item.hint else ""
        out.append(
            lsp.Diagnostic(
                where,
                message + hint, _SEVERITIES[item.severity], f"{item.code.id} {item.code.slug}",
                source="kcverify", related_information=related or None,
            )
        )  # fmt: skip
    return out


def verdict_diagnostics(verdicts: Iterable[Verdict], document: TextDocument) -> list[lsp.Diagnostic]:
    """Guarantees that are not proved, at their lines."""
    out = []
    for verdict in verdicts:
        if verdict.status is not Status.PROVED and uri_of(verdict.claim.span.source, document) == document.uri:
            worse = verdict.status is Status.REFUTED
            severity = lsp.DiagnosticSeverity.Error if worse else lsp.DiagnosticSeverity.Warning
            where = range_of(verdict.claim.span, document.position_codec)
            out.append(
                lsp.Diagnostic(where, verdict_finding(verdict), severity, verdict.status.value, source="kcverify")
            )
    return out
