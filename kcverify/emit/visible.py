"""Shows text that others wrote: control, bidirectional and invisible characters by their number, blanks by a sign."""

from __future__ import annotations

import re
import unicodedata

from markupsafe import Markup, escape

_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "⇥"}
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""What could hide text, reverse it or end a line: shown by its number wherever it stands in a page."""


def inert(value: object) -> object:
    """`value`, where it is a text, without a character that would change how the rest of a page is read.

    Markup stays markup: its tags hold no such character.
    """
    if not isinstance(value, str) or (value.isascii() and value.isprintable()) or not _HIDDEN.search(value):
        return value
    shown = _HIDDEN.sub(lambda found: _code(found[0]), value)
    return Markup(shown) if isinstance(value, Markup) else shown


def visible(text: str, spaces: bool = False) -> str:
    """`text` on one line with every character that does not show itself written out; with `spaces`, blanks too.

    A mark that would join the character before the text stands on a dotted circle.
    """
    alone = "◌" if text and unicodedata.combining(text[0]) else ""
    return alone + "".join(_sign(c, spaces) for c in text)


def token(text: str, most: int = 48) -> Markup:
    """A token on its own: like `visible` with blanks, what is written out set apart, long ones cut with their length."""
    if not text:
        return Markup('<i class="sign" title="empty text">∅</i>')
    parts = [Markup("◌")] if unicodedata.combining(text[0]) else []
    for c in text[:most]:
        shown = _sign(c, True)
        parts.append(escape(c) if shown == c else Markup('<i class="sign" title="{}">{}</i>').format(_name(c), shown))
    if len(text) > most:
        parts.append(Markup('<i class="sign">… {} characters</i>').format(len(text)))
    return Markup("").join(parts)


def _sign(c: str, spaces: bool) -> str:
    if c == " ":
        return "·" if spaces else c
    return c if c.isprintable() else _SIGNS.get(c) or _code(c)


def _code(c: str) -> str:
    number = ord(c)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def _name(c: str) -> str:
    return f"U+{ord(c):04X} {unicodedata.name(c, 'control character').lower()}"
