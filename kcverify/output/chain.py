"""A proof chain as rows: each quantity, its bound, and the lemma that gave it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kcverify.bounds.graph import Fact
from kcverify.catalog.model import Mode
from kcverify.exact import decimal_down, decimal_up

DIGITS = 6


def shown(value: Fraction, upper: bool, digits: int = DIGITS) -> str:
    """A bound rounded to its safe side."""
    return decimal_up(value, digits) if upper else decimal_down(value, digits)


def percent(x: Fraction) -> str:
    """A share as an exact percentage where it is short, else three digits rounded up."""
    return f"{decimal_up(x * 100, 6)}%"


def links(fact: Fact) -> list[dict[str, Any]]:
    """Every fact of the chain in order: quantity, statistic, bound, unit, exception, lemma and its statement."""
    out = []
    for f in fact.chain():
        out.append(
            {
                "quantity": f.node.quantity,
                "statistic": {Mode.POINT: "max", Mode.MEAN: "mean", Mode.SEQUENCE: "response"}[f.node.mode],
                "relation": "<=" if f.quantity.upper else ">=",
                "value": shown(f.value, f.quantity.upper),
                "exact": str(f.value),
                "unit": f.quantity.dimension.value,
                "exception": str(f.node.rho),
                "lemma": f.lemma.name if f.lemma is not None else "",
                "detail": f.lemma.statement if f.lemma is not None else f"clause {f.label}",
                "source": f.label,
            }
        )
    return out


def rows(fact: Fact) -> list[tuple[str, str, str]]:
    """Table rows of a chain: name, inequality, why."""
    out = []
    for f, link in zip(fact.chain(), links(fact), strict=True):
        what = ("mean " if f.node.mode is Mode.MEAN else "") + f.node.quantity
        text = f"{what} {link['relation']} {link['value']}" + (
            f" {link['unit']}" if link["unit"] not in ("", "reward") else ""
        )
        if f.node.mode is Mode.POINT and f.node.rho:
            text += f" except {percent(f.node.rho)}"
        out.append((link["source"] or link["lemma"], text, "clause" if not link["lemma"] else link["detail"]))
    return out
