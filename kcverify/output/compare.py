"""The answer of `bounds --compare published`: what is in print beside the tight form."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import Any

from kcverify.bounds.published import Compared, compared
from kcverify.bounds.trust_region import ROWS as REGIONS
from kcverify.bounds.trust_region import Region, applies, published, tight
from kcverify.catalog.quantities import BY_NAME
from kcverify.exact import decimal_near, monitor_float_up
from kcverify.output.style import plural, table


def rows_of(found: list[Compared], sequence: bool) -> list[tuple[str, str, Fraction, Fraction]]:
    """Lemma, statement, published and tight value of the rows about tokens, or of those about whole responses."""
    return [
        (r.lemma.name, f"{r.lemma.statement}; in print: {r.lemma.published_as}", r.published, r.tight)
        for r in found
        if BY_NAME[r.lemma.conclusion].sequence is sequence
    ]


def region_rows(region: Region) -> list[tuple[str, str, Fraction | None, Fraction]]:
    """Name, statement, published and tight value of every trust-region row that the region feeds."""
    return [(r.name, r.statement, published(r, region), tight(r, region)) for r in REGIONS if applies(r, region)]


def data(span: Fraction, region: Region, horizon: int) -> dict[str, Any]:
    """All tables as plain data, doubles rounded up; rows about whole responses are at `horizon` tokens."""
    found = compared(span, horizon, region.reward_range)
    rows: list[tuple[str, str, Fraction | None, Fraction]] = [
        *rows_of(found, False),
        *rows_of(found, True),
        *region_rows(region),
    ]
    return {
        "span": str(span),
        "horizon": horizon,
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


def text(span: Fraction, region: Region, horizon: int) -> str:
    """All tables for a terminal."""
    found, reward = compared(span, horizon, region.reward_range), decimal_near(region.reward_range, 6)
    head = ("bound", "published", "tight", "ratio", "form")
    lines = [f"one token at effective span {decimal_near(span, 6)} nat", ""]
    lines += table([head, *(_cells(*r) for r in rows_of(found, False))], indent=2, right=frozenset((1, 2, 3)))
    where = f"reward in [0, {reward}], advantage in [-1, 1], score norm 1"
    lines += ["", f"a response of {plural(horizon, 'such token')}, {where}", ""]
    lines += table([head, *(_cells(*r) for r in rows_of(found, True))], indent=2, right=frozenset((1, 2, 3)))
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
