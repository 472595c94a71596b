"""Triton kernel of the first sweep: the sums of a stretch of a row, plain or with masks.

Per-lane float32 sums around the reference's running maximum and the pilot shift of its running arg-max, one maximum a
tile; what no clause needs is not kept. A whole row, or each of its stretches where rows are few, leaves one state.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import triton
import triton.language as tl

from kcverify.runtime.gpu.tiles import (
    MASKS,
    centred,
    centred_weights,
    gross_error,
    masked_weights,
    put,
    rebased,
    tile,
)

NAMES = (
    "m", "c", "best", "S", "A", "G", "D", "U", "W", "gross", "high", "low", "other", "at_best",
    "PO", "UO", "mx", "PX", "QX", "lost", "gained", "bad",
)  # fmt: skip
"""Columns of a stretch's state, each float64. `best` is the reference logit where the pilot was taken, `at_best` the
candidate's largest logit among the reference's largest, `other` the candidate's largest, `mx` the maximum that PX and
QX refer to, `gross` what the sums were the difference of."""

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def plain_tile(
    z, w, start, stop, m, c, best, at_best, gross, k, scale, S, A, G, D, U, W, high, low, other,
    TAIL: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr, SCALED: tl.constexpr, SOFTMAX: tl.constexpr,
    REVERSE: tl.constexpr, ENTROPY: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """One tile whose values are taken to be finite; a value that is not makes G infinite or NaN."""
    inside, a, b = tile(z, w, start, stop, TAIL, BLOCK)
    if SOFTMAX or TOP:
        largest = tl.max(a, 0)
        if largest >= m:
            rise = largest > m
            there = tl.max(tl.where(a == largest, b, float("-inf")), 0)
            at_best = tl.where(rise, there, tl.maximum(at_best, there))
            if SOFTMAX:
                nc = tl.where(rise, there - largest, c)
                move = tl.where(m > float("-inf"), c - nc, 0.0)
                h = move * scale
                step = tl.maximum((m - largest) * k, -1e4)
                gross = gross_error(gross, tl.sum(S, 0), h, step)
                S, A, G, D, U, W = rebased(S, A, G, D, U, W, h, step * LN2, step)
                if EXACT:
                    high += move
                    low += move
                c = nc
            m, best = largest, largest
    if TOP:
        other = tl.maximum(other, tl.where(inside, b, float("-inf")) if TAIL else b)
    if SOFTMAX:
        e, x, d, raw, g, _ = centred_weights(a, b, inside, m, c, k, scale, TAIL, EXACT, SCALED)
        S += e
        A += e * d
        G += e * g
        if REVERSE or ENTROPY:
            moved = e * (d + g)
            D += moved * d
        if ENTROPY:
            U += e * x
            W += moved * x
    else:
        raw = centred(a, b, c) if EXACT else b - a
        G += tl.where(inside, raw, 0.0) if TAIL else raw
    high = tl.maximum(high, tl.where(inside, raw, float("-inf")) if TAIL else raw)
    low = tl.minimum(low, tl.where(inside, raw, float("inf")) if TAIL else raw)
    return m, c, best, at_best, gross, S, A, G, D, U, W, high, low, other


@triton.jit
def first_shift(z, w, lo, EXACT: tl.constexpr, SOFTMAX: tl.constexpr):
    """The pilot to begin with: where only the range is wanted, `w-z` of the first token, so that an offset costs nothing."""
    c = tl.full((), 0.0, tl.float32)
    if EXACT and not SOFTMAX:
        d = tl.load(w + lo).to(tl.float32) - tl.load(z + lo).to(tl.float32)
        c = tl.where(d - d == 0.0, d, 0.0)
    return c


@triton.jit
def plain_stretch(
    z, w, lo, hi, k, scale, BLOCK: tl.constexpr, EXACT: tl.constexpr, SCALED: tl.constexpr, SOFTMAX: tl.constexpr,
    REVERSE: tl.constexpr, ENTROPY: tl.constexpr, TOP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state of the tokens `lo..hi`."""
    zero = tl.zeros((BLOCK,), tl.float32)
    S, A, G, D, U, W = zero, zero, zero, zero, zero, zero
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    low, other = -high, high
    m = tl.full((), float("-inf"), tl.float32)
    c = first_shift(z, w, lo, EXACT, SOFTMAX)
    gross, best, at_best = tl.full((), 0.0, tl.float32), m, m
    full = lo + (hi - lo) // BLOCK * BLOCK
    for start in tl.range(lo, full, BLOCK, num_stages=STAGES):
        m, c, best, at_best, gross, S, A, G, D, U, W, high, low, other = plain_tile(
            z, w, start, hi, m, c, best, at_best, gross, k, scale, S, A, G, D, U, W, high, low, other,
            False, BLOCK, EXACT, SCALED, SOFTMAX, REVERSE, ENTROPY, TOP,
        )  # fmt: skip
    if full < hi:
        m, c, best, at_best, gross, S, A, G, D, U, W, high, low, other = plain_tile(
            z, w, full, hi, m, c, best, at_best, gross, k, scale, S, A, G, D, U, W, high, low, other,
            True, BLOCK, EXACT, SCALED, SOFTMAX, REVERSE, ENTROPY, TOP,
        )  # fmt: skip
    return m, c, best, S, A, G, D, U, W, gross, high, low, other, at_best


