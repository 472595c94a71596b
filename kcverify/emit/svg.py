"""Draws the report's pictures as inline SVG: the proof chain, histograms with thresholds, and meters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from markupsafe import Markup, escape

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_BARS = 44
_NON_FINITE = {"inf": "∞", "-inf": "−∞", "nan": "NaN"}  # how the monitor writes what JSON cannot


def number(value: object, digits: int = 6) -> str:
    """Short text of a number: `digits` significant digits, thousands grouped, `∞`, `–` for nothing; a text as it is."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", " ").replace("-", "−")
    short = f"{value:.{digits}g}"
    if "e" not in short:
        return short.replace("-", "−")
    mantissa, exponent = short.split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if mantissa == "1" else f"{mantissa}·{power}".replace("-", "−", mantissa.count("-"))


def _text(x: float, y: float, content: object, css: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(
        x, y, css, anchor, content
    )


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, css)


def _rect(x: float, y: float, width: float, height: float, css: str, title: str = "", radius: float = 0) -> Markup:
    inside = Markup("<title>{}</title>").format(title) if title else Markup("")
    form = '<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" rx="{}" class="{}">{}</rect>'
    return Markup(form).format(x, y, max(width, 0), max(height, 0), radius, css, inside)


def _picture(name: str, width: float, height: float, title: str, description: str, parts: Sequence[Markup]) -> Markup:
    """An `<svg>` with title and description; `name` must be unique in the page."""
    form = (
        '<svg class="{0}" id="{1}" viewBox="0 0 {2:.0f} {3:.0f}" role="img" aria-labelledby="{1}-t {1}-d">'
        '<title id="{1}-t">{4}</title><desc id="{1}-d">{5}</desc>{6}</svg>'
    )
    return Markup(form).format(name.split("-")[0], name, width, height, title, description, Markup("").join(parts))


# ---- proof chain

_CHAIN_WIDTH, _BOX_LEFT, _LINE = 440.0, 1.0, 16.0


_RELATIONS = {"<=": "≤ ", ">=": "≥ ", "=": "= "}


def quantity(link: Mapping[str, Any]) -> str:
    """What a link bounds: the quantity, `mean` before it where it is an expectation."""
    return f"mean {link['quantity']}" if link.get("statistic") == "mean" else str(link["quantity"])


def bounded(link: Mapping[str, Any]) -> str:
    """The bound of a link with its relation and unit."""
    relation = _RELATIONS.get(str(link.get("relation")), "")
    return f"{relation}{number(link.get('value'))} {link.get('unit') or ''}".strip()


def _box(link: Mapping[str, Any], top: float, css: str) -> tuple[list[Markup], float]:
    """One quantity of the chain with its value; returns the drawing and the y of its lower edge."""
    excepted = str(link.get("exception") or "0")
    aside = f", except for a share of {excepted}" if excepted not in ("0", "0.0") else ""
    details = wrap(f"{link.get('detail') or ''}{aside}", 62)[:3]
    height = 36 + _LINE * len(details) + (6 if details else 0)
    parts = [
        _rect(_BOX_LEFT, top, _CHAIN_WIDTH - 2, height, css, radius=8),
        _text(16, top + 23, quantity(link), "quantity"),
        _text(_CHAIN_WIDTH - 16, top + 23, bounded(link), "value", "end"),
        *(_text(16, top + 26 + _LINE * (i + 1), line, "detail") for i, line in enumerate(details)),
    ]
    return parts, top + height


