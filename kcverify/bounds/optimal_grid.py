"""The optimal-composition recursion on a lattice of log ratios, from above and from below, in floats with proved slack.

`phi_h(L) = f_h(e^(L/2), e^(-L/2))`, an even function, obeys

    phi_h(L) = max_t [ sinh((s-t)/2) phi_{h-1}(L+t) + sinh(t/2) phi_{h-1}(L+t-s) ] / sinh(s/2),   phi_0 = |sinh(L/2)|.

Lattice: `L = i d`, `s = n d`, `i >= 0`, values divided by `sinh(d/2)` so that they are of order 1 for every `s`.

From above. `f_h` is convex, so between nodes it lies below its chord in `a/b`, in `L` the interpolation by `sinh`. On
the cell `t = (c + 1/2) d + y` the objective is then `P + S cosh y + D sinh y`; with `V0, V1` at its ends and `X =
V(y=0) - (V0+V1)/2`, and because `(cosh(d/2) - cosh y)/(cosh(d/2) - 1) <= 1 - z^2` for `z = sinh y/sinh(d/2)`, its
maximum is at most that of `(V0+V1)/2 + z (V1-V0)/2 + X (1-z^2)` over `|z| <= 1`, which is `max(V0,V1) + (4X -
|V1-V0|)_+^2/(16 X)`. Beyond the last node `N` the excess over the kink, `phi - sinh(L/2)`, decays at least like
`e^(-L/2)` (slope of `f(a,1)` at most 1/2). No step errs downward; the grid costs about `1/(4 n^2)` of the result for
even `n`.

From below. `t` restricted to nodes and the excess beyond the last node dropped: the value of an explicit finite
process.

Floats. `u = 2^-53`; `sinh` and `exp` are assumed within 4 ulp, and the unit tests compare the constants with ball
arithmetic. With spans below 12 (16 from below) and `L/2` below 34 a constant is within `64 u` of its real value; it is
moved by `64 u` to the safe side, so it ends within `128 u`. From above, let `R` be the true result of a cell. `V0, V1`
lose at most `2 u R`. `X` is the one difference, but `V(y=0) <= R` and `(V0+V1)/2 <= R`, so it loses at most `137 u R`,
cancellation included. `R = max_z [(1-z)/2 V0 + (1+z)/2 V1 + (1-z^2) X]` is monotone in `V0, V1, X` with weights that
sum to 1 in `V0, V1` and stay below 1 in `X`, so it loses at most `139 u R`, and `7 u R` in the evaluation of its
closed form; the extension beyond `N` loses `6 u`. Thus a step loses less than `512 u = 2^-44` of its result. Steps are
monotone and homogeneous, so `(1 + 2^-43)^(h+1)` times the result of `h` steps is an upper bound; `2^-43` rather than
`2^-44` covers the rounding of that factor. From below everything is a sum of products of non-negative terms, and one
divides instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNIT = 2.0**-53
WEIGHT_SLACK = 64 * UNIT
STEP_SLACK = 2.0**-43
WIDTH = 4.5
TINY = 1e-300
SMALLEST_SPAN = Fraction(1, 2**200)


class Profile(NamedTuple):
    """Bounds of `phi_h` at `L = i step` for `i = 0, 1, ...`; the last node bounds the excess of all later ones."""

    horizon: int
    span: float
    step: float
    values: Floats


class Weights(NamedTuple):
    """Coefficients of `phi(L+t)` at the lattice points `t = c d` (n+1 of them) and at the cell centres (n of them);
    those of `phi(L+t-s)` are the same in reverse order."""

    nodes: Floats
    centres: Floats


def lattice_step(s: Fraction, cells: int, *, up: bool) -> float:
    """Float `d` with `cells d >= s` if `up`, else `cells d <= s`, as real numbers."""
    exact = s / cells
    d = float(exact)
    if up:
        return d if Fraction(d) >= exact else math.nextafter(d, math.inf)
    return d if Fraction(d) <= exact else math.nextafter(d, 0.0)


def weights(d: float, cells: int, slack: float) -> Weights:
    """The coefficients of one step, each multiplied by `1 + slack`."""
    whole = math.sinh(cells * d / 2)
    nodes = [math.sinh((cells - c) * d / 2) / whole for c in range(cells + 1)]
    ratio = math.sinh(d / 4) / math.sinh(d / 2)
    centres = [math.sinh((2 * (cells - c) - 1) * d / 4) / whole * ratio for c in range(cells)]
    return Weights(np.array(nodes) * (1 + slack), np.array(centres) * (1 + slack))


def kink(d: float, count: int, slack: float) -> Floats:
    """`sinh(i d/2)/sinh(d/2)` for `i < count`, each multiplied by `1 + slack`."""
    unit = math.sinh(d / 2)
    return np.array([math.sinh(i * d / 2) / unit for i in range(count)]) * (1 + slack)


def last_node(h: int, cells: int) -> int:
    """Index of the last node after `h` steps: the support of the excess, cut at `WIDTH` deviations of the log ratio."""
    return min(h * cells, math.ceil(WIDTH * 0.5 * math.sqrt(h) * cells) + 2 * cells)


def _windows(x: Floats, start: int, rows: int, columns: int) -> Floats:
    """View `y[c, i] = x[start + c + i]`."""
    stride = x.strides[0]
    return as_strided(x[start:], (rows, columns), (stride, stride), writeable=False)


def _raise_step(buffer: Floats, cells: int, count: int, w: Weights) -> Floats:
    """Upper bounds of one step at nodes `0 .. count-1`; `buffer[cells + i]` holds the node `i >= -cells`."""
    values = w.nodes[:, None] * _windows(buffer, cells, cells + 1, count)
    values += w.nodes[::-1, None] * _windows(buffer, 0, cells + 1, count)
    pairs = buffer[1:] + buffer[:-1]
    bulge = w.centres[:, None] * _windows(pairs, cells, cells, count)
    bulge += w.centres[::-1, None] * _windows(pairs, 0, cells, count)
    left, right = values[:-1], values[1:]
    bulge -= 0.5 * (left + right)
    bulge *= 4
    np.maximum(bulge, TINY, out=bulge)
    gain = bulge - np.abs(right - left)
    np.maximum(gain, 0, out=gain)
    gain *= gain
    gain /= bulge
    gain *= 0.25
    gain += np.maximum(left, right)
    best: Floats = gain.max(axis=0)
    return best


def upper_profiles(s: Fraction, horizons: Collection[int], cells: int) -> dict[int, Profile]:
    """Upper bounds of `phi_h` for each `h` of `horizons` at effective span `s > 0` (nat), from one run.

    `cells` (even) is the number of lattice steps per span. Raises ValueError outside `2^-200 <= s <= 12`, where the
    error analysis of this module holds.
    """
    if not SMALLEST_SPAN <= s <= 12 or cells % 2:
        raise ValueError(f"no error analysis for span {s} on {cells} cells")
    d = lattice_step(s, cells, up=True)
    w = weights(d, cells, WEIGHT_SLACK)
    top = max(horizons)
    high = kink(d, last_node(top, cells) + cells + 1, WEIGHT_SLACK)
    low = high * (1 - 4 * WEIGHT_SLACK)
    decay = np.exp(-np.arange(2 * cells + 4) * (d / 2)) * (1 + WEIGHT_SLACK)
    buffer = np.zeros(last_node(top, cells) + 2 * cells + 1)
    scale = math.sinh(d / 2) * (1 + WEIGHT_SLACK)
    found: dict[int, Profile] = {}
    last = 0
    for h in range(1, top + 1):
        end = last_node(h, cells)
        tail = slice(last + 1, end + cells + 1)
        excess = max(0.0, float(buffer[cells + last] - low[last]))
        buffer[cells + tail.start : cells + tail.stop] = high[tail] + excess * decay[1 : tail.stop - last]
        buffer[:cells] = buffer[2 * cells : cells : -1]
        buffer[cells : cells + end + 1] = _raise_step(buffer, cells, end + 1, w)
        last = end
        if h in horizons:
            values = buffer[cells : cells + end + 1] * (scale * (1 + STEP_SLACK) ** (h + 1))
            found[h] = Profile(h, float(s), d, values)
    return found


def lower_value(s: Fraction, horizon: int, cells: int, adaptive: int) -> float:
    """Lower bound of the optimum at `a = b`: the last `min(horizon, adaptive)` steps choose the best lattice split, the
    steps before them split at `t = s/2` (`cells` even). Raises ValueError outside `2^-200 <= s <= 16`."""
    if not SMALLEST_SPAN <= s <= 16 or cells % 2:
        raise ValueError(f"no error analysis for span {s} on {cells} cells")
    d = lattice_step(s, cells, up=False)
    w = weights(d, cells, -WEIGHT_SLACK).nodes
    steps = min(horizon, adaptive)
    rest = horizon - steps
    half = cells // 2
    sites = math.ceil(WIDTH * math.sqrt(rest)) + 2 if rest else 1
    size = max(last_node(steps, cells), sites * half)
    low = kink(d, size + cells + 1, -WEIGHT_SLACK)
    buffer = np.concatenate([low[cells:0:-1], low])
    for h in range(1, steps + 1):
        end = last_node(h, cells)
        buffer[:cells] = buffer[2 * cells : cells : -1]
        values = w[:, None] * _windows(buffer, cells, cells + 1, end + 1)
        values += w[::-1, None] * _windows(buffer, 0, cells + 1, end + 1)
        buffer[cells : cells + end + 1] = values.max(axis=0)
    row = buffer[cells::half][: sites + 1].copy()
    middle = float(w[half])
    for _ in range(rest):
        first = 2 * middle * row[1]
        row[1:-1] = middle * (row[2:] + row[:-2])
        row[0] = first
    return float(row[0]) * math.sinh(d / 2) * (1 - WEIGHT_SLACK) / (1 + STEP_SLACK) ** (horizon + 1)
