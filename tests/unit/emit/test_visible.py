"""Text of others: what could deceive a reader is written out, and nothing else changes."""

from __future__ import annotations

import html
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from kcverify.emit.report import environment
from kcverify.emit.visible import inert, token, visible

ANY = st.text(st.characters(), max_size=40)  # surrogates included
DECEIVING = {"\u202e", "\u2066", "\u200b", "\u200f", "\x1b", "\x00", "\ufeff", "\u2028", "\ud800", "\U000e0041"}


@given(ANY)
def test_a_text_in_a_page_holds_nothing_that_deceives(text: str) -> None:
    shown = inert(text)
    assert isinstance(shown, str)
    assert not [c for c in shown if c in DECEIVING or (unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n")]
    shown.encode()
    if text.isprintable():
        assert shown == text or any(c in text for c in "\u2060\ufff9")
    page = environment().from_string("<p title='{{ t }}'>{{ t }}</p>").render(t=text)
    inside = page.removeprefix("<p title='").removesuffix("</p>")
    assert "<" not in inside and inside.count("'") == 1
    assert html.unescape(inside.split("'>", 1)[1]) == html.unescape(str(shown.replace("&", "&amp;")))


@given(ANY)
def test_a_token_is_one_line_of_printable_text(text: str) -> None:
    for shown in (visible(text), visible(text, spaces=True)):
        assert shown.isprintable()
    drawn = token(text)
    assert isinstance(drawn, Markup) and drawn.isprintable()
    assert drawn.replace("<i class=", "").replace("</i>", "").count("<") == 0


def test_what_is_written_out() -> None:
    assert inert("a\u202eb\nc") == "a\\u202eb\nc"
    assert inert(Markup("<b>\u2066</b>")) == Markup("<b>\\u2066</b>") and inert(7) == 7
    assert visible("\u0301a") == "◌\u0301a"
    assert "U+202E right-to-left override" in token("\u202e") and "∅" in token("")
    assert "… 60 characters" in token("x" * 60)
