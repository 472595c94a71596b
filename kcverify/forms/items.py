"""Plain data with the place of every part, as the readers of YAML and JSON give it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kcverify.diagnostics import Related, Report, diagnose
from kcverify.source import Span

CHARACTERS = 400_000
"""Characters of a YAML or JSON file that are read."""

DEPTH = 32
"""Lists and mappings inside each other that are read; a contract needs seven."""


class RefusedError(Exception):
    """The file or a part of it cannot be used; its fault is in the report already."""


@dataclass(frozen=True)
class Scalar:
    """A text, number, truth value or null, as it was written; `text` is without quotes and escapes."""

    span: Span
    text: str
    kind: str

    def place(self, start: int, end: int) -> Span:
        """The place of characters of `text`: exact where they stand in the source as they are, else the whole."""
        raw = self.span.text
        lead = 1 if raw[:1] in ('"', "'") else 0
        if raw[lead : lead + len(self.text)] != self.text:
            return self.span
        low = self.span.start + lead + min(start, len(self.text))
        return Span(self.span.source, low, self.span.start + lead + min(end, len(self.text)))


@dataclass(frozen=True)
class Listing:
    """A list."""

    span: Span
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Entry:
    """One key of a mapping with its value."""

    key: Scalar
    value: Item

    @property
    def span(self) -> Span:
        """From the key to the end of the value."""
        return Span(self.key.span.source, self.key.span.start, self.value.span.end)


@dataclass(frozen=True)
class Mapping:
    """A mapping; every key occurs once."""

    span: Span
    entries: tuple[Entry, ...]

    def get(self, key: str) -> Item | None:
        """Value of a key, or None."""
        return next((entry.value for entry in self.entries if entry.key.text == key), None)


Item = Scalar | Listing | Mapping

KINDS = {Scalar: "one value", Listing: "a list", Mapping: "a mapping"}


@dataclass
class _Frame:
    """A list or mapping that is still open; a mapping has `keys` and perhaps a key that waits for its value."""

    span: Span
    items: list[Item] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    keys: dict[str, Scalar] | None = None
    key: Scalar | None = None


@dataclass
class Builder:
    """Builds items from the events of a reader without recursion, and refuses what is too deep or given twice."""

    report: Report
    form: str
    stack: list[_Frame] = field(default_factory=list)
    root: Item | None = None

    def refuse(self, slug: str, span: Span, *, related: Iterable[Related] = (), **holes: object) -> RefusedError:
        """Reports the fault and returns the exception to raise."""
        self.report.diagnostics.append(diagnose(slug, span, hint="", related=related, **holes))
        return RefusedError(slug)

    def open(self, span: Span, *, mapping: bool) -> None:
        """A list or mapping starts. Raises RefusedError beyond the depth limit."""
        if len(self.stack) >= DEPTH:
            raise self.refuse("nesting_too_deep", span, depth=len(self.stack) + 1, limit=DEPTH)
        if self.wants_key:
            raise self.refuse("form_syntax", span, form=self.form, reason="a key must be a text")
        self.stack.append(_Frame(span, keys={} if mapping else None))

    def close(self, end: int) -> None:
        """The innermost list or mapping ends at an offset."""
        frame = self.stack.pop()
        parts = frame.items or frame.entries
        if parts and frame.span.source.text[end - 1 : end] not in ("]", "}"):
            end = parts[-1].span.end
        whole = Span(frame.span.source, frame.span.start, end)
        done: Item = Listing(whole, tuple(frame.items)) if frame.keys is None else Mapping(whole, tuple(frame.entries))
        self.add(done)

    def add(self, item: Item) -> None:
        """The next value or key. Raises RefusedError for a key that occurs twice and for text that no encoding holds."""
        if isinstance(item, Scalar) and any("\ud800" <= c <= "\udfff" for c in item.text):
            raise self.refuse("form_refused", item.span, what="half of a surrogate pair")
        if not self.stack:
            self.root = item
            return
        frame = self.stack[-1]
        if frame.keys is None:
            frame.items.append(item)
        elif frame.key is not None:
            if item.span.start >= item.span.end:
                item = Scalar(frame.key.span, "", "null")
            frame.entries.append(Entry(frame.key, item))
            frame.key = None
        else:
            assert isinstance(item, Scalar)
            first = frame.keys.setdefault(item.text, item)
            if first is not item:
                related = [Related(first.span, "first given here")]
                raise self.refuse("form_key_twice", item.span, related=related, key=item.text[:60])
            frame.key = item

    @property
    def wants_key(self) -> bool:
        """Whether the innermost mapping waits for a key."""
        return bool(self.stack) and self.stack[-1].keys is not None and self.stack[-1].key is None
