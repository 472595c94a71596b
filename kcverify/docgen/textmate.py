"""The TextMate grammar of `.kc` files, built from the tables of the language."""

from __future__ import annotations

from typing import Any

from kcverify.catalog import metrics, units
from kcverify.elaborate.assumptions import FORMS, ROLES, SAMPLERS, STORAGE
from kcverify.elaborate.clauses import SEVERITIES
from kcverify.elaborate.kernel import DTYPES, ERRORS
from kcverify.elaborate.policy import ACTIONS, FINGERPRINT, STAGES
from kcverify.elaborate.slices import COUNTS
from kcverify.elaborate.words import FUNCTIONS
from kcverify.syntax.repair import BLOCKS, LINES

_MODIFIERS = (
    "except",
    "on",
    "at",
    "confidence",
    "over",
    "unit",
    "when",
    "in",
    "and",
    "or",
    "not",
    "within",
    "independent",
)
_HEADERS = ("version", "extends")
_STATISTICS = ("max", "mean", "rate")


def _words(*words: str) -> str:
    """A pattern of whole words, the longest first."""
    return rf"\b(?:{'|'.join(sorted(set(words), key=lambda word: (-len(word), word)))})\b"


def _rule(name: str, match: str) -> dict[str, str]:
    return {"name": f"{name}.kc", "match": match}


def grammar() -> dict[str, Any]:
    """The grammar as plain data."""
    names = {name.partition("(")[0] for name in metrics.BY_NAME}
    units_of_words = [row.name for row in units.ROWS if row.name != "%"]
    return {
        "name": "kcverify contract",
        "scopeName": "source.kc",
        "fileTypes": ["kc"],
        "patterns": [
            _rule("comment.line.number-sign", "#.*$"),
            _rule("string.quoted.double", r'"[^"\r\n]*"'),
            _rule("constant.other.class", r"\bC-[A-Z]{3}-[0-9]{2}\b"),
            {
                "match": rf"^\s*({_words(*LINES)})(?:\s+({_words('contract')}))?",
                "captures": {"1": {"name": "keyword.control.kc"}, "2": {"name": "keyword.control.kc"}},
            },
            {
                "match": rf"^\s*({_words(*BLOCKS)})\s*(?=\{{)",
                "captures": {"1": {"name": "entity.name.section.kc"}},
            },
            _rule("constant.language.severity", _words(*SEVERITIES)),
            _rule("support.function.metric", _words(*names, *ERRORS)),
            _rule("support.function", _words("tag", *FUNCTIONS)),
            _rule("constant.numeric", r"\b[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][+-]?[0-9]+)?"),
            _rule("keyword.other.unit", rf"%|(?<=[0-9)\s]){_words(*units_of_words)}"),
            _rule("keyword.operator.word", _words(*_MODIFIERS, *_HEADERS)),
            _rule("keyword.other.statistic", rf"{_words(*_STATISTICS)}|\bp[0-9]+(?:\.[0-9]+)?\b"),
            _rule("variable.language", _words(*FORMS, *COUNTS, *ROLES)),
            _rule("constant.language", _words(*ACTIONS, *STAGES, *SAMPLERS, *STORAGE, *DTYPES, *FINGERPRINT)),
            _rule("keyword.operator", r"->|\|\||<=|>=|==|!=|[<>=+\-*/^?]"),
        ],
    }
