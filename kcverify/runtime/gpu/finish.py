"""Triton kernels after the first sweep: merging of stretches, the second sweep, and rows that need float64.

What a row still needs is decided on the device: every kernel returns at once for a row that does not need it, so that
nothing waits for the host and the whole sequence can be captured in a CUDA graph.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import triton
import triton.language as tl

from kcverify.runtime.gpu.tiles import (
    DONE,
    INVALID,
    MASKED,
    MASKS,
    WIDE,
    centred_weights,
    excess_exact,
    gross_error,
    masked_weights,
    put,
    rebased,
    tile,
)
from kcverify.runtime.sums import COLUMNS

_S, _PO, _PX, _X, _G, _D, _B, _U, _Q, _GROWN, _PILOT, _LARGEST, _HIGH, _LOW, _DRIFT, _TOP, _UNSWEPT, _TV = (
    tl.constexpr(COLUMNS.index(name))
    for name in (
        "S", "PO", "PX", "X", "G", "D", "b", "U", "Q", "grown", "pilot", "largest", "highest", "lowest", "drift", "top",
        "unswept", "TV",
    )
)  # fmt: skip
_L2E = tl.constexpr(1.4426950408889634)
_REACH = tl.constexpr(30.0)  # drift from the pilot beyond which float32 sums are not trusted
_FARTHEST = tl.constexpr(64.0)  # how many times their size the sums may be the difference of
WIDE_NAMES = (
    "tv", "kl_reference_candidate", "kl_candidate_reference", "chi2", "bc", "entropy_reference", "entropy_candidate",
    "high", "low", "lse_reference", "lse_candidate",
)  # fmt: skip
"""Columns that `wide_kernel` writes; `high` and `low` are the range of ln(q/p), the `lse` those of the scaled logits."""


@triton.jit
def get(part, column: tl.constexpr, step, at):
    """One column of a stretch's state."""
    return tl.load(part + column * step + at)


