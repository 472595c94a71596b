"""The answer of `catalogue`: the tables of the language and of the prover."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from kcverify import __version__
from kcverify.catalog import lemmas, metrics, units
from kcverify.catalog.model import Lemma, Metric
from kcverify.codes import ROWS as CODES
from kcverify.elaborate.assumptions import FORMS
from kcverify.exact import decimal_exact
from kcverify.output.style import table

TABLES = ("metrics", "lemmas", "codes", "units", "assumptions")


def range_text(row: Metric) -> str:
    """The values that a metric can take."""
    low, high = row.range
    left = "(-inf" if low is None else f"[{decimal_exact(low)}"
    return f"{left}, {'inf)' if high is None else f'{decimal_exact(high)}]'}"


def arguments_text(row: Metric) -> str:
    """Arguments with their defaults."""
    shown = []
    for argument in row.arguments:
        default = argument.default
        value = decimal_exact(default) if isinstance(default, Fraction) else default
        shown.append(argument.name if value is None else f"{argument.name} = {value}")
    return ", ".join(shown)


def metric_data(row: Metric) -> dict[str, Any]:
    """A metric as plain data."""
    return {
        "name": row.name,
        "block": row.family.value if row.family.value != "claim" else "guarantee",
        "title": row.title,
        "definition": row.definition,
        "source": row.source,
        "unit": row.dimension.value or None,
        "direction": row.direction.value,
        "range": [None if end is None else decimal_exact(end) for end in row.range],
        "statistic": row.statistic.value if row.statistic is not None else None,
        "level": row.level.value,
        "arguments": [
            {
                "name": argument.name,
                "default": decimal_exact(argument.default)
                if isinstance(argument.default, Fraction)
                else argument.default,
                "values": list(argument.values),
            }
            for argument in row.arguments
        ],
        "inputs": [{"needs": c.inputs, "estimator": c.estimator.value} for c in row.carriers],
        "proof": row.quantity,
        "aliases": list(row.aliases),
    }


def lemma_data(row: Lemma) -> dict[str, Any]:
    """A lemma as plain data."""
    return {
        "name": row.name,
        "statement": row.statement,
        "premises": list(row.premises),
        "conclusion": row.conclusion,
        "parameters": list(row.parameters),
        "evidence": row.evidence.value,
        "attained": row.attained.witness if row.attained is not None else None,
        "argument": row.argument,
        "source": row.source,
        "requires": list(row.requires),
    }


def data(names: tuple[str, ...]) -> dict[str, Any]:
    """The chosen tables as plain data."""
    build: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "metrics": lambda: [metric_data(row) for row in metrics.ROWS],
        "lemmas": lambda: [lemma_data(row) for row in lemmas.ROWS],
        "codes": lambda: [
            {"id": row.id, "slug": row.slug, "severity": row.severity.value, "message": row.message, "why": row.why,
             "fix": row.fix, "bad": row.bad, "good": row.good}
            for row in CODES
        ],
        "units": lambda: [{"name": row.name, "dimension": row.dimension.value, "title": row.title} for row in units.ROWS],
        "assumptions": lambda: [{"name": name, "form": form.form} for name, form in FORMS.items()],
    }  # fmt: skip
    return {"kcverify": __version__, **{name: build[name]() for name in names}}


def text(names: tuple[str, ...]) -> str:
    """The chosen tables for a terminal."""
    rows: dict[str, Callable[[], list[tuple[str, ...]]]] = {
        "metrics": lambda: [("metric", "block", "unit", "good", "range", "what it is"), *(
            (row.name, row.family.value, row.dimension.value, row.direction.value, range_text(row), row.title)
            for row in metrics.ROWS)],
        "lemmas": lambda: [("lemma", "from", "to", "evidence", "statement"), *(
            (row.name, ", ".join(row.premises), row.conclusion, row.evidence.value, row.statement) for row in lemmas.ROWS)],
        "codes": lambda: [("code", "slug", "severity", "message"), *(
            (row.id, row.slug, row.severity.value, row.message) for row in CODES)],
        "units": lambda: [("unit", "of", "what it is"), *(
            (row.name, row.dimension.value or "a number", row.title) for row in units.ROWS)],
        "assumptions": lambda: [("assumption", "form"), *((name, form.form) for name, form in FORMS.items())],
    }  # fmt: skip
    return "\n\n".join("\n".join(table(rows[name]())) for name in names)
