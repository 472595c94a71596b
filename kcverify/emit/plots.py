"""Draws points, bars with intervals and shaded tables as inline SVG, in the colours of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kcverify.emit.svg import _line, _picture, _rect, _text, _ticks, number

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640.0, 320.0, 62.0, 14.0, 16.0, 42.0
_FLOOR = _HEIGHT - _BOTTOM


@dataclass(frozen=True)
class Point:
    """One mark of a scatter plot: its place, its kind (a class of the style sheet) and what its title says."""

    x: float
    y: float
    kind: str
    title: str
    label: str = ""


def _axis(low: float, high: float, start: float, stop: float, logarithmic: bool) -> Callable[[float], float]:
    turn: Callable[[float], float] = math.log if logarithmic else float
    first, last = turn(low), turn(high)
    wide = last - first or 1.0
    return lambda v: start + (stop - start) * (turn(v) - first) / wide


def _ends(values: Sequence[float]) -> tuple[float, float, bool]:
    """Range of an axis, and whether it is logarithmic: only where every value is above zero and they span a factor of 8."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 8:
        return low / 1.25, high * 1.25, True
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return (max(0.0, low - margin) if low >= 0 else low - margin), high + margin, False


def scatter(name: str, points: Sequence[Point], x: str, y: str, limit: tuple[float, str] | None, title: str) -> Markup:
    """Points with titles, a line through those of the kind `front`, and a dashed limit; places that are not finite are left out.

    `x` and `y` are the axes' labels. What is left out is counted in the description.
    """
    kept = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not kept:
        return Markup("")
    above = [p.y for p in kept if p.y > 0]
    floor = min(above, default=1.0) / 3
    x_low, x_high, x_log = _ends([p.x for p in kept])
    heights = [max(p.y, floor) for p in kept] + ([limit[0]] if limit else [])
    y_low, y_high, y_log = _ends(heights)
    at_x = _axis(x_low, x_high, _LEFT, _WIDTH - _RIGHT, x_log)
    at_y = _axis(y_low, y_high, _FLOOR, _TOP, y_log)
    parts = _frame(x_low, x_high, x_log, y_low, y_high, y_log, at_x, at_y)
    if limit is not None:
        level = at_y(limit[0])
        parts += [
            _line(_LEFT, level, _WIDTH - _RIGHT, level, "limit"),
            _text(_WIDTH - _RIGHT, level - 5, limit[1], "limit-label", "end"),
        ]
    for p in sorted(kept, key=lambda p: p.kind == "chosen"):
        form = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" class="point {}"><title>{}</title></circle>')
        place = at_x(p.x), at_y(max(p.y, floor))
        parts.append(form.format(*place, 7 if p.kind == "chosen" else 4.5, p.kind, p.title))
        if p.label:
            right = place[0] > _WIDTH * 0.7
            parts.append(
                _text(place[0] + (-9 if right else 9), place[1] - 7, p.label, "tick", "end" if right else "start")
            )
    parts += [_text((_LEFT + _WIDTH) / 2, _HEIGHT - 6, x, "label", "middle"), _text(_LEFT, _TOP - 5, y, "label")]
    left = len(points) - len(kept)
    said = "; ".join(p.title for p in kept) + (f"; {left} without a finite value are not drawn" if left else "")
    return _picture(name, _WIDTH, _HEIGHT, title, said, parts)


def _frame(
    x_low: float, x_high: float, x_log: bool, y_low: float, y_high: float, y_log: bool,
    at_x: Callable[[float], float], at_y: Callable[[float], float],
) -> list[Markup]:  # fmt: skip
    parts = [_line(_LEFT, _FLOOR, _WIDTH - _RIGHT, _FLOOR, "axis"), _line(_LEFT, _TOP, _LEFT, _FLOOR, "axis")]
    for v in _ticks(x_low, x_high, x_log):
        parts += [
            _line(at_x(v), _FLOOR, at_x(v), _FLOOR + 4, "axis"),
            _text(at_x(v), _FLOOR + 17, number(v, 4), "tick", "middle"),
        ]
    for v in _ticks(y_low, y_high, y_log):
        parts += [
            _line(_LEFT, at_y(v), _WIDTH - _RIGHT, at_y(v), "grid"),
            _text(_LEFT - 6, at_y(v) + 4, number(v, 3), "tick", "end"),
        ]
    return parts


