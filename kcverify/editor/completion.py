"""Words that may stand at a place, from the text before it: it works in a line that does not parse yet."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kcverify.catalog import metrics, units
from kcverify.catalog.model import Family, Metric
from kcverify.editor.document import Document, items
from kcverify.elaborate.assumptions import FORMS, ROLES
from kcverify.elaborate.clauses import SEVERITIES
from kcverify.elaborate.kernel import DISTRIBUTIONS, DTYPES, ERRORS
from kcverify.elaborate.policy import ACTIONS, FINGERPRINT, STAGES
from kcverify.elaborate.slices import COUNTS
from kcverify.syntax import tree
from kcverify.syntax.repair import BLOCKS, LINES
from kcverify.syntax.scan import scan

_FAMILIES = ("numerical", "statistical", "runtime", "guarantee")
_MODIFIERS = ("except", "on", "at confidence", "over", "unit", "when", "->")
_OPTIONS = ("false_alarm_every", "dwell", "recover")
_STAGE_FIELDS = ("data", "min", "mirror", "for", "traffic", "hold", "stable")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True)
class Suggestion:
    """One word, what kind of thing it is, what it means, and the text to insert where that is another."""

    label: str
    kind: str
    detail: str = ""
    insert: str = ""


def complete(document: Document, offset: int) -> list[Suggestion]:
    """Words that may stand at an offset."""
    text = document.source.text[:offset]
    start = max(text.rfind("\n"), text.rfind(";"), text.rfind("{")) + 1
    line = text[start:]
    if "#" in re.sub(r'"[^"]*"', "", line) or line.count('"') % 2:
        return []
    before = _WORD.sub("", line)
    block = _block(text)
    node = _contract(document, offset)
    if not block:
        return _top(before, node)
    if block in _FAMILIES:
        return _clause(block, before, node)
    return _inside(block, before, node)


def _block(text: str) -> str:
    """Keyword of the innermost block that is open at the end of the text."""
    found = scan(text)
    words = [re.search(r"(\w+)[ \t]*$", text[max(0, at - 60) : at]) for at in found.unmatched]
    return words[-1][1] if words and words[-1] is not None else ""


def _contract(document: Document, offset: int) -> tree.Contract | None:
    """The contract whose header is the last one before an offset."""
    before = [node for node in document.tree.contracts if node.header.span.start <= offset]
    return before[-1] if before else None


def _words(words: tuple[str, ...], kind: str, detail: str = "") -> list[Suggestion]:
    return [Suggestion(word, kind, detail) for word in words]


def _top(before: str, node: tree.Contract | None) -> list[Suggestion]:
    if not before.strip():
        return _words((*BLOCKS, *LINES), "keyword")
    if re.match(r"\s*slice\s+\w+\s*=", before):
        return [
            *_words(COUNTS, "field"),
            Suggestion("tag", "function", "", 'tag("")'),
            *_words(("and", "or", "not"), "keyword"),
        ]
    if re.match(r"\s*split\b", before) and node is not None:
        return [
            Suggestion(clause.name.text, "clause")
            for block in items(node, tree.Clauses)
            for clause in block.clauses
            if isinstance(clause.test, tree.Compared) and isinstance(clause.test.value, tree.Hole)
        ]
    return []


def _clause(block: str, before: str, node: tree.Contract | None) -> list[Suggestion]:
    _, colon, rest = before.partition(":")
    if not colon:
        return []
    if re.search(r"\bon\s+(\w+\s*,\s*)*$", rest):
        return (
            [Suggestion(item.name.text, "slice", item.predicate.span.text) for item in items(node, tree.Slice)]
            if node
            else []
        )
    if rest.rstrip().endswith("->"):
        return _words(SEVERITIES, "severity")
    if re.search(r"\bunit\s+$", rest):
        return _words(("request", "token"), "keyword")
    if re.search(r"\bwhen\s+$", rest):
        return _words(("temperature", "horizon"), "assumption")
    if not re.search(r"<=|>=|\bin\b", rest):
        return [*_metrics(block), *_words(("max", "mean", "p99"), "statistic")]
    used = re.search(r"([a-z_0-9]+)\s*(\([^)]*\))?\s*(<=|>=|\bin\b)", rest)
    row = next((r for name, r in metrics.BY_NAME.items() if used and name.partition("(")[0] == used[1]), None)
    return [*_units(row, rest), *_words(_MODIFIERS, "keyword"), *_numbers(node)]


def _metrics(block: str) -> list[Suggestion]:
    families = (Family.CLAIM, Family.NUMERICAL, Family.STATISTICAL) if block == "guarantee" else (Family(block),)
    return [Suggestion(row.name, "metric", row.title) for row in metrics.ROWS if row.family in families]


def _units(row: Metric | None, rest: str) -> list[Suggestion]:
    """Units that fit after a number: of the metric, or of what the modifier before it takes."""
    if not re.search(r"[0-9)]\s*$", rest):
        return []
    keyword = re.findall(r"\b(except|confidence|over)\b", rest)
    if keyword and keyword[-1] == "over":
        return [Suggestion(u.name, "unit", u.title) for u in units.ROWS if u.dimension.value == "s"]
    if keyword or row is None:
        return [Suggestion("%", "unit", "hundredth")]
    return [Suggestion(u.name, "unit", u.title) for u in units.of_dimension(row.dimension)]


def _numbers(node: tree.Contract | None) -> list[Suggestion]:
    """Parameters and assumptions, which a threshold may use."""
    if node is None:
        return []
    found = [Suggestion(item.name.text, "parameter", item.value.span.text) for item in items(node, tree.Param)]
    lines = [line for block in items(node, tree.Assume) for line in block.assumptions]
    return found + [Suggestion(line.name.text, "assumption", " ".join(line.span.text.split())) for line in lines]


def _inside(block: str, before: str, node: tree.Contract | None) -> list[Suggestion]:
    """Words inside the other blocks."""
    first = not before.strip()
    if block == "assume":
        return [Suggestion(name, "assumption", form.form, form.form) for name, form in FORMS.items()] if first else []
    if block == "pair":
        return _words(ROLES, "role") if first else []
    if block == "observability":
        if first:
            return _words(("trace", "fingerprint", "replay within"), "keyword")
        return (
            _words(FINGERPRINT, "field")
            if "fingerprint" in before
            else _words((*COUNTS, "request_id", "tags"), "field")
        )
    if block == "escalate":
        if first:
            return _words(SEVERITIES, "severity")
        return _words(_OPTIONS, "field") if "," in before else _words(ACTIONS, "action")
    if block == "promote":
        return _words(STAGES, "stage") if first else []
    if block in STAGES:
        return _words(_STAGE_FIELDS, "field")
    words = {"tolerance": ERRORS, "scope": DTYPES, "oracle": DTYPES, "measure": DISTRIBUTIONS}
    return _words(words.get(block, ()), "word")
