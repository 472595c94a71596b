"""What the readers of the parts share: typed access to items, and names, numbers and texts as syntax nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kcverify.diagnostics import Report
from kcverify.forms.items import Entry, Item, Listing, Mapping, RefusedError, Scalar
from kcverify.syntax import tree
from kcverify.syntax.parser import LIMITS, parse_fragment
from kcverify.syntax.repair import did_you_mean

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS = {Scalar: "one value", Listing: "a list", Mapping: "a mapping"}


class Reader:
    """Where faults are reported. Every method raises RefusedError for what it cannot use."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def refuse(self, slug: str, item: Item | Entry, *, hint: str = "", **holes: object) -> RefusedError:
        """Reports the fault at the item and returns the exception to raise."""
        self.report.add(slug, item.span, hint=hint, related=(), **holes)
        return RefusedError(slug)

    def wrong(self, item: Item, what: str, wanted: str) -> RefusedError:
        """The fault of an item of another kind than is wanted."""
        found = _KINDS[type(item)]
        if isinstance(item, Scalar):
            found = "nothing" if item.kind == "null" else f"`{item.text[:40]}`"
        return self.refuse("form_type", item, what=what, wanted=wanted, found=found)

    def mapping(self, item: Item, what: str, known: Iterable[str] | None = None) -> Mapping:
        """A mapping, with no other keys than the known ones."""
        if not isinstance(item, Mapping):
            raise self.wrong(item, what, "a mapping")
        if known is not None:
            words = list(known)
            for entry in item.entries:
                if entry.key.text not in words:
                    hint = did_you_mean(entry.key.text, words) or f"keys are: {', '.join(words)}"
                    raise self.refuse("form_key", entry.key, key=entry.key.text[:60], where=what, hint=hint)
        return item

    def need(self, mapping: Mapping, key: str, what: str) -> Item:
        """The value of a key that must be there."""
        value = mapping.get(key)
        if value is None:
            raise self.refuse("form_key_missing", mapping, where=what, key=key)
        return value

    def scalar(self, item: Item, what: str) -> Scalar:
        """One value that is not null."""
        if not isinstance(item, Scalar) or item.kind == "null":
            raise self.wrong(item, what, "one value")
        return item

    def listing(self, item: Item, what: str) -> tuple[Item, ...]:
        """The items of a list; one value stands for a list of one."""
        if isinstance(item, Listing):
            return item.items
        return (self.scalar(item, what),)

    def name(self, item: Item, what: str) -> tree.Name:
        """A name of the language."""
        scalar = self.scalar(item, what)
        if _NAME.fullmatch(scalar.text) is None:
            raise self.wrong(item, what, "a name of letters, digits and `_`")
        if len(scalar.text) > LIMITS.name:
            raise self.refuse("name_too_long", item, size=len(scalar.text), limit=LIMITS.name)
        return tree.Name(scalar.span, scalar.text)

    def names(self, item: Item, what: str) -> tuple[tree.Name, ...]:
        """A list of names that is not empty."""
        found = tuple(self.name(part, what) for part in self.listing(item, what))
        if not found:
            raise self.wrong(item, what, "at least one name")
        return found

    def quoted(self, item: Item, what: str) -> tree.Text:
        """A text that the language can quote."""
        scalar = self.scalar(item, what)
        if any(sign in scalar.text for sign in '"\r\n'):
            raise self.wrong(item, what, 'text on one line without `"`')
        return tree.Text(scalar.span, scalar.text)

    def fragment(self, kind: str, item: Item, what: str) -> Any:
        """A part of a contract in its own words."""
        scalar = self.scalar(item, what)
        node = parse_fragment(kind, scalar.text, scalar.span.source, scalar.place, self.report)
        if node is None:
            raise RefusedError(kind)
        return node

    def value(self, item: Item, what: str) -> tree.Value:
        """A number with its unit."""
        found: tree.Value = self.fragment("value_text", item, what)
        return found

    def range(self, item: Item, what: str) -> tree.Range:
        """`[low, high]` as a list of two, or any range as text."""
        if isinstance(item, Listing):
            if len(item.items) != 2:
                raise self.wrong(item, what, "a list of two numbers")
            low, high = (self.value(part, what) for part in item.items)
            return tree.Range(item.span, low, high, False, False, None)
        found: tree.Range = self.fragment("range_text", item, what)
        return found

    def entries(self, item: Item, what: str) -> Iterator[tuple[tree.Name, Entry]]:
        """Entries of a mapping with their keys as names."""
        for entry in self.mapping(item, what).entries:
            yield self.name(entry.key, f"a key of {what}"), entry
