"""Arithmetic of the Triton kernels: loads, weights and shifts of a tile of tokens, and the closed-form rebasing."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import triton
import triton.language as tl

_L2E = tl.constexpr(1.4426950408889634)
DONE, MASKS, WIDE, INVALID, MASKED = (tl.constexpr(i) for i in range(5))
"""State of a row: done; to be done with masks; to be done in float64; invalid; done with masks."""


@triton.jit
def tile(z, w, start, stop, TAIL: tl.constexpr, BLOCK: tl.constexpr):
    """Which lanes are inside `stop`, and the logits in float32; outside, the reference is absent."""
    at = start + tl.arange(0, BLOCK)
    inside = at < stop
    if TAIL:
        a = tl.load(z + at, mask=inside, other=float("-inf")).to(tl.float32)
        b = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    else:
        a = tl.load(z + at).to(tl.float32)
        b = tl.load(w + at).to(tl.float32)
    return inside, a, b


@triton.jit
def excess(x):
    """`expm1(x) - x` and `exp(x)` in float32: the series to 1/2, exp2 beyond; relative error 3e-6 at worst."""
    p = x * (1.0 / 5040) + (1.0 / 720)
    p = p * x + (1.0 / 120)
    p = p * x + (1.0 / 24)
    p = p * x + (1.0 / 6)
    p = p * x + 0.5
    near = p * (x * x)
    grown = tl.exp2(x * _L2E)
    small = tl.abs(x) < 0.5
    return tl.where(small, near, grown - 1.0 - x), tl.where(small, 1.0 + (x + near), grown)


@triton.jit
def excess_exact(x):
    """`expm1(x) - x` to the resolution of the argument's own format, float64 included."""
    p = x * 0.0 + 1.0
    for j in tl.static_range(16, 2, -1):
        p = 1.0 + p * x * (1.0 / j)
    return tl.where(tl.abs(x) < 0.5, p * x * x * 0.5, tl.exp(x) - 1.0 - x)


@triton.jit
def centred(a, b, c):
    """`(b - a) - c` without losing what the first rounding drops."""
    s = b - a
    v = s - b
    return (s - c) + ((b - (s - v)) - (a + v))


@triton.jit
def centred_weights(
    a, b, inside, m, c, k, scale, TAIL: tl.constexpr, EXACT: tl.constexpr, SCALED: tl.constexpr
):  # fmt: skip
    """Of each token: `e = exp((z-m)/T)`, its exponent in base 2, `d = ((w-z)-c)/T`, the range's share, expm1(d)-d, exp(d).

    EXACT (float32 logits) centres without rounding and gives the range around the pilot; otherwise the difference of
    two narrow formats is exact enough and the range is of `w-z`.
    """
    raw = centred(a, b, c) if EXACT else b - a
    d = raw if EXACT else raw - c
    if SCALED:
        d *= scale
    x = (a - m) * k
    e = tl.exp2(x)
    if TAIL:
        x, e, d = tl.where(inside, x, 0.0), tl.where(inside, e, 0.0), tl.where(inside, d, 0.0)
    g, grown = excess(d)
    return e, x, d, raw, g, grown


@triton.jit
def masked_weights(a, b, both, has_p, m, c, k, scale, EXACT: tl.constexpr, SCALED: tl.constexpr):
    """The same where tokens may be absent: `e` of what the reference has, `d` of what both have, else 0."""
    raw = centred(a, b, c) if EXACT else b - a
    d = tl.where(both, raw if EXACT else raw - c, 0.0)
    if SCALED:
        d *= scale
    x = tl.where(has_p, tl.maximum((a - m) * k, -150.0), 0.0)
    e = tl.where(has_p, tl.exp2(x), 0.0)
    g, grown = excess(d)
    return e, x, d, raw, g, grown


@triton.jit
def rebased(S, A, G, D, U, W, h, step, unit):
    """The sums moved to a pilot `h` lower and a maximum `-step` higher (both in units of T), in closed form.

    `unit` is `step` in the unit of U and W. With `t = expm1(h)`: A' = A + hS, G' = e^h G + tA + g(h)S,
    D' = e^h (D + h(A+G)) + tA', W' = e^h W + tU, then all of them by e^step, U and W with their exponents.
    """
    second, grow, f = excess_exact(h), tl.exp(h), tl.exp(step)
    less = tl.where(tl.abs(h) < 0.5, h + second, grow - 1.0)
    mass = A + G
    a = A + h * S
    D = f * (grow * (D + h * mass) + less * a)
    G = grow * G + less * A + second * S
    W = f * (grow * W + less * U + unit * (a + G))
    U = f * (U + unit * S)
    return f * S, f * a, f * G, D, U, W


@triton.jit
def gross_error(gross, mass, h, step):
    """What G is the difference of after a rebase, float32 or float64: it bounds the digits that were lost."""
    grow = tl.exp(h)
    return tl.exp2(step) * (grow * gross + tl.abs(h * (grow - 1.0)) * mass)


@triton.jit
def put(part, step, FIRST: tl.constexpr, values):
    """Store columns `FIRST..` of a table whose columns lie `step` apart, in float64."""
    for i in tl.static_range(len(values)):
        tl.store(part + (FIRST + i) * step, values[i].to(tl.float64))