def chain(name: str, links: Sequence[Mapping[str, Any]], verdict: str) -> Markup:
    """Boxes from the clause down to the claim, one a link, an arrow between two with the lemma that leads there.

    A link has `quantity` and `value`, and may have `statistic`, `relation`, `unit`, `exception`, `lemma`, `detail`; the
    last box is coloured by `verdict`.
    """
    parts: list[Markup] = []
    y = 1.0
    for i, link in enumerate(links):
        lemma = str(link.get("lemma") or "")
        if i:
            parts += [
                _line(28, y, 28, y + 27, "arrow"),
                Markup('<path d="M23 {0:.1f}l5 8 5-8z" class="head"/>').format(y + 22),
            ]
            parts.append(_text(44, y + 20, lemma, "lemma"))
            y += 31
        elif lemma:
            parts.append(_text(16, y + 13, lemma, "lemma"))
            y += 21
        last = i == len(links) - 1
        drawn, y = _box(link, y, f"box last {verdict.lower()}" if last else "box")
        parts += drawn
    steps = [f"{quantity(link)} {bounded(link)}" for link in links]
    return _picture(name, _CHAIN_WIDTH, y + 2, "Proof chain", ", then ".join(steps), parts)


# ---- histogram

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 440.0, 250.0, 44.0, 10.0, 44.0, 38.0
_PLOT = _WIDTH - _LEFT - _RIGHT
_FLOOR = _HEIGHT - _BOTTOM


@dataclass(frozen=True)
class Threshold:
    """A clause's limit on the histogram's axis: `upper` means that what lies to the right exceeds it."""

    label: str
    value: float
    upper: bool


@dataclass(frozen=True)
class Bar:
    """Rows with a value in `[low, high)`."""

    low: float
    high: float
    count: int


def bars(edges: Sequence[float], counts: Sequence[int]) -> list[Bar]:
    """At most 44 bars from fine bins by joining neighbours; no row is lost, a bin that ends at infinity stays alone."""
    filled = [i for i, count in enumerate(counts) if count]
    if not filled:
        return []
    bins = [Bar(edges[i], edges[i + 1], counts[i]) for i in range(filled[0], filled[-1] + 1)]
    ends = [b for b in (bins[0], bins[-1]) if not (b.low > 0 and math.isfinite(b.high))]
    middle = [b for b in bins if b not in ends]
    step = max(1, math.ceil(len(middle) / _MOST_BARS))
    groups = [middle[i : i + step] for i in range(0, len(middle), step)]
    joined = [Bar(g[0].low, g[-1].high, sum(b.count for b in g)) for g in groups]
    return sorted({*joined, *ends}, key=lambda b: b.low)


