"""Renders the comparison of two streams as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kcverify.emit.report import environment

_STYLES = {
    "comparable": "pass", "not_comparable": "fail", "unobservable": "unobservable",
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
    numbers = answer["drift"] or answer["explained"]
    worst = [{"metric": r["metric"], **w} for r in (numbers or {"table": []})["table"][:2] for w in r["worst"][:5]]
    return pages.get_template("streams.html.j2").render(**answer, numbers=numbers, worst=worst, style=_STYLES)
