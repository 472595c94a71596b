"""The language server: the features of this folder over the Language Server Protocol."""

from __future__ import annotations

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from kcverify import __version__
from kcverify.editor.completion import Suggestion, complete
from kcverify.editor.definition import definition
from kcverify.editor.fixes import fixes
from kcverify.editor.hover import hover
from kcverify.editor.protocol import diagnostics, offset_of, range_of, read_document, uri_of
from kcverify.editor.worker import WAIT, Watch
from kcverify.forms.read import form_of
from kcverify.source import Span
from kcverify.syntax.printer import formatted

_KINDS = {
    "metric": lsp.CompletionItemKind.Function, "unit": lsp.CompletionItemKind.Unit, "slice": lsp.CompletionItemKind.Variable,
    "keyword": lsp.CompletionItemKind.Keyword, "field": lsp.CompletionItemKind.Field,
    "parameter": lsp.CompletionItemKind.Constant, "assumption": lsp.CompletionItemKind.Constant,
}  # fmt: skip


def _publish(server: LanguageServer, watch: Watch, uri: str, wait: float) -> None:
    """Sends the faults of a document at once, and what the checker finds in a text without errors when it is known."""
    document = server.workspace.get_text_document(uri)
    read = read_document(document)
    found = diagnostics(read.report.diagnostics, document)
    server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, document.version))
    if read.report.errors:
        watch.drop(uri)
    else:
        watch.want(document, wait)


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
    """Diagnostics: of the text with every change, of the proofs when it is opened, saved or left alone for a moment."""

    def tell(document: TextDocument, proofs: list[lsp.Diagnostic]) -> None:
        found = diagnostics(read_document(document).report.diagnostics, document) + proofs
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(document.uri, found, document.version))

    watch = Watch(tell)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(server: LanguageServer, given: lsp.DidOpenTextDocumentParams) -> None:
        _publish(server, watch, given.text_document.uri, 0.0)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(server: LanguageServer, given: lsp.DidSaveTextDocumentParams) -> None:
        _publish(server, watch, given.text_document.uri, 0.0)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(server: LanguageServer, given: lsp.DidChangeTextDocumentParams) -> None:
        _publish(server, watch, given.text_document.uri, WAIT)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(server: LanguageServer, given: lsp.DidCloseTextDocumentParams) -> None:
        watch.drop(given.text_document.uri)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(given.text_document.uri, []))

    @server.feature(lsp.SHUTDOWN)
    def ended(server: LanguageServer, given: None) -> None:
        watch.end()


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
        return lsp.Location(uri_of(span.source, document), range_of(span, document.position_codec))

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def on_formatting(server: LanguageServer, given: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        return _format(server.workspace.get_text_document(given.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix]))
    def on_code_action(server: LanguageServer, given: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return _quick_fixes(server.workspace.get_text_document(given.text_document.uri), given.range)