@dataclass(frozen=True)
class Bar:
    """A bar with its label, and the interval around its value where there is one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


def bars(name: str, rows: Sequence[Bar], unit: str, title: str) -> Markup:
    """Horizontal bars from zero, one a row, with whiskers; a value that is not finite is written instead of drawn."""
    if not rows:
        return Markup("")
    left, right, step = 170.0, 96.0, 24.0
    tops = [v for r in rows for v in (r.value, r.high) if v is not None and math.isfinite(v)]
    full = max([*tops, 0.0]) or 1.0
    wide = _WIDTH - left - right
    parts: list[Markup] = []
    for i, row in enumerate(rows):
        y = 6 + i * step
        parts.append(_text(left - 8, y + 14, row.label, "tick", "end"))
        if math.isfinite(row.value):
            parts.append(
                _rect(
                    left,
                    y + 3,
                    wide * max(row.value, 0.0) / full,
                    14,
                    "bar",
                    f"{row.label}: {number(row.value, 4)} {unit}",
                    2,
                )
            )
        if row.low is not None and row.high is not None and math.isfinite(row.low) and math.isfinite(row.high):
            a, b = (left + wide * min(max(v, 0.0), full) / full for v in (row.low, row.high))
            parts += [
                _line(a, y + 10, b, y + 10, "axis"),
                _line(a, y + 6, a, y + 14, "axis"),
                _line(b, y + 6, b, y + 14, "axis"),
            ]
        parts.append(
            _text(_WIDTH, y + 14, f"{number(row.value, 3)}{' ' + row.note if row.note else ''}", "tick", "end")
        )
    said = "; ".join(f"{r.label} {number(r.value, 4)}" for r in rows)
    return _picture(name, _WIDTH, 12 + step * len(rows), title, f"{said} {unit}".strip(), parts)


def shaded(
    name: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Mapping[tuple[str, str], float | None],
    unit: str,
    title: str,
) -> Markup:
    """A table of squares, the darker the larger, on a logarithmic scale; each with its value as title. None draws nothing."""
    known = [v for v in values.values() if v is not None and math.isfinite(v) and v > 0]
    if not rows or not columns:
        return Markup("")
    low, high = (math.log(min(known)), math.log(max(known))) if known else (0.0, 1.0)
    left, top, tall = 170.0, 28.0, 22.0
    wide = (_WIDTH - left) / len(columns)
    parts = [_text(left + wide * (i + 0.5), 18, c, "tick", "middle") for i, c in enumerate(columns)]
    for j, row in enumerate(rows):
        parts.append(_text(left - 8, top + tall * j + 15, row, "tick", "end"))
        for i, column in enumerate(columns):
            value = values.get((row, column))
            if value is None:
                continue
            strength = (
                1.0
                if not math.isfinite(value)
                else 0.0
                if value <= 0
                else (math.log(value) - low) / ((high - low) or 1.0)
            )
            form = Markup(
                '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="bar" fill-opacity="{:.3f}"><title>{}</title></rect>'
            )
            said = f"{row}, {column}: {number(value, 3)} {unit}"
            parts.append(
                form.format(left + wide * i + 1, top + tall * j + 1, wide - 2, tall - 2, 0.08 + 0.72 * strength, said)
            )
            parts.append(_text(left + wide * (i + 0.5), top + tall * j + 15, number(value, 2), "tick", "middle"))
    said = "; ".join(f"{r}, {c}: {number(v, 3)}" for (r, c), v in values.items() if v is not None)
    return _picture(name, _WIDTH, top + tall * len(rows) + 6, title, f"{said} {unit}".strip(), parts)