@triton.jit
def log1p(x):
    """`log(1+x)` in float64 to full relative accuracy."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def merged(part, step, stretches, scale, MASKS_ON: tl.constexpr):
    """The stretches' states moved to the largest maximum and the pilot of the largest reference logit, and added."""
    NINF = float("-inf")
    m, c, best = get(part, 0, step, 0), get(part, 1, step, 0), get(part, 2, step, 0)
    S, A, G, D = get(part, 3, step, 0), get(part, 4, step, 0), get(part, 5, step, 0), get(part, 6, step, 0)
    U, W, gross = get(part, 7, step, 0), get(part, 8, step, 0), get(part, 9, step, 0)
    high, low = get(part, 10, step, 0), get(part, 11, step, 0)
    other, at_best = get(part, 12, step, 0), get(part, 13, step, 0)
    PO = S * 0.0
    UO, PX, QX, lost, gained, bad, mx = PO, PO, PO, PO, PO, PO, m
    if MASKS_ON:
        PO, UO, mx = get(part, 14, step, 0), get(part, 15, step, 0), get(part, 16, step, 0)
        PX, QX = get(part, 17, step, 0), get(part, 18, step, 0)
        lost, gained, bad = get(part, 19, step, 0), get(part, 20, step, 0), get(part, 21, step, 0)
    for at in range(1, stretches):
        m2, c2, best2 = get(part, 0, step, at), get(part, 1, step, at), get(part, 2, step, at)
        nm, nc = tl.maximum(m, m2), tl.where(best2 > best, c2, c)
        fall = tl.where(m > NINF, tl.maximum((m - nm) * scale, -1e4), -1e4)
        fall2 = tl.where(m2 > NINF, tl.maximum((m2 - nm) * scale, -1e4), -1e4)
        h, h2 = tl.where(S > 0.0, (c - nc) * scale, 0.0), (c2 - nc) * scale
        s2, a2, g2, d2 = get(part, 3, step, at), get(part, 4, step, at), get(part, 5, step, at), get(part, 6, step, at)
        u2, w2 = get(part, 7, step, at), get(part, 8, step, at)
        h2 = tl.where(s2 > 0.0, h2, 0.0)
        gross = gross_error(gross, S, h, fall * _L2E) + gross_error(get(part, 9, step, at), s2, h2, fall2 * _L2E)
        S, A, G, D, U, W = rebased(S, A, G, D, U, W, h, fall, fall)
        s2, a2, g2, d2, u2, w2 = rebased(s2, a2, g2, d2, u2, w2, h2, fall2, fall2)
        S, A, G, D, U, W = S + s2, A + a2, G + g2, D + d2, U + u2, W + w2
        high, low = tl.maximum(high, get(part, 10, step, at)), tl.minimum(low, get(part, 11, step, at))
        there = get(part, 13, step, at)
        at_best = tl.where(m2 > m, there, tl.where(m2 == m, tl.maximum(at_best, there), at_best))
        other = tl.maximum(other, get(part, 12, step, at))
        if MASKS_ON:
            f, f2 = tl.exp(fall), tl.exp(fall2)
            po2 = get(part, 14, step, at)
            UO = f * (UO + fall * PO) + f2 * (get(part, 15, step, at) + fall2 * po2)
            PO = f * PO + f2 * po2
            mx2, px2 = get(part, 16, step, at), get(part, 17, step, at)
            nx = tl.maximum(mx, mx2)
            fall = tl.where(mx > NINF, tl.maximum((mx - nx) * scale, -1e4), -1e4)
            fall2 = tl.where(mx2 > NINF, tl.maximum((mx2 - nx) * scale, -1e4), -1e4)
            QX = tl.exp(fall) * (QX + fall * PX) + tl.exp(fall2) * (get(part, 18, step, at) + fall2 * px2)
            PX, mx = tl.exp(fall) * PX + tl.exp(fall2) * px2, nx
            lost, gained = lost + get(part, 19, step, at), gained + get(part, 20, step, at)
            bad += get(part, 21, step, at)
        m, c, best = nm, nc, tl.maximum(best, best2)
    if MASKS_ON:  # relative to the candidate's own maximum until the pilot is known
        y = tl.where(gained > 0.0, (mx - c - m) * scale, 0.0)
        QX, PX = tl.exp(y) * (QX + y * PX), tl.exp(y) * PX
    return m, c, S, A, G, D, U, W, gross, high, low, other, at_best, PO, UO, PX, QX, lost, gained, bad


@triton.jit
def is_sound(S, A, G, gross, b, grown, alone, largest):
    """Whether float32 sums carry the row: no far token, and neither divergence nor normaliser lost its digits.

    `alone` is the mass that one side has by itself; S, A and G are those of the common tokens, whose divergence is what
    G must not dwarf. `gross` is what G was the difference of.
    """
    inner = (A + G) / S
    growth = log1p(inner)
    spread = tl.where(inner >= 1.0, growth - A / S, G / S - (inner - growth)) + alone
    size = tl.where(inner >= 1.0, growth, G / S) + gross / S
    lost_digits = (tl.abs(A) + G + gross) / S / grown
    near = (largest <= _REACH) & (grown > 0.0) & (b - b == 0.0) & (lost_digits <= 16.0 * tl.maximum(largest, 1.0))
    return near & (size <= _FARTHEST * spread) & (lost_digits * tl.minimum(tl.abs(b), 1.0) <= _FARTHEST * spread)


