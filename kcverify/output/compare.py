"""The answer of `bounds --compare published`: what is in print beside the tight form."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import Any

from kcverify.bounds.published import HORIZON, compared
from kcverify.bounds.trust_region import ROWS as REGIONS
from kcverify.bounds.trust_region import Region, applies, published, tight
from kcverify.catalog.quantities import BY_NAME
from kcverify.exact import decimal_near, monitor_float_up
from kcverify.output.style import table


def token_rows(span: Fraction, sequence: bool = False) -> list[tuple[str, str, Fraction, Fraction]]:
    """Lemma, statement, published and tight value of every row with a published form, at one effective span."""
    found = [r for r in compared(span) if BY_NAME[r.lemma.conclusion].sequence is sequence]
    return [
        (r.lemma.name, f"{r.lemma.statement}; in print: {r.lemma.published_as}", r.published, r.tight) for r in found
    ]


def region_rows(region: Region) -> list[tuple[str, str, Fraction | None, Fraction]]:
    """Name, statement, published and tight value of every trust-region row that the region feeds."""
    return [(r.name, r.statement, published(r, region), tight(r, region)) for r in REGIONS if applies(r, region)]


def data(span: Fraction, region: Region) -> dict[str, Any]:
    """Both tables as plain data, doubles rounded up."""
    rows: list[tuple[str, str, Fraction | None, Fraction]] = [
        *token_rows(span),
        *token_rows(span, True),
        *region_rows(region),
    ]
    return {
        "span": str(span),
        "region": {f.name: None if (v := getattr(region, f.name)) is None else str(v) for f in fields(region)},
        "bounds": {
            name: {
                "statement": text,
                "published": None if old is None else monitor_float_up(old),
                "tight": monitor_float_up(new),
            }
            for name, text, old, new in rows
        },
    }


def text(span: Fraction, region: Region) -> str:
    """Both tables for a terminal."""
    head = ("bound", "published", "tight", "ratio", "form")
    lines = [f"one token at effective span {decimal_near(span, 6)} nat", ""]
    lines += table([head, *(_cells(*r) for r in token_rows(span))], indent=2, right=frozenset((1, 2, 3)))
    lines += ["", f"a response of {HORIZON} such tokens, reward in [0, 1], advantage in [-1, 1], score norm 1", ""]
    lines += table([head, *(_cells(*r) for r in token_rows(span, True))], indent=2, right=frozenset((1, 2, 3)))
    known = ", ".join(
        f"{f.name} = {decimal_near(Fraction(v), 6)}"
        for f in fields(region)
        if (v := getattr(region, f.name)) is not None
    )
    lines += ["", f"surrogate objective against true gain: {known}", ""]
    lines += table([head, *(_cells(*r) for r in region_rows(region))], indent=2, right=frozenset((1, 2, 3)))
    if any(new > region.reward_range for _, _, _, new in region_rows(region)):
        lines += ["", "  a bound above the reward range says nothing about this update"]
    return "\n".join(lines)


def _cells(name: str, form: str, old: Fraction | None, new: Fraction) -> tuple[str, str, str, str, str]:
    ratio = "" if old is None or new == 0 else decimal_near(old / new, 3)
    return name, "" if old is None else decimal_near(old, 4), decimal_near(new, 4), ratio, form
