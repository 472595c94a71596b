"""Renders one kernel under one contract as a self-contained HTML page: residual by size, readings, signatures, derivation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kcverify.emit import svg
from kcverify.emit.report import environment

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FLOOR = 640.0, 300.0, 70.0, 200.0, 14.0, 256.0
_APART = 16.0
"""Between the lines of two labels."""

_DASHES = {"measured": "", "declared": "6 4", "coerced": "2 3"}


def render(found: Mapping[str, Any]) -> str:
    """HTML text of an answer of `conformance run` with its `reproduce` command; it loads nothing and needs no script.

    Raises KeyError or jinja2.UndefinedError where a key is missing.
    """
    readings = sorted(found["readings"], key=lambda r: r["verdict"] == "within_tolerance")
    return environment().get_template("conformance.html.j2").render(
        **{**found, "readings": readings},
        plots=[_plot(i, s) for i, s in enumerate(found["signatures"]) if len(s["ladder"]) > 1],
    )  # fmt: skip


def _plot(index: int, signature: Mapping[str, Any]) -> dict[str, Any]:
    """Residual, declared limit and what coerced accumulators would allow, by size, both axes logarithmic; and the same as rows."""
    ladder = signature["ladder"]
    names = [n for n in ladder[0]["coerced"] if any(row["coerced"][n] is not None for row in ladder)]
    curves = [
        ("measured", "measured", [(r["size"], r["residual"]) for r in ladder]),
        ("declared limit", "declared", [(r["size"], r["limit"]) for r in ladder]),
        *((f"{', '.join(alike)} sums allow", "coerced", list(line)) for line, alike in _alike(ladder, names).items()),
    ]
    return {
        "signature": signature,
        "names": names,
        "drawing": _drawing(f"growth-{index}", signature["signature"], curves),
    }


def _alike(
    ladder: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[tuple[tuple[int, float | None], ...], list[str]]:
    """Curves of coerced accumulators with the formats that they are about: two of one unit roundoff have one curve."""
    found: dict[tuple[tuple[int, float | None], ...], list[str]] = {}
    for name in names:
        found.setdefault(tuple((r["size"], r["coerced"][name]) for r in ladder), []).append(name)
    return found


Curve = tuple[str, str, list[tuple[int, float | None]]]


def _drawing(name: str, title: str, curves: Sequence[Curve]) -> Markup:
    points = [(x, y) for _, _, line in curves for x, y in line if y is not None and y > 0 and math.isfinite(y)]
    if len(points) < 2:
        return Markup("")
    low, high = (math.log10(f(y for _, y in points)) for f in (min, max))
    left, right = (math.log2(f(x for x, _ in points)) for f in (min, max))
    high, right = max(high, low + 1), max(right, left + 1)

    def at(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (math.log2(x) - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)
        return across, _FLOOR - (math.log10(y) - low) / (high - low) * (_FLOOR - _TOP)

    parts = [svg.line(_LEFT, _FLOOR, _WIDTH - _RIGHT, _FLOOR, "axis")]
    for x in sorted({x for x, _ in points}):
        parts.append(svg.text(at(x, points[0][1])[0], _FLOOR + 16, svg.number(x), "tick", "middle"))
    for decade in range(math.ceil(low), math.floor(high) + 1):
        y = at(points[0][0], 10.0**decade)[1]
        parts += [
            svg.line(_LEFT, y, _WIDTH - _RIGHT, y, "gridline"),
            svg.text(_LEFT - 6, y + 4, svg.number(10.0**decade), "tick", "end"),
        ]
    ends: list[tuple[float, str]] = []
    for label, kind, line in curves:
        drawn = [at(x, y) for x, y in line if y is not None and y > 0 and math.isfinite(y)]
        if not drawn:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        form = '<polyline points="{}" fill="none" stroke="currentColor" stroke-width="{}" stroke-dasharray="{}"/>'
        parts.append(Markup(form).format(path, 2.5 if kind == "measured" else 1.2, _DASHES[kind]))
        ends.append((drawn[-1][1] + 4, label))
    parts += [svg.text(_WIDTH - _RIGHT + 8, y, label, "label") for y, label in _spread(ends)]
    description = (
        f"{len(curves)} curves between sizes {svg.number(2**left)} and {svg.number(2**right)}, both axes logarithmic"
    )
    return svg.picture(name, _WIDTH, _HEIGHT, title, description, parts)


def _spread(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Labels at their curves' ends, moved apart until none covers another and none lies below the axis."""
    placed: list[tuple[float, str]] = []
    for y, label in sorted(labels):
        placed.append((max(y, placed[-1][0] + _APART if placed else y), label))
    most = _FLOOR
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = (min(placed[i][0], most), placed[i][1])
        most = placed[i][0] - _APART
    return placed
