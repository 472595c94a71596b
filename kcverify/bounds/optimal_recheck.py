"""A second, coarse computation of the optimal sequence bound in integers: what a certificate checker repeats.

Standard library only, nothing shared with the float recursion. Derivations are those of `optimal_grid` (the recursion,
and why its cells err upward) and of `optimal_gaussian` (why blocks compose); here every constant is a fixed-point
integer rounded to the safe side, every product is exact, and one upward shift per node and step is the only rounding.

Looseness: the grid of `n` cells per span costs about `1/(4 n^2)`, with `n` chosen for a few seconds of work: 16 up to
200 tokens (0.1 %), 8 at 512 (0.4 %). Longer horizons are split into equal blocks of at most 512 tokens with `n = 8`,
another 0.2 %. A claim 1 % above `optimal.upper` passes up to 2^17 tokens; a nearer one may be refused, which refutes
nothing.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

BITS = 56
LONGEST_BLOCK = 512
BLOCK_CELLS = 8
THOUSANDTHS = (6, 8)
INVERSE_ROOT_TWO_PI = 39894228040143267793994605993438186847585863116493  # floor of 10^50 / sqrt(2 pi)
SCALE_OF_INVERSE_ROOT = 10**50


def recheck_coarse(s: Fraction, horizon: int, claimed: Fraction) -> bool:
    """Whether `claimed` is proved to bound the worst adaptive total variation over `horizon` tokens of span `s` (nat).

    False means not proved on this grid, not refuted. Takes a few seconds of plain Python at most. Raises ValueError
    for a negative span or `horizon < 1`.
    """
    if s < 0 or horizon < 1:
        raise ValueError(f"need a span >= 0 and a horizon >= 1, got {s} and {horizon}")
    if claimed >= 1 or s == 0:
        return claimed >= 0
    if claimed <= 0 or s > 64:
        return False
    s = Fraction(s)
    if horizon <= LONGEST_BLOCK:
        return coarse_upper(s, horizon, cells_for(horizon)) <= claimed
    return composed_upper(s, horizon) <= claimed


def composed_upper(s: Fraction, horizon: int) -> Fraction:
    """Upper bound of the optimum from equal blocks of at most `LONGEST_BLOCK` tokens, for a span `0 < s <= 64`."""
    count = -(-horizon // LONGEST_BLOCK)
    length = -(-horizon // count)
    d, values = node_bounds(s, length, BLOCK_CELLS)
    return min(_composed(d, values, _distance(s, length, f), count) for f in THOUSANDTHS)


def cells_for(horizon: int) -> int:
    """Even number of cells per span for at most some two million cell evaluations."""
    return max(BLOCK_CELLS, min(16, 2 * (400 // isqrt(isqrt(horizon**3)))))


def coarse_upper(s: Fraction, horizon: int, cells: int) -> Fraction:
    """Upper bound of the optimum from the integer recursion on `cells` (even) lattice steps per span."""
    return node_bounds(s, horizon, cells)[1][0]


def _work_bits(s: Fraction) -> int:
    return 96 + 2 * BITS + 2 * max(0, s.denominator.bit_length() - s.numerator.bit_length())


def _sinh(x: Fraction, bits: int) -> tuple[int, int]:
    """Integers `lo <= 2^bits sinh(x) <= hi` for `x >= 0`: the Taylor series, all of whose terms are non-negative."""
    low = (x.numerator << bits) // x.denominator
    high = -((-x.numerator << bits) // x.denominator)
    low_square, high_square = low * low >> bits, -(-high * high >> bits)
    low_sum, high_sum, k = low, high, 1
    while high > 1 or high_square > (k + 1) << bits:
        step = (k + 1) * (k + 2)
        low = (low * low_square >> bits) // step
        high = -((-high * high_square >> bits) // step)
        low_sum, high_sum, k = low_sum + low, high_sum + high, k + 2
    return low_sum, high_sum + 2


def _ratios_up(top: list[tuple[int, int]], bottom: list[tuple[int, int]]) -> list[int]:
    """The products of `top` divided by those of `bottom`, pairwise enclosures, as integers in 2^-BITS rounded up."""
    return [-((-hi << BITS) // lo) for (_, hi), (lo, _) in zip(top, bottom, strict=True)]


def _constants(d: Fraction, cells: int, count: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Weights at nodes and at centres, and the kink `sinh(i d/2)/sinh(d/2)` from above and below, in 2^-BITS."""
    bits = _work_bits(d)
    quarter = [_sinh(j * d / 4, bits) for j in range(2 * cells + 1)]
    half = [_sinh(i * d / 2, bits) for i in range(count)]
    whole, unit, small = quarter[2 * cells], half[1], quarter[1]
    nodes = _ratios_up([quarter[2 * (cells - c)] for c in range(cells + 1)], [whole] * (cells + 1))
    tops = [(0, quarter[2 * (cells - c) - 1][1] * small[1]) for c in range(cells)]
    centres = _ratios_up(tops, [(whole[0] * unit[0], 0)] * cells)
    above = _ratios_up(half, [unit] * count)
    below = [(lo << BITS) // unit[1] for lo, _ in half]
    return nodes, centres, above, below


def _last_node(h: int, cells: int) -> int:
    """Last node after `h` steps: the support of the excess, cut near 4.5 deviations of the log ratio."""
    return min(h * cells, (9 * isqrt(h * cells * cells * 16) + 15) // 16 + 2 * cells)


def _node(p: list[int], i: int, nodes: list[int], centres: list[int], slack: int) -> int:
    """Upper bound of one step at node `i`; `p[cells + j]` bounds node `j`. Units are 2^-BITS, of products 2^-2BITS."""
    cells = len(centres)
    a, b = p[i + cells], p[i]
    before = nodes[0] * a + nodes[cells] * b
    best = before
    for c in range(cells):
        a_next, b_next = p[i + cells + c + 1], p[i + c + 1]
        value = nodes[c + 1] * a_next + nodes[cells - c - 1] * b_next
        centre = centres[c] * (a + a_next) + centres[cells - c - 1] * (b + b_next)
        bulge = 4 * centre - 2 * (before + value) + slack
        high, gap = (value, value - before) if value > before else (before, before - value)
        gain = bulge - gap
        if high > best:
            best = high
        if gain > 0 and high + gain // 4 + 1 > best:
            best = max(best, high + gain * gain // (4 * bulge) + 1)
        a, b, before = a_next, b_next, value
    return -(-best >> BITS)


def node_bounds(s: Fraction, horizon: int, cells: int) -> tuple[Fraction, list[Fraction]]:
    """Lattice step `d = s/cells` and upper bounds of `phi_horizon(i d)`, `i = 0, 1, ...`, by the integer recursion.

    Beyond its last node the excess over the kink `sinh(L/2)` is at most that of the last node. The weights are rounded
    up by less than one unit, which could lower the bulge of a cell by the values it multiplies: `slack` gives that
    back.
    """
    d = s / cells
    size = _last_node(horizon, cells) + cells + 1
    nodes, centres, above, below = _constants(d, cells, size)
    values, last = [0], 0
    for h in range(1, horizon + 1):
        end = _last_node(h, cells)
        excess = max(0, values[last] - below[last])
        values += [above[j] + excess for j in range(last + 1, end + cells + 1)]
        p = values[cells:0:-1] + values
        slack = 8 * max(p)
        values = [_node(p, i, nodes, centres, slack) for i in range(end + 1)]
        last = end
    unit = Fraction(_sinh(d / 2, _work_bits(d))[1], 1 << _work_bits(d))
    return d, [Fraction(v, 1 << BITS) * unit for v in values]


def _distance(s: Fraction, length: int, thousandths: int) -> Fraction:
    """A Gaussian distance near `s sqrt(length)/2`, larger by a factor `1 + thousandths/1000`."""
    return s * Fraction(isqrt(length << 64), 1 << 33) * Fraction(1000 + thousandths, 1000)


def _normal(x: Fraction, bits: int) -> tuple[int, int]:
    """Integers around `2^bits (Phi(x) - 1/2)` by its alternating series; rounding errors travel with the terms."""
    point = (abs(x).numerator << bits) // abs(x).denominator
    square, doubt = point * point >> bits, 2 * (point >> bits) + 4
    term, error, total, loss, k = point, 1, point, 1, 0
    while term > 1 or square > (k + 1) << bits:
        k += 1
        error = (error * (square + doubt) + term * doubt >> bits) // (2 * k) + 3
        term = (term * square >> bits) // (2 * k)
        total += (-term if k % 2 else term) // (2 * k + 1)
        loss += error + 1
    reach = loss + error + 2
    low = (total - reach) * INVERSE_ROOT_TWO_PI // SCALE_OF_INVERSE_ROOT - 1
    high = (total + reach) * (INVERSE_ROOT_TWO_PI + 1) // SCALE_OF_INVERSE_ROOT + 1
    return (low, high) if x >= 0 else (-high, -low)


def _composed(d: Fraction, values: list[Fraction], m: Fraction, count: int) -> Fraction:
    """Upper bound over `count` blocks of a kind with node bounds `values`, each dominated at Gaussian distance `m`."""
    bits = _work_bits(d)
    one = 1 << bits
    low_sinh, high_sinh = _sinh(d / 2, bits)
    growth = (low_sinh + isqrt(one * one + low_sinh**2), high_sinh + isqrt(one * one + high_sinh**2) + 1)
    low, high = one, one
    deficit = Fraction(0)
    for i, value in enumerate(values):
        inner = max(0, one // 2 - _normal(i * d / m - m / 2, bits)[1])
        outer = one // 2 - _normal(i * d / m + m / 2, bits)[0]
        kink = Fraction(low - one * one // low - 1, 2 * one)
        tails = Fraction(inner * one // high + (-outer * high >> bits), one)
        deficit = max(deficit, value - kink - tails)
        low, high = low * growth[0] >> bits, -(-high * growth[1] >> bits)
        excess = value - kink
    peak = Fraction(INVERSE_ROOT_TWO_PI + 1, SCALE_OF_INVERSE_ROOT) / m
    deficit = max(deficit + d * d / 8 * peak, excess)
    root = isqrt(count << 2 * bits) + 1
    return Fraction(2 * _normal(Fraction(root, one) * m / 2, bits)[1], one) + count * deficit