@triton.jit
def merge_kernel(
    part, state, table, maxima, only, step, rows, stretches, scale_high, scale_low, MASKS_ON: tl.constexpr,
    SOFTMAX: tl.constexpr, CERTIFIED: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Row `program_id(0)`: its stretches as one, its columns of `table` `[COLUMNS, rows]`, its state.

    `only` is int64 `[2, rows]`; `scale_high + scale_low` is 1/T. With CERTIFIED a row whose certificate is at most
    LIMIT is not swept again.
    """
    row = tl.program_id(0).to(tl.int64)
    if MASKS_ON and tl.load(state + row) != MASKS:
        return
    scale = tl.full((), scale_high, tl.float64) + tl.full((), scale_low, tl.float64)
    m, c, S, A, G, D, U, W, gross, high, low, other, at_best, PO, UO, PX, QX, lost, gained, bad = merged(
        part + row * stretches, step, stretches, scale, MASKS_ON
    )
    finite = (G - G == 0.0) & (U - U == 0.0) & (S - S == 0.0)
    after = tl.where(finite, DONE, MASKS)
    if MASKS_ON:
        finite = (m > float("-inf")) & (other > float("-inf")) & (bad == 0.0)
        after = tl.where(finite, MASKED, INVALID)
        tl.store(only + row, tl.where(finite, lost, 0.0).to(tl.int64))
        tl.store(only + rows + row, tl.where(finite, gained, 0.0).to(tl.int64))
    drift = tl.maximum(tl.abs(high), tl.abs(low))
    table += row
    tl.store(table + _HIGH * rows, high)
    tl.store(table + _LOW * rows, low)
    tl.store(table + _DRIFT * rows, drift)
    tl.store(table + _TOP * rows, tl.where(at_best == other, 1.0, 0.0).to(tl.float64))
    if SOFTMAX:
        total, gain = S + PO, A + G + PX
        b, grown = (gain - PO) / total, (gain + S) / total
        shift = tl.where(b < -0.5, tl.log(grown), log1p(b))
        kl = tl.where(b >= 1.0, shift - A / total, G / total - (b - shift) + PX / total)
        largest = tl.maximum(tl.maximum(high - c, c - low) * scale, 0.0)
        sound = is_sound(S, A, G, gross, b, grown, (PO + PX / grown) / total, largest)
        if MASKS_ON:
            sound = sound & (((lost == 0.0) & (gained == 0.0)) | ((grown > 1e-6) & (grown < 1e6)))
        after = tl.where(finite & (sound == 0), WIDE, after)
        tl.store(table + _S * rows, total)
        tl.store(table + _PO * rows, PO)
        tl.store(table + _PX * rows, PX)
        tl.store(table + _X * rows, A)
        tl.store(table + _G * rows, G)
        tl.store(table + _D * rows, D)
        tl.store(table + _B * rows, b)
        tl.store(table + _GROWN * rows, grown)
        tl.store(table + _U * rows, U + UO)
        tl.store(table + _Q * rows, U + A + D + W + QX)
        tl.store(table + _PILOT * rows, c)
        tl.store(table + _LARGEST * rows, largest)
        tl.store(maxima + row, m)
        if CERTIFIED:
            bound = tl.sqrt(0.5 * tl.maximum(kl, 0.0)) * (1.0 + 2e-5) + 1e-12
            decided = (bound <= LIMIT) & (lost == 0.0) & ((after == DONE) | (after == MASKED))
            tl.store(table + _UNSWEPT * rows, tl.where(decided, 1.0, 0.0).to(tl.float64))
    tl.store(state + row, after)


@triton.jit
def second_tile(
    z, w, start, stop, m, c, b, inverse, k, scale, V, C, B, TAIL: tl.constexpr, MASKS_ON: tl.constexpr,
    BLOCK: tl.constexpr, EXACT: tl.constexpr, SCALED: tl.constexpr, TV: tl.constexpr, CHI2: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Terms of one tile that need the normaliser: of total variation, chi-squared and the affinity."""
    inside, p, q = tile(z, w, start, stop, TAIL, BLOCK)
    if MASKS_ON:
        q = tl.where(inside, q, float("-inf"))
        both = (p > float("-inf")) & (q > float("-inf"))
        e, _, d, _, g, grown = masked_weights(p, q, both, both, m, c, k, scale, EXACT, SCALED)
    else:
        e, _, d, _, g, grown = centred_weights(p, q, inside, m, c, k, scale, TAIL, EXACT, SCALED)
    gap = d + g - b
    if TV:
        V += e * tl.abs(gap)
    if CHI2:
        C += e * (gap * gap) / (grown * inverse)
    if BC:
        part = gap / (tl.sqrt(grown * inverse) + 1.0)
        B += e * (part * part)
    return V, C, B


@triton.jit
def second_kernel(
    z, w, state, table, maxima, out, rows, step, width, z_step, w_step, stretch, scale, k, BLOCK: tl.constexpr,
    EXACT: tl.constexpr, SCALED: tl.constexpr, TV: tl.constexpr, CHI2: tl.constexpr, BC: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Second sweep of a stretch, last row and last tile first; `out` is float64 `[3, rows, stretches]`, zeroed."""
    row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    at = tl.num_programs(1) - 1 - tl.program_id(1)
    kind = tl.load(state + row)
    table += row
    if ((kind != DONE) & (kind != MASKED)) | (tl.load(table + _UNSWEPT * rows) > 0.0):
        return
    z += row * z_step
    w += row * w_step
    lo = at * stretch
    hi = tl.minimum(lo + stretch, width)
    m, c = tl.load(maxima + row).to(tl.float32), tl.load(table + _PILOT * rows).to(tl.float32)
    b, grown = tl.load(table + _B * rows).to(tl.float32), tl.load(table + _GROWN * rows)
    inverse = (1.0 / grown).to(tl.float32)
    V = tl.zeros((BLOCK,), tl.float32)
    C, B = V, V
    tiles = (hi - lo + BLOCK - 1) // BLOCK
    if kind == MASKED:
        for i in range(tiles):
            V, C, B = second_tile(
                z, w, lo + (tiles - 1 - i) * BLOCK, hi, m, c, b, inverse, k, scale, V, C, B,
                True, True, BLOCK, EXACT, SCALED, TV, CHI2, BC,
            )  # fmt: skip
    else:
        whole = (hi - lo) // BLOCK
        if whole < tiles:
            V, C, B = second_tile(
                z, w, lo + whole * BLOCK, hi, m, c, b, inverse, k, scale, V, C, B,
                True, False, BLOCK, EXACT, SCALED, TV, CHI2, BC,
            )  # fmt: skip
        for i in tl.range(0, whole, num_stages=STAGES):
            V, C, B = second_tile(
                z, w, lo + (whole - 1 - i) * BLOCK, hi, m, c, b, inverse, k, scale, V, C, B,
                False, False, BLOCK, EXACT, SCALED, TV, CHI2, BC,
            )  # fmt: skip
    out += row * tl.num_programs(1) + at
    tl.store(out, tl.sum(V.to(tl.float64), 0))
    tl.store(out + step, tl.sum(C.to(tl.float64), 0))
    tl.store(out + 2 * step, tl.sum(B.to(tl.float64), 0) / (grown * grown))


@triton.jit
def wide_terms(a, b, lse_p, lse_q):
    """Terms of one tile of scaled float64 logits, absent ones at -inf: those of `careful.careful_row`."""
    has_p, has_q = a > float("-inf"), b > float("-inf")
    both = has_p & has_q
    log_p, log_q = tl.where(has_p, a - lse_p, 0.0), tl.where(has_q, b - lse_q, 0.0)
    p, q = tl.where(has_p, tl.exp(log_p), 0.0), tl.where(has_q, tl.exp(log_q), 0.0)
    d = tl.where(both, b, 0.0) - tl.where(both, a, 0.0)
    x = tl.where(both, tl.where(tl.abs(d) < 1e6, d - (lse_q - lse_p), log_q - log_p), 0.0)
    near = tl.abs(x) < 1.0
    g, back = excess_exact(x), excess_exact(-x)
    t = x + g
    lost, gained = tl.where(both, 0.0, p), tl.where(both, 0.0, q)
    forward = tl.where(both, tl.where(near, p * g, q - p - p * x), gained)
    backward = tl.where(both, tl.where(near, q * back, p - q + q * x), lost)
    gap = tl.where(near & both, p * t, q - p)
    root = tl.sqrt(p) - tl.sqrt(q)
    far = q - 2.0 * p + tl.exp(log_p - x)
    square = tl.where(both, tl.where(near, p * t * t * tl.exp(-x), far), gained)
    high, low = tl.where(both, x, float("-inf")), tl.where(both, x, float("inf"))
    return tl.abs(gap), forward, backward, square, root * root, -p * log_p, -q * log_q, high, low


@triton.jit
def wide_kernel(
    z, w, state, out, table, rows, width, z_step, w_step, scale_high, scale_low, BLOCK: tl.constexpr
):  # fmt: skip
    """A row in float64 log-probabilities, where float32 sums do not reach; `out` is float64 `[WIDE_NAMES, rows]`."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(state + row) != WIDE:
        return
    scale = tl.full((), scale_high, tl.float64) + tl.full((), scale_low, tl.float64)
    z += row * z_step
    w += row * w_step
    NINF = float("-inf")
    zero = tl.full((), 0.0, tl.float64)
    mp, mq, sp, sq = zero + NINF, zero + NINF, zero, zero
    raw_high, raw_low = zero + NINF, zero - NINF
    at = tl.arange(0, BLOCK)
    for start in range(0, width, BLOCK):
        inside = start + at < width
        a = tl.load(z + start + at, mask=inside, other=NINF).to(tl.float64)
        b = tl.load(w + start + at, mask=inside, other=NINF).to(tl.float64)
        both = (a > NINF) & (b > NINF)
        d = tl.where(both, b, 0.0) - tl.where(both, a, 0.0)
        raw_high = tl.maximum(raw_high, tl.max(tl.where(both, d, NINF), 0))
        raw_low = tl.minimum(raw_low, tl.min(tl.where(both, d, float("inf")), 0))
        a, b = a * scale, b * scale
        np, nq = tl.maximum(mp, tl.max(a, 0)), tl.maximum(mq, tl.max(b, 0))
        if np > NINF:
            sp = tl.where(mp > NINF, sp * tl.exp(mp - np), 0.0) + tl.sum(tl.exp(a - np), 0)
        if nq > NINF:
            sq = tl.where(mq > NINF, sq * tl.exp(mq - nq), 0.0) + tl.sum(tl.exp(b - nq), 0)
        mp, mq = np, nq
    lse_p, lse_q = mp + tl.log(sp), mq + tl.log(sq)
    tv, forward, backward, chi, roots, hp, hq = zero, zero, zero, zero, zero, zero, zero
    high, low = zero + NINF, zero - NINF
    for start in range(0, width, BLOCK):
        inside = start + at < width
        a = tl.load(z + start + at, mask=inside, other=NINF).to(tl.float64) * scale
        b = tl.load(w + start + at, mask=inside, other=NINF).to(tl.float64) * scale
        t0, t1, t2, t3, t4, t5, t6, up, down = wide_terms(a, b, lse_p, lse_q)
        tv, forward, backward = tv + tl.sum(t0, 0), forward + tl.sum(t1, 0), backward + tl.sum(t2, 0)
        chi, roots = chi + tl.sum(t3, 0), roots + tl.sum(t4, 0)
        hp, hq = hp + tl.sum(t5, 0), hq + tl.sum(t6, 0)
        high, low = tl.maximum(high, tl.max(up, 0)), tl.minimum(low, tl.min(down, 0))
    put(out + row, rows, 0, (tl.minimum(0.5 * tv, 1.0), tl.maximum(forward, 0.0), tl.maximum(backward, 0.0)))
    put(out + row, rows, 3, (tl.maximum(chi, 0.0), tl.minimum(tl.maximum(1.0 - 0.5 * roots, 0.0), 1.0)))
    put(out + row, rows, 5, (tl.maximum(hp, 0.0), tl.maximum(hq, 0.0), high, low, lse_p, lse_q))
    table += row
    tl.store(table + _HIGH * rows, raw_high)
    tl.store(table + _LOW * rows, raw_low)
    tl.store(table + _DRIFT * rows, tl.maximum(tl.abs(raw_high), tl.abs(raw_low)))