def _scale(low: float, high: float) -> tuple[Callable[[float], float], bool]:
    """From a value to x, logarithmic where the range spans more than a factor of 8."""
    logarithmic = low > 0 and high / low > 8
    turn: Callable[[float], float] = math.log if logarithmic else float
    first, last = turn(low), turn(high)
    if last == first:
        last = first + 1
    return lambda v: _LEFT + _PLOT * min(1.0, max(0.0, (turn(v) - first) / (last - first))), logarithmic


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    if not logarithmic:
        rough = (high - low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    several = high / low > 300
    stride = max(1, len(decades) // 7)
    values = [m * 10.0**d for d in decades[:: stride if several else 1] for m in ((1,) if several else (1, 2, 5))]
    return [v for v in values if low <= v <= high]


def _range(drawn: Sequence[Bar], thresholds: Sequence[Threshold]) -> tuple[float, float]:
    """Least and largest value to show; a lowest bin that starts at zero is cut to a quarter of its upper edge."""
    lows = [b.low if b.low else b.high / 4 for b in drawn if math.isfinite(b.high) and math.isfinite(b.low)]
    highs = [b.high if math.isfinite(b.high) else b.low * 1.3 for b in drawn]
    limits = [t.value for t in thresholds if math.isfinite(t.value)]
    low, high = min(lows + limits, default=0.0), max(highs + limits, default=1.0)
    if low > 0:
        return low * 0.9, high * 1.1
    margin = (high - low) * 0.05 or 1.0
    return low - margin, high + margin


def _height(count: int, most: int) -> float:
    return (_FLOOR - _TOP) * math.log10(1 + count) / math.log10(1 + most)


def _grid(most: int) -> Iterator[Markup]:
    for power in range(math.floor(math.log10(most)) + 1):
        y = _FLOOR - _height(10**power, most)
        yield _line(_LEFT, y, _WIDTH - _RIGHT, y, "grid")
        yield _text(_LEFT - 6, y + 4, number(10**power), "tick", "end")


def _limits(thresholds: Sequence[Threshold], x: Callable[[float], float]) -> Iterator[Markup]:
    for i, limit in enumerate(sorted(thresholds, key=lambda t: t.value)):
        at, y = x(limit.value), 12 + 13 * (i % 3)
        start, stop = (at, _WIDTH - _RIGHT) if limit.upper else (_LEFT, at)
        yield _rect(start, _TOP, stop - start, _FLOOR - _TOP, "beyond")
        yield _line(at, y + 3, at, _FLOOR, "limit")
        right = at > _LEFT + _PLOT * 0.55
        yield _text(at - 4 if right else at + 4, y + 2, limit.label, "limit-label", "end" if right else "start")


def histogram(
    name: str, metric: str, unit: str, edges: Sequence[float], counts: Sequence[int], thresholds: Sequence[Threshold]
) -> Markup:
    """Rows by value of `metric`, both axes logarithmic where the data spans decades, limits as dashed lines.

    `counts[i]` rows lie in `[edges[i], edges[i + 1])`; the exact interval and count of a bar is its title.
    """
    drawn = bars(edges, counts)
    low, high = _range(drawn, thresholds)
    x, logarithmic = _scale(low, high)
    most = max((b.count for b in drawn), default=1)
    parts = [*_grid(most), *_limits(thresholds, x)]
    for b in drawn:
        left, right = x(max(b.low, low)), x(b.high if math.isfinite(b.high) else high)
        tall = _height(b.count, most)
        title = f"{number(b.low)} to {number(b.high)}: {number(b.count)} rows"
        parts.append(_rect(left + 0.4, _FLOOR - tall, max(right - left - 0.8, 1), tall, "bar", title))
    parts.append(_line(_LEFT, _FLOOR, _WIDTH - _RIGHT, _FLOOR, "axis"))
    for value in _ticks(low, high, logarithmic):
        parts += [
            _line(x(value), _FLOOR, x(value), _FLOOR + 4, "axis"),
            _text(x(value), _FLOOR + 16, number(value), "tick", "middle"),
        ]
    parts.append(_text(_LEFT + _PLOT / 2, _HEIGHT - 4, f"{metric}{f', {unit}' if unit else ''}", "label", "middle"))
    limits = "; ".join(f"{t.label} at {number(t.value)}" for t in thresholds) or "no limit"
    description = f"{number(sum(counts))} rows between {number(low)} and {number(high)}; {limits}. Rows on a log scale."
    return _picture(name, _WIDTH, _HEIGHT, f"Histogram of {metric}", description, parts)


# ---- meters

_METER, _THICK = 240.0, 12.0


def meter(name: str, value: float, limit: float, title: str, css: str) -> Markup:
    """A bar of `value` on a scale with a mark at `limit`; both must be finite, and a negative value draws no bar."""
    full = max(value, limit, 1e-300) * 1.12
    parts = [
        _rect(0, 4, _METER, _THICK, "track", radius=3),
        _rect(0, 4, _METER * max(0.0, value) / full, _THICK, f"fill {css}", radius=3),
        _line(_METER * max(0.0, limit) / full, 0, _METER * max(0.0, limit) / full, 20, "mark"),
    ]
    return _picture(name, _METER, 20, title, f"{number(value)} against {number(limit)}", parts)


def plain(value: object, digits: int = 6) -> Markup:
    """`<data>` element whose value is the number exactly as JSON writes it and whose text is its short form."""
    exact = repr(value) if isinstance(value, float) else str(value)
    return (
        Markup('<data value="{}">{}</data>').format(exact, number(value, digits)) if value is not None else escape("–")
    )


text, line, rect, picture = _text, _line, _rect, _picture
"""The parts, for pictures of other pages."""