@triton.jit
def one_sided(a, b, nx, m, mx, k, scale, PO, UO, PX, QX, ENTROPY: tl.constexpr):
    """The masses that only one side has, the candidate's relative to its own maximum `nx`, before that `mx`."""
    NINF = float("-inf")
    only_p, only_q = (a > NINF) & (b == NINF), (b > NINF) & (a == NINF)
    x = tl.where(only_p, tl.maximum((a - m) * k, -150.0), 0.0)
    e = tl.where(only_p, tl.exp2(x), 0.0)
    PO += e
    step = tl.where(mx > NINF, tl.maximum((mx - nx) * k, -1e4), -1e4)
    y = tl.where(only_q, tl.maximum((b - nx) * k, -150.0), 0.0)
    q, f = tl.where(only_q, tl.exp2(y), 0.0), tl.exp2(step)
    if ENTROPY:
        UO += e * x
        QX = f * (QX + step * PX) + q * y
    PX = f * PX + q
    return PO, UO, PX, QX


@triton.jit
def masked_tile(
    z, w, start, stop, m, c, best, at_best, gross, mx, k, scale, S, A, G, D, U, W, high, low, other, PO, UO, PX, QX,
    lost, gained, bad, BLOCK: tl.constexpr, EXACT: tl.constexpr, SCALED: tl.constexpr, SOFTMAX: tl.constexpr,
    REVERSE: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """One tile of any values; what only one side has, and what is no logit, is looked at where a tile holds any."""
    NINF, INF = float("-inf"), float("inf")
    inside, a, b = tile(z, w, start, stop, True, BLOCK)
    b = tl.where(inside, b, NINF)
    raw = b - a
    both = raw - raw == 0.0
    common = tl.max(tl.where(both, a, tl.where((a == NINF) & (b == NINF), NINF, INF)), 0)
    largest, nx = common, mx
    odd = common == INF
    if odd:
        only_p, only_q = (a > NINF) & (b == NINF), (b > NINF) & (a == NINF)
        lost += only_p.to(tl.int32)
        gained += only_q.to(tl.int32)
        broken = (a != a) | (b != b) | (a == INF) | (b == INF)
        bad += broken.to(tl.int32)
        far = (both | only_p | only_q | broken | ((a == NINF) & (b == NINF))).to(tl.int32)  # 0: w-z overflows
        gross = tl.where(tl.min(far, 0) == 0, INF, gross)
        common, largest = tl.max(tl.where(both, a, NINF), 0), tl.max(a, 0)
        nx = tl.maximum(mx, tl.max(tl.where(only_q, b, NINF), 0))
    other = tl.maximum(other, b)
    if (largest > NINF) & ((largest >= m) | (common > best)):
        there = tl.max(tl.where(a == largest, b, NINF), 0)
        at_best = tl.where(largest > m, there, tl.where(largest == m, tl.maximum(at_best, there), at_best))
        nm = tl.maximum(m, largest)
        if SOFTMAX:
            shift = tl.max(tl.where(both & (a == common), b, NINF), 0) - common
            nc = tl.where(common > best, shift, c)
            move = tl.where(best > NINF, c - nc, 0.0)
            step = tl.where(m > NINF, tl.maximum((m - nm) * k, -1e4), -1e4)
            gross = gross_error(gross, tl.sum(S, 0), move * scale, step)
            f = tl.exp2(step)
            UO = f * (UO + step * PO)
            PO *= f
            S, A, G, D, U, W = rebased(S, A, G, D, U, W, move * scale, step * LN2, step)
            if EXACT:
                high += move
                low += move
            c, best = nc, tl.maximum(best, common)
        m = nm
    if SOFTMAX:
        e, x, d, raw, g, _ = masked_weights(a, b, both, both, m, c, k, scale, EXACT, SCALED)
        S, A, G = S + e, A + e * d, G + e * g
        if REVERSE or ENTROPY:
            moved = e * (d + g)
            D += moved * d
        if ENTROPY:
            U, W = U + e * x, W + moved * x
        if odd:
            PO, UO, PX, QX = one_sided(a, b, nx, m, mx, k, scale, PO, UO, PX, QX, ENTROPY)
        mx = nx
    else:
        raw = centred(a, b, c) if EXACT else raw
    high = tl.maximum(high, tl.where(both, raw, NINF))
    low = tl.minimum(low, tl.where(both, raw, INF))
    return m, c, best, at_best, gross, mx, S, A, G, D, U, W, high, low, other, PO, UO, PX, QX, lost, gained, bad


@triton.jit
def masked_stretch(
    z, w, lo, hi, k, scale, BLOCK: tl.constexpr, EXACT: tl.constexpr, SCALED: tl.constexpr, SOFTMAX: tl.constexpr,
    REVERSE: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """The state of the tokens `lo..hi`, whatever they are, and what `NAMES` has beyond."""
    zero = tl.zeros((BLOCK,), tl.float32)
    S, A, G, D, U, W, PO, UO, PX, QX = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    low, other = -high, high
    lost = tl.zeros((BLOCK,), tl.int32)
    gained, bad = lost, lost
    m = tl.full((), float("-inf"), tl.float32)
    c = first_shift(z, w, lo, EXACT, SOFTMAX)
    gross, best, at_best, mx = tl.full((), 0.0, tl.float32), m, m, m
    for start in range(lo, hi, BLOCK):
        now = masked_tile(
            z, w, start, hi, m, c, best, at_best, gross, mx, k, scale, S, A, G, D, U, W, high, low, other,
            PO, UO, PX, QX, lost, gained, bad, BLOCK, EXACT, SCALED, SOFTMAX, REVERSE, ENTROPY,
        )  # fmt: skip
        m, c, best, at_best, gross, mx, S, A, G, D, U, W, high, low, other, PO, UO, PX, QX, lost, gained, bad = now
    plain = (m, c, best, S, A, G, D, U, W, gross, high, low, other, at_best)
    return plain, (PO, UO, mx, PX, QX, lost, gained, bad)


@triton.jit
def total(x):
    """Sum of the lanes in float64."""
    return tl.sum(x.to(tl.float64), 0)


@triton.jit
def sums_kernel(
    z, w, state, part, step, width, z_step, w_step, stretch, scale, k, BLOCK: tl.constexpr, MASKED: tl.constexpr,
    EXACT: tl.constexpr, SCALED: tl.constexpr, SOFTMAX: tl.constexpr, REVERSE: tl.constexpr, ENTROPY: tl.constexpr,
    TOP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """State of stretch `program_id(1)` of row `program_id(0)`; with MASKED only where the row asks for it.

    `z`, `w` point at logits with rows `z_step`, `w_step` apart and neighbours 1 apart; `part` at float64
    `[NAMES, rows, stretches]`, a column `step` apart; `k` is log2(e)/T and `scale` 1/T. The
    loads of a plain tile are issued STAGES - 1 tiles ahead.
    """
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if MASKED and tl.load(state + row) != MASKS:
        return
    z += row * z_step
    w += row * w_step
    part += row * tl.num_programs(1) + at
    lo = at * stretch
    hi = tl.minimum(lo + stretch, width)
    if MASKED:
        plain, rest = masked_stretch(z, w, lo, hi, k, scale, BLOCK, EXACT, SCALED, SOFTMAX, REVERSE, ENTROPY)
        PO, UO, mx, PX, QX, lost, gained, bad = rest
        masses = (total(PO), total(UO) * LN2, mx, total(PX), total(QX) * LN2)
        put(part, step, 14, masses)
        put(part, step, 19, (tl.sum(lost, 0), tl.sum(gained, 0), tl.sum(bad, 0)))
    else:
        plain = plain_stretch(z, w, lo, hi, k, scale, BLOCK, EXACT, SCALED, SOFTMAX, REVERSE, ENTROPY, TOP, STAGES)
    m, c, best, S, A, G, D, U, W, gross, high, low, other, at_best = plain
    put(part, step, 0, (m, c, best))
    put(part, step, 3, (total(S), total(A), total(G), total(D), total(U) * LN2, total(W) * LN2, gross))
    moved = c.to(tl.float64) if EXACT else 0.0
    range_ends = (tl.max(high, 0).to(tl.float64) + moved, tl.min(low, 0).to(tl.float64) + moved)
    put(part, step, 10, range_ends)
    put(part, step, 12, (tl.max(other, 0), at_best))
