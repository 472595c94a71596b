"""What every output of text that others wrote must keep: nothing for a terminal or a CI runner to obey, no new markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from hostile_words import WORDS, unprintable

EVERY = (
    "\n".join(w for w in WORDS if len(w) < 100)
    + "\n::set-output name=a::b\n##[add-mask]m ##vso[task.x]y '; touch pwned; '"
)
"""All of them in one text, of many lines."""
HELD = re.sub("[\ud800-\udfff]", "\ufffd", EVERY)
"""The same as far as UTF-8 can hold it."""

OWN = {("i", ""), ("i", "class"), ("i", "title")}
"""Our own tags around what does not show itself."""


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, name) for name, _ in attrs} | {(tag, "")}


def obeyed(text: str) -> list[str]:
    """What of a text a terminal or a runner of GitHub, Azure or TeamCity would obey."""
    lines = re.split(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", text)
    commands = [line for line in lines if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)]
    return [*commands, *map(repr, unprintable(text))]


def shape(value: Any) -> Any:
    """A document with every text taken out."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    return [shape(v) for v in value] if isinstance(value, list) else type(value).__name__


def hostile(value: Any, keep: frozenset[str] = frozenset()) -> Any:
    """The same data with every text replaced but those under the keys of `keep`."""
    if isinstance(value, dict):
        return {k: v if k in keep else hostile(v, keep) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v, keep) for v in value]
    return EVERY if isinstance(value, str) else value


def lines(rows: list[Any]) -> str:
    """JSON lines; halves of surrogate pairs stay escaped."""
    return "".join(json.dumps(row) + "\n" for row in rows)
