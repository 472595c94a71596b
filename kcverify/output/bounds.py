"""The answer of `bounds`: one line per quantity with its bound, its attained worst case and its lemma."""

from __future__ import annotations

from typing import Any

from kcverify.bounds.calculator import Line
from kcverify.bounds.inverse import BudgetLine
from kcverify.exact import decimal_down, decimal_near, decimal_up, monitor_float_down, monitor_float_up
from kcverify.output.style import table


def data(lines: list[Line]) -> dict[str, Any]:
    """`{key: {bound, attained, lemma, unit}}`, numbers as doubles on the safe side; `reason` where nothing follows."""
    out: dict[str, Any] = {}
    for line in lines:
        safe, inner = (monitor_float_up, monitor_float_down) if line.upper else (monitor_float_down, monitor_float_up)
        entry: dict[str, Any] = {
            "bound": None if line.bound is None else safe(line.bound),
            "attained": None if line.attained is None else inner(line.attained),
            "lemma": line.lemma,
            "unit": line.unit,
        }
        if line.bound is None:
            entry["reason"] = line.reason
        out[line.key] = entry
    return out


def text(lines: list[Line]) -> str:
    """A table for a terminal."""
    rows = [("quantity", "bound", "attained", "unit", "lemma")]
    for line in lines:
        if line.bound is None:
            rows.append((line.key, "none", "", line.unit, line.reason))
            continue
        up = decimal_up if line.upper else decimal_down
        bound = ("<= " if line.upper else ">= ") + up(line.bound, 8)
        attained = "" if line.attained is None else decimal_near(line.attained, 8)
        rows.append((line.key, bound, attained, line.unit, line.lemma or ""))
    return "\n".join(table(rows))


def inverse_data(lines: list[BudgetLine]) -> dict[str, Any]:
    """`{key: {budget, exact, lemmas, unit}}`, doubles rounded down; `reason` where no budget is left."""
    out: dict[str, Any] = {}
    for line in lines:
        entry: dict[str, Any] = {
            "budget": None if line.budget is None else monitor_float_down(line.budget),
            "exact": None if line.budget is None else str(line.budget),
            "lemmas": list(line.lemmas),
            "unit": line.unit,
        }
        if line.budget is None:
            entry["reason"] = line.reason
        out[line.key] = entry
    return out


def inverse_text(lines: list[BudgetLine]) -> str:
    """A table for a terminal."""
    rows = [("limit", "budget", "unit", "chain")]
    for line in lines:
        if line.budget is None:
            rows.append((line.key, "none", line.unit, line.reason))
        else:
            rows.append((line.key, "<= " + decimal_down(line.budget, 8), line.unit, ", ".join(line.lemmas)))
    return "\n".join(table(rows))
