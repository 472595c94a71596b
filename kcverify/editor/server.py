"""The language server: the features of this folder over the Language Server Protocol."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import PositionCodec, TextDocument

from kcverify import __version__
from kcverify.codes import Severity
from kcverify.diagnostics import Diagnostic
from kcverify.editor.completion import Suggestion, complete
from kcverify.editor.definition import definition
from kcverify.editor.document import Document, analyse
from kcverify.editor.fixes import fixes
from kcverify.editor.hover import hover
from kcverify.forms.read import form_of
from kcverify.output.verdicts import verdict_finding
from kcverify.prove.check import check
from kcverify.prove.verdict import Limits, Status, Verdict
from kcverify.source import Source, Span
from kcverify.syntax.printer import formatted

_SEVERITIES = {
    Severity.ERROR: lsp.DiagnosticSeverity.Error,
    Severity.WARNING: lsp.DiagnosticSeverity.Warning,
    Severity.NOTE: lsp.DiagnosticSeverity.Information,
}
_KINDS = {
    "metric": lsp.CompletionItemKind.Function, "unit": lsp.CompletionItemKind.Unit, "slice": lsp.CompletionItemKind.Variable,
    "keyword": lsp.CompletionItemKind.Keyword, "field": lsp.CompletionItemKind.Field,
    "parameter": lsp.CompletionItemKind.Constant, "assumption": lsp.CompletionItemKind.Constant,
}  # fmt: skip
_TOP = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
_EFFORT = Limits(solver_ms=500, candidates=16, remedy_steps=8)


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


def _uri(source: Source, own: TextDocument) -> str:
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
        if item.span is not None and _uri(item.span.source, document) == document.uri:
            where = range_of(item.span, codec)
        elif item.span is not None:
            message = f"{_place(item.span)}: {message}"
        related = [
            lsp.DiagnosticRelatedInformation(
                lsp.Location(_uri(r.span.source, document), range_of(r.span, codec)), r.label
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
        if verdict.status is not Status.PROVED and _uri(verdict.claim.span.source, document) == document.uri:
            worse = verdict.status is Status.REFUTED
            severity = lsp.DiagnosticSeverity.Error if worse else lsp.DiagnosticSeverity.Warning
            where = range_of(verdict.claim.span, document.position_codec)
            out.append(
                lsp.Diagnostic(where, verdict_finding(verdict), severity, verdict.status.value, source="kcverify")
            )
    return out


def _publish(server: LanguageServer, uri: str, *, proofs: bool) -> None:
    """Sends the faults of a document; with `proofs` also what the checker finds in contracts without a fault."""
    document = server.workspace.get_text_document(uri)
    read = read_document(document)
    found = diagnostics(read.report.diagnostics, document)
    if proofs and not read.report.errors:
        for contract in read.found.contracts:
            checked = check(contract, _EFFORT)
            found += diagnostics(checked.report.diagnostics, document)
            found += verdict_diagnostics(checked.verdicts, document)
    server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, document.version))


def _item(suggestion: Suggestion) -> lsp.CompletionItem:
    return lsp.CompletionItem(
        suggestion.label,
        kind=_KINDS.get(suggestion.kind, lsp.CompletionItemKind.EnumMember),
        detail=suggestion.detail or suggestion.kind,
        insert_text=suggestion.insert or suggestion.label,
    )


def _quick_fixes(document: TextDocument, wanted: lsp.Range) -> list[lsp.CodeAction]:
    """Edits for the faults that touch a range."""
    read = read_document(document)
    codec = document.position_codec
    low, high = (offset_of(read.source, codec, place) for place in (wanted.start, wanted.end))
    actions = []
    for item in read.report.diagnostics:
        if item.span is None or item.span.end < low or item.span.start > high:
            continue
        about = diagnostics([item], document)
        for fix in fixes(read, item):
            edit = lsp.TextEdit(range_of(fix.span, codec), fix.text)
            change = lsp.WorkspaceEdit(changes={document.uri: [edit]})
            actions.append(lsp.CodeAction(fix.title, lsp.CodeActionKind.QuickFix, about, edit=change))
    return actions


def _format(document: TextDocument) -> list[lsp.TextEdit]:
    """One edit of the whole text, none where it does not parse or is YAML or JSON."""
    read = read_document(document)
    if form_of(read.source) != "kc" or any(d.code.id < "KC1" for d in read.report.errors):
        return []
    text = formatted(read.tree)
    if text == read.source.text:
        return []
    whole = Span(read.source, 0, len(read.source.text))
    return [lsp.TextEdit(range_of(whole, document.position_codec), text)]


def build() -> LanguageServer:
    """A server with all features, not yet listening."""
    server = LanguageServer("kcverify", __version__)
    _watch(server)
    _answer(server)
    return server


def _watch(server: LanguageServer) -> None:
    """Diagnostics: of the text with every change, of the proofs when a file is opened or saved."""

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(server: LanguageServer, given: lsp.DidOpenTextDocumentParams) -> None:
        _publish(server, given.text_document.uri, proofs=True)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(server: LanguageServer, given: lsp.DidSaveTextDocumentParams) -> None:
        _publish(server, given.text_document.uri, proofs=True)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(server: LanguageServer, given: lsp.DidChangeTextDocumentParams) -> None:
        _publish(server, given.text_document.uri, proofs=False)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(server: LanguageServer, given: lsp.DidCloseTextDocumentParams) -> None:
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(given.text_document.uri, []))


def _answer(server: LanguageServer) -> None:
    """Requests: hover, completion, definition, formatting, quick fixes."""

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def on_hover(server: LanguageServer, given: lsp.HoverParams) -> lsp.Hover | None:
        document = server.workspace.get_text_document(given.text_document.uri)
        read = read_document(document)
        found = hover(read, offset_of(read.source, document.position_codec, given.position))
        if found is None:
            return None
        text = lsp.MarkupContent(lsp.MarkupKind.Markdown, found.text)
        return lsp.Hover(text, range_of(found.span, document.position_codec))

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[" ", ":", ">", ","]))
    def on_completion(server: LanguageServer, given: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        document = server.workspace.get_text_document(given.text_document.uri)
        read = read_document(document)
        found = complete(read, offset_of(read.source, document.position_codec, given.position))
        return [_item(suggestion) for suggestion in found]

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def on_definition(server: LanguageServer, given: lsp.DefinitionParams) -> lsp.Location | None:
        document = server.workspace.get_text_document(given.text_document.uri)
        read = read_document(document)
        span = definition(read, offset_of(read.source, document.position_codec, given.position))
        if span is None:
            return None
        return lsp.Location(_uri(span.source, document), range_of(span, document.position_codec))

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def on_formatting(server: LanguageServer, given: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        return _format(server.workspace.get_text_document(given.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix]))
    def on_code_action(server: LanguageServer, given: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return _quick_fixes(server.workspace.get_text_document(given.text_document.uri), given.range)
