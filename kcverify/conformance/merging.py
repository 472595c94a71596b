"""Trees that merge moments of parts, whatever part goes into which: how far the mean of all is off.

Part B is merged into part A, W = n_B / n_A, n = n_A + n_B: `m = m_A + s d`, `d = m_B - m_A`, `s = n_B / n` rounded once. That has
three roundings of `s d` and one of m: it is off by at most `g s |d| + u |m|`, g = gamma_3 (1 + u), from what an exact merge of the same
means gives. Let R^2 be the sum of the squares that a node holds, so that `n_A m_A^2 + n_B m_B^2 <= R^2`. Since

    n_A m_A^2 + n_B m_B^2 = n m^2 + (n_A n_B / n) d^2,

Cauchy and Schwarz give `sqrt(n) (g s |d| + u |m|) <= c(W) R`, `c(W) = sqrt(g^2 W + u^2)`, and there are means that reach it: W may be
above 1, where a larger part is merged into a smaller one. A weighted mean has `gamma_3 R <= c(1) R`.

What was off below: `sqrt(n) |n_A e_A + n_B e_B| / n <= sqrt(n_A e_A^2 + n_B e_B^2) <= max(K_A, K_B) R` where `sqrt(n_X) |e_X| <= K_X R_X`.
The means that are merged are the computed ones, of which R is at most (1 + K) R. So `1 + K = (1 + max(K_A, K_B))(1 + c(W))`.

Against the mean size M of what a node holds: `s |m_A| <= W (n_A / n) M_A`, so a merge is off by at most `(g max(W, 1) + u) M`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Declared, Derivation

_ONE = Fraction(1)
_STEPS = 2**160


@dataclass(frozen=True)
class Node:
    """A part: its terms, `1 + K` against the root mean square and against the mean size, merges above its lowest leaf."""

    count: int
    root: Fraction
    size: Fraction
    height: int = 0


@dataclass(frozen=True)
class Tree:
    """All parts merged: words, roundings `leaf` of a part's mean, the height, and how far the mean is off in both measures."""

    said: str
    leaf: int
    height: int
    root: Derivation
    size: Derivation


