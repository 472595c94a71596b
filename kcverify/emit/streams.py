"""Renders the comparison of two streams as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcverify.emit.report import environment

_STYLES = {
    "comparable": "pass", "partly_comparable": "fail", "not_comparable": "fail", "unobservable": "unobservable",
    "incomplete": "inconclusive",
    "error": "fail", "warning": "inconclusive", "note": "not_enforced",
}  # fmt: skip


def shown(value: object) -> str:
    """A number with four digits; `-` for none, texts as they are."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def render_comparison(answer: Mapping[str, Any]) -> str:
    """HTML text of the answer of `compare`; it loads nothing from anywhere and needs no script.

    `answer` is what `kcverify compare --format json` prints. Raises jinja2.UndefinedError where a key is missing.
    """
    pages = environment()
    pages.filters["shown"] = shown
    parts = [
        {"title": title, **numbers, "witnesses": [{"metric": r["metric"], **w} for r in numbers["table"][:2] for w in r["worst"][:5]]}
        for title, numbers in (("Drift", answer["drift"]), ("Not drift: what the findings explain", answer["explained"]))
        if numbers is not None and (numbers["table"] or numbers["bounds"])
    ]  # fmt: skip
    return pages.get_template("streams.html.j2").render(**answer, parts=parts, style=_STYLES)
