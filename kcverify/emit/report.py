"""Renders the result of a measurement as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from kcverify.catalog.metrics import BY_NAME as METRICS
from kcverify.emit import svg
from kcverify.emit.causes import shown
from kcverify.emit.visible import inert, token, visible
from kcverify.resources import template_dir

_SYMBOLS = {
    "pass": "✓", "proved": "✓", "fail": "✕", "refuted": "✕", "inconclusive": "?", "unknown": "?",
    "unobservable": "⊘", "not_enforced": "○",
}  # fmt: skip
_QUANTILES = ("p50", "p90", "p99", "p99.9")


def _finite(*values: object) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def _as_number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _guarantee(index: int, row: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    bound, threshold = _as_number(row.get("bound")), _as_number(row.get("threshold"))
    picture = Markup("")
    if bound is not None and threshold is not None and _finite(bound, threshold):
        picture = svg.meter(f"bound-{index}", bound, threshold, "Bound against threshold", str(row["verdict"]).lower())
    links = row.get("chain") or []
    drawn = svg.chain(f"chain-{index}", links, str(row["verdict"])) if links else Markup("")
    lists = {name: row.get(name) or [] for name in ("routes", "would_do", "assumed")}
    scope, found = row.get("slice"), row.get("counterexample")
    told = next((s for s in measured.get("statements") or [] if (s["name"], s["slice"]) == (row["name"], scope)), None)
    lists["measured"] = told
    return {**row, **lists, "meter": picture, "drawing": drawn, "chain": links, "slice": scope, "counterexample": found}


def _evidence_meters(index: int, evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How far each side's log e-value is on its way to the threshold that decides."""
    found = []
    for side in ("fail", "pass"):
        value, limit = evidence.get(f"log_e_{side}"), evidence.get(f"log_threshold_{side}")
        if value is not None and limit is not None:
            drawn = Markup("")
            if _finite(value, limit):
                drawn = svg.meter(f"evidence-{index}-{side}", value, limit, f"Evidence to {side}", side)
            found.append({"side": side, "value": value, "limit": limit, "meter": drawn})
    return found


def _clause(index: int, row: Mapping[str, Any]) -> dict[str, Any]:
    evidence = row.get("evidence") or {}
    evidence = {} if evidence.get("kind") == "none" else evidence
    quantiles = row.get("quantiles") or {}
    return {
        **row,
        "evidence": evidence,
        "meters": _evidence_meters(index, evidence),
        "quantile_row": [quantiles.get(name) for name in _QUANTILES] if quantiles else None,
        "max": row.get("max"),
    }


def _by_slice(clauses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(clause.get("slice") for clause in clauses))
    return [{"slice": name, "clauses": [c for c in clauses if c.get("slice") == name]} for name in names]


def _thresholds(metric: str, clauses: Sequence[Mapping[str, Any]]) -> list[svg.Threshold]:
    """Distinct limits of the pointwise clauses on this metric; a limit on a mean is no line among rows."""
    found: dict[tuple[float, bool], list[str]] = {}
    for clause in clauses:
        if clause.get("metric") != metric or clause.get("statistic") == "mean":
            continue
        limit = clause.get("limit") or {}
        for side, upper in (("lower", False), ("upper", True)):
            value = _as_number(limit.get(side))
            if value is not None and math.isfinite(value):
                found.setdefault((value, upper), []).append(str(clause["name"]))
    form = {True: "≤", False: "≥"}
    return [
        svg.Threshold(f"{', '.join(dict.fromkeys(names))} {form[upper]} {svg.number(value)}", value, upper)
        for (value, upper), names in found.items()
    ]


def _histograms(measured: Mapping[str, Any], clauses: Sequence[Mapping[str, Any]]) -> list[Markup]:
    drawn = []
    for index, (metric, data) in enumerate((measured.get("histograms") or {}).items()):
        edges = [math.inf if edge is None else float(edge) for edge in data["edges"]]
        unit = METRICS[metric].dimension.value if metric in METRICS else ""
        counts, limits = data["counts"], _thresholds(metric, clauses)
        drawn.append(svg.histogram(f"histogram-{index}", metric, unit, edges, counts, limits))
    return drawn


def _witnesses(clauses: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Clauses with a worst row, the ones that failed first, then in the order of the contract."""
    rank = {"fail": 0, "inconclusive": 1}
    return sorted((c for c in clauses if c.get("max")), key=lambda c: rank.get(str(c["verdict"]), 2))


def _fingerprints(fingerprints: Mapping[str, Any]) -> dict[str, Any]:
    """Sides as columns, keys as rows; a row whose values differ is marked."""
    sides = {name: value if isinstance(value, Mapping) else {"": value} for name, value in fingerprints.items()}
    keys = list(dict.fromkeys(key for value in sides.values() for key in value))
    rows = [{"key": key, "values": [side.get(key) for side in sides.values()]} for key in keys]
    return {"sides": list(sides), "rows": [{**row, "differs": len(set(map(str, row["values"]))) > 1} for row in rows]}


def _view(result: Mapping[str, Any]) -> dict[str, Any]:
    measured = result["measured"]
    clauses = [_clause(i, row) for i, row in enumerate(measured.get("clauses") or [])]
    words = [str(clause["verdict"]) for clause in clauses]
    told = result.get("measured_guarantees") or {}
    return {
        **result,
        "measured": measured,
        "guarantees": [_guarantee(i, row, told) for i, row in enumerate(result.get("guarantees") or [])],
        "clauses": clauses,
        "groups": _by_slice(clauses),
        "tally": {word: words.count(word) for word in dict.fromkeys(words)},
        "histograms": _histograms(measured, clauses),
        "witnesses": _witnesses(clauses),
        "quantile_names": _QUANTILES,
        "fingerprint": _fingerprints(result.get("fingerprints") or {}),
        "causes_rows": shown(result["causes"]) if "causes" in result else [],
        "notes": [*(result.get("notes") or []), *(measured.get("notes") or [])],
        "measured_about": told.get("about") if told.get("statements") else None,
    }


def environment() -> jinja2.Environment:
    """Templates with the filters that every page uses; what is written into them is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_dir()), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=inert,
    )  # fmt: skip
    environment.filters.update(
        number=svg.number,
        exact=svg.plain,
        quantity=svg.quantity,
        visible=visible,
        token=token,
        symbol=lambda word: _SYMBOLS.get(str(word).lower(), ""),
    )
    return environment


def render_report(result: Mapping[str, Any]) -> str:
    """HTML text of the report; it loads nothing from anywhere and needs no script.

    `result`: `contract` (name, version, description, digest), `pair` (reference, candidate), `data` (any scalars),
    `complete`, `verdict`, `exit_code`, `measured_guarantees` (about, statements), `guarantees` (name, claim, verdict, bound, threshold, slack, reason, chain,
    routes), `measured` (the monitor's report), `fingerprints` (by side) and `kcverify`. A clause's `max` may carry
    `position`, `token_text` and `context` (`before`, `after`). Raises jinja2.UndefinedError or KeyError where a
    required key is missing.
    """
    return environment().get_template("report.html.j2").render(**_view(result))