def _up(value: Fraction) -> Fraction:
    """Rounded up to a multiple of 2^-160: long products stay readable."""
    return Fraction(-(-value.numerator * _STEPS // value.denominator), _STEPS)


def _third(name: str) -> tuple[Fraction, Fraction]:
    """u, and g = gamma_3 (1 + u)."""
    u = t.unit_roundoff(name)
    return u, 3 * u / (1 - 3 * u) * (1 + u)


@lru_cache(4096)
def merge_error(into: int, other: int, name: str) -> Fraction:
    """`c(W)`, rounded up: how far one merge is off, against the root mean square; W = other / into."""
    u, g = _third(name)
    root = t.root_up((g / u) ** 2 * Fraction(other, into) + 1) if u else Fraction(0)
    assert root is not None
    return u * root


def merge_size(into: int, other: int, name: str) -> Fraction:
    """The same against the mean size: `g max(W, 1) + u`."""
    u, g = _third(name)
    return g * max(Fraction(other, into), _ONE) + u


def merged(into: Node | None, other: Node, name: str) -> Node:
    """`other` merged into a part; into none it is as it is."""
    if into is None:
        return other
    root, size = max(into.root, other.root), max(into.size, other.size)
    return Node(
        into.count + other.count,
        _up(root * (1 + merge_error(into.count, other.count, name))),
        _up(size * (1 + merge_size(into.count, other.count, name))),
        max(into.height, other.height) + 1,
    )


def roundings(count: int) -> int:
    """Of a part's mean by two passes or updates; a part of one term has none."""
    return 0 if count <= 1 else count + 8 + 4 * t.ceil_log2(count)


def _leaf(count: int, name: str) -> Node:
    value = t.gamma(roundings(count), name).value
    assert value is not None  # counts are exact: roundings of a part are checked before
    return Node(count, 1 + value, 1 + value)


def _counter(count: int, size: int, name: str) -> Node:
    """Parts added up like the digits of a binary counter; what it holds at the end is merged from its lowest digit up."""
    parts = -(-count // size)
    digits: list[Node | None] = [None] * max(t.ceil_log2(parts), 1)
    for i in range(parts):
        digits[0] = merged(digits[0], _leaf(min(size, count - i * size), name), name)
        at = 1
        while at < len(digits) and (i + 1) % 2**at == 0:
            below = digits[at - 1]
            assert below is not None
            digits[at], digits[at - 1] = merged(digits[at], below, name), None
            at += 1
    out: Node | None = None
    for digit in digits:
        out = out if digit is None else merged(out, digit, name)
    assert out is not None
    return out


def _lanes(count: int, size: int, lanes: int, name: str) -> Node:
    """Terms dealt to lanes, a counter each; what is left over by updates, then the lanes merged into it one after another."""
    each, left = divmod(count, lanes)
    out = _leaf(left, name) if left else None
    lane = _counter(each, size, name) if each else None
    for _ in range(lanes if lane is not None else 0):
        assert lane is not None
        out = merged(out, lane, name)
    assert out is not None
    return out


@lru_cache(256)
def _cascade(count: int, size: int, lanes: int, name: str) -> tuple[int, Node]:
    """Roundings of a part's mean, and the worst over 1, 2, 4 .. lanes: a processor has as many as its registers are wide."""
    widths = sorted({lanes, *(2**i for i in range(lanes.bit_length()))})
    found = [_lanes(count, size, width, name) for width in widths]
    leaf = max(roundings(min(size, count)), roundings(min(lanes - 1, count)))
    return leaf, Node(
        count, max(n.root for n in found), max(n.size for n in found), max(n.height for n in found)
    )  # fmt: skip


def balanced(count: int, d: Declared) -> Tree | Derivation:
    """Parts of `d.block` terms merged as a balanced tree, the smaller one into the larger one; why nothing is said, else."""
    size = min(d.block, count)
    leaf, height = roundings(size), t.ceil_log2(-(-count // d.block))
    part, size_off = t.gamma(leaf, d.accumulator), t.gamma(leaf + 4 * height, d.accumulator)
    if part.value is None or size_off.value is None:
        return t.larger(part, size_off)
    c = merge_error(1, 1, d.accumulator)
    value = (1 + part.value) * (1 + c) ** height - 1
    lines = (
        *part.lines,
        f"{height} levels of merges, each off by c(1) = sqrt(g^2 + u^2) = {t.shown(c)}: K = {t.shown(value)}",
    )
    said = f"{-(-count // d.block)} parts merged at {height} levels"
    return Tree(said, leaf, height, Derivation(value, lines), size_off)


def cascade(count: int, d: Declared) -> Tree | Derivation:
    """Parts of `d.block` terms in `d.lanes` lanes merged as a binary counter; why nothing is said, else."""
    longest = max(roundings(min(d.block, count)), roundings(min(d.lanes - 1, count)))
    part = t.gamma(longest, d.accumulator)
    if part.value is None:
        return part
    leaf, node = _cascade(count, min(d.block, count), min(d.lanes, count), d.accumulator)
    said = f"parts of {min(d.block, count)} terms in up to {d.lanes} lanes, merged as a binary counter of height {node.height}"
    why = f"{said}, larger parts into smaller ones at c(W) = sqrt(g^2 W + u^2)"
    root, size = (
        Derivation(value - 1, (*part.lines, f"{why}: {what} {t.shown(value - 1)}"))
        for value, what in ((node.root, "K ="), (node.size, "of the mean size"))
    )
    return Tree(said, leaf, node.height, root, size)


def tree(count: int, d: Declared) -> Tree | Derivation:
    """The declared tree. Counts must be exact: nothing is said once `n u >= 1/2`."""
    exact = t.gamma(count, d.accumulator)
    if exact.value is None:
        return exact
    return cascade(count, d) if d.summation == "cascade" else balanced(count, d)


TREES = ("pairwise", "cascade")
"""Words of `summation` for moments that are merged."""


def within(one: Tree, factor: Fraction) -> Tree:
    """The tree with its error against the mean size by the root mean square, where that is less: `factor` of it at the operands."""
    if one.root.value is None or one.size.value is None or one.root.value * factor >= one.size.value:
        return one
    value = one.root.value * factor
    said = f"the root mean square is at most {t.shown(factor)} of the mean size: {t.shown(value)}"
    return replace(one, size=Derivation(value, (*one.root.lines, said)))
