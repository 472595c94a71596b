"""Draws the pictures of the dashboard as inline SVG: health over time, shares of traffic, counts in their table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kcverify.emit import svg

_POINTS = 120
_SPARK = (220.0, 44.0)
_BAR = (480.0, 22.0)
_PLANE = (420.0, 190.0)


def thinned(values: Sequence[float | None]) -> list[float | None]:
    """At most 120 of the values, each the least of its neighbours: a dip stays seen; None where there is none."""
    step = max(1, math.ceil(len(values) / _POINTS))
    groups = [values[i : i + step] for i in range(0, len(values), step)]
    return [min((v for v in group if v is not None), default=None) for group in groups]


def spark(name: str, values: Sequence[float | None], title: str, said: str, lines: Sequence[float]) -> Markup:
    """A line of values in [0, 1], newest at the right; gaps where nothing is known; `lines` across."""
    wide, tall = _SPARK
    shown = thinned(values)
    step = (wide - 8) / max(len(shown) - 1, 1)

    def y(value: float) -> float:
        return 4 + (tall - 8) * (1 - min(max(value, 0.0), 1.0))

    parts = [svg.line(0, y(level), wide, y(level), "level") for level in lines]
    run: list[str] = []
    for i, value in enumerate([*shown, None]):
        if value is not None:
            run.append(f"{4 + i * step:.1f},{y(value):.1f}")
        elif run:
            parts.append(Markup('<polyline class="trace" points="{}"/>').format(" ".join(run)))
            run = []
    last = next((v for v in reversed(shown) if v is not None), None)
    if last is not None:
        at = 4 + (len(shown) - 1) * step
        parts.append(Markup('<circle class="now" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(at, y(last)))
    return svg.picture(f"spark-{name}", wide, tall, title, said, parts)


def shares(name: str, weights: Mapping[str, float], title: str) -> Markup:
    """One bar of all traffic, a part a side; the parts are told apart by their pattern too."""
    wide, tall = _BAR
    parts: list[Markup] = [svg.rect(0, 0, wide, tall, "track", radius=4)]
    x = 0.0
    for side, weight in weights.items():
        width = wide * weight
        parts.append(svg.rect(x, 0, max(width - 1, 0), tall, f"share {side}", f"{side}: {100 * weight:g} %", 3))
        if width > 70:
            parts.append(svg.text(x + width / 2, 15, side, "share-label", "middle"))
        x += width
    said = ", ".join(f"{side} {100 * weight:g} %" for side, weight in weights.items()) or "nothing serves"
    return svg.picture(f"shares-{name}", wide, tall, title, said, parts)


@dataclass(frozen=True)
class Boundary:
    """At `n` units: the most that may exceed for a pass, the fewest that fail; None where no count decides."""

    n: int
    passes: int | None
    fails: int | None


def plane(name: str, n: int, count: int, boundaries: Sequence[Boundary], title: str) -> Markup:
    """Units that exceed over units seen, between the boundary of failing and that of passing."""
    wide, tall = _PLANE
    left, right, top, floor = 44.0, 12.0, 12.0, tall - 34
    most_n = max(n, *(b.n for b in boundaries), 1)
    most = max(count, *(b.fails or 0 for b in boundaries), *(b.passes or 0 for b in boundaries), 1) * 1.08

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (wide - left - right) * x / most_n, floor - (floor - top) * y / most

    def path(points: Sequence[tuple[int, int]], css: str, *, close: float) -> list[Markup]:
        if not points:
            return []
        drawn = [at(x, y) for x, y in points]
        area = [*drawn, (drawn[-1][0], close), (drawn[0][0], close)]
        text, closed = (" ".join(f"{x:.1f},{y:.1f}" for x, y in p) for p in (drawn, area))
        form = '<polygon class="area {0}" points="{1}"/><polyline class="edge {0}" points="{2}"/>'
        return [Markup(form).format(css, closed, text)]

    fails = [(b.n, b.fails) for b in boundaries if b.fails is not None]
    passes = [(b.n, b.passes) for b in boundaries if b.passes is not None]
    parts = [*path(fails, "fail", close=top), *path(passes, "pass", close=floor)]
    for side, points in (("fail", fails), ("pass", passes)):
        if points:
            x, y = at(*points[-1])
            up = -6 if side == "fail" else 12
            parts.append(svg.text(x - 4, min(max(y + up, top + 10), floor - 3), side, f"edge-label {side}", "end"))
    parts += [svg.line(left, floor, wide - right, floor, "axis"), svg.line(left, top, left, floor, "axis")]
    for value in (0, most_n):
        parts.append(svg.text(at(value, 0)[0], floor + 14, svg.number(value), "tick", "end" if value else "start"))
    parts.append(svg.text(left - 5, top + 10, svg.number(int(most)), "tick", "end"))
    parts.append(svg.text(left - 5, floor, "0", "tick", "end"))
    parts.append(svg.text((left + wide) / 2, floor + 28, "units seen", "label", "middle"))
    x, y = at(n, count)
    parts.append(Markup('<circle class="now" cx="{:.1f}" cy="{:.1f}" r="4.5"/>').format(x, y))
    said = f"{svg.number(count)} of {svg.number(n)} units exceed"
    return svg.picture(f"plane-{name}", wide, tall, title, said, parts)
