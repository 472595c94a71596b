"""Words that mean something to some reader of text: each is harmless only where it stays text."""

from __future__ import annotations

import unicodedata

WORDS: tuple[str, ...] = (
    '"; DROP TABLE events; --', "'); DELETE FROM evidence; --", "{{7*7}}", "{{ config.__class__ }}", "{% include '/etc/passwd' %}",
    "${7*7}", "$(touch pwned)", "`touch pwned`", "; touch pwned", "| touch pwned", "&& touch pwned", "</script><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>", "]]><x>", "&lt;script&gt;", "' onmouseover='alert(1)", "javascript:alert(1)", "'''", '"""', "\\", "\\\\'",
    "'''\nimport os; os.mkdir('pwned')\n'''", "\"\"\"\nimport os\nos.mkdir('pwned')\n", "__import__('os').mkdir('pwned')", "%s%n%x", "#{7*7}",
    "line\nbreak", "carriage\rreturn", "tab\tstop", "nul\x00byte", "\x1b[2J\x1b]0;owned\x07", "\x9b2J", "\x7f\x08\x08", "\u202etxt.exe", "\u2066a\u2069",
    "a\u2028b", "a\u2029b", "\ufeffbom", "zero\u200bwidth", "\ud800", "\udfff x", "\U000e0041tag", "é\u0301\u0300", "../../pwned", "/etc/passwd",
    "..\\..\\pwned", "-rf", "--help", "-", "=cmd|' /C calc'!A0", "@SUM(1+1)", "::error file=x::y", "::set-output name=a::b", "%0A::warning::x",
    "# comment", "a: b", "- item", "!!python/object/apply:os.mkdir ['pwned']", "&anchor", "*alias", "yes", "null", "0x10", "1e999", "",
    " ", "\n", "long " * 4000, "{{`{{7*7}}`}}", "}} or vector(1)", "x\r\nSet-Cookie: a=b", "http://169.254.169.254/",
)  # fmt: skip

MARK = "pwned"
"""A file that exists only if a word was run."""

ONE_LINE = tuple(w for w in WORDS if w and not any(c in '"\n\r' or "\ud800" <= c <= "\udfff" for c in w))
"""Those that a string of a contract can hold at all."""


def unprintable(text: str) -> set[str]:
    """Characters that a terminal obeys instead of showing them; a page must not hold them either."""
    return {
        c for c in text if c not in "\n\t" and (unicodedata.category(c) in ("Cc", "Cf", "Cs") or c in "\u2028\u2029")
    }
