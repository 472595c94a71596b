"""Triton kernel of the last step: every statistic of a row in float64 from its sums, in one launch.

The formulas are those of `sums.RowSums.finish`, which other backends run as some hundred small operations of torch; a
decoding step has too few rows to pay for so many launches.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import triton
import triton.language as tl

from kcverify.runtime.gpu.finish import WIDE_NAMES, log1p
from kcverify.runtime.gpu.tiles import WIDE, put
from kcverify.runtime.sums import COLUMNS

NAMES = (
    "logit_drift", "logit_span", "tv", "kl_reference_candidate", "kl_candidate_reference", "log_ratio", "ratio_min",
    "ratio_max", "chi2", "bc", "entropy_reference", "entropy_candidate", "token_log_ratio",
)  # fmt: skip
"""Columns that the kernel writes."""
_S, _PO, _PX, _X, _G, _D, _B, _TV, _CHI2, _BC, _U, _Q, _GROWN, _PILOT, _HIGH, _LOW, _DRIFT, _UNSWEPT = (
    tl.constexpr(COLUMNS.index(name))
    for name in (
        "S", "PO", "PX", "X", "G", "D", "b", "TV", "CHI2", "BC", "U", "Q", "grown", "pilot", "highest", "lowest", "drift",
        "unswept",
    )
)  # fmt: skip
_WIDE_HIGH, _WIDE_LOW, _LSE_P, _LSE_Q = (
    tl.constexpr(WIDE_NAMES.index(name)) for name in ("high", "low", "lse_reference", "lse_candidate")
)


@triton.jit
def certificate(kl):
    """Upper bound of the total variation from the divergence, as `sums.certificate`."""
    return tl.minimum(tl.sqrt(0.5 * kl) * (1.0 + 2e-5) + 1e-12, 1.0)


@triton.jit
def divergences(table, rows, total, b, grown, shift, only_p, only_q):
    """Both KL divergences, total variation, chi-squared and affinity of rows that float32 sums carry."""
    x, g, d = tl.load(table + _X * rows), tl.load(table + _G * rows), tl.load(table + _D * rows)
    po, px = tl.load(table + _PO * rows), tl.load(table + _PX * rows)
    whole, large = total * grown, b >= 1.0
    forward = tl.where(large, shift - x / total, g / total - (b - shift) + px / total)
    backward = tl.where(large, (x + d) / whole - shift, (d - g + po) / whole + (b / grown - shift))
    tv = 0.5 * (tl.load(table + _TV * rows) / whole + only_p + only_q)
    chi = tl.load(table + _CHI2 * rows) / (whole * grown) + only_q
    bc = 1.0 - 0.5 * (tl.load(table + _BC * rows) / total + only_p + only_q)
    return (
        tl.maximum(forward, 0.0), tl.maximum(backward, 0.0), tl.minimum(tl.maximum(tv, 0.0), 1.0), tl.maximum(chi, 0.0),
        tl.minimum(tl.maximum(bc, 0.0), 1.0),
    )  # fmt: skip


@triton.jit
def statistics_kernel(
    z, w, ids, state, table, only, wide, out, rows, z_step, w_step, scale_high, scale_low, TOKEN: tl.constexpr,
    CERTIFIED: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK rows: `out` float64 `[NAMES, rows]` from `table`, or from `wide` where a row was left to float64.

    `ids` int64 `[rows]` are the sampled tokens, read with TOKEN only.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.minimum(row, rows - 1)  # the last lanes do the last row again
    scale = tl.full((), scale_high, tl.float64) + tl.full((), scale_low, tl.float64)
    far, inf = tl.load(state + row) == WIDE, float("inf")
    lost, gained = tl.load(only + row) > 0, tl.load(only + rows + row) > 0
    table += row
    wide += row
    total, grown, b = tl.load(table + _S * rows), tl.load(table + _GROWN * rows), tl.load(table + _B * rows)
    shift = tl.where(b < -0.5, tl.log(tl.maximum(grown, 0.0)), log1p(b))
    only_p, only_q = tl.load(table + _PO * rows) / total, tl.load(table + _PX * rows) / (total * grown)
    forward, backward, tv, chi, bc = divergences(table, rows, total, b, grown, shift, only_p, only_q)
    hp = tl.maximum(tl.log(total) - tl.load(table + _U * rows) / total, 0.0)
    hq = tl.maximum(tl.log(total) + shift - tl.load(table + _Q * rows) / (total * grown), 0.0)
    tv, forward = tl.where(far, tl.load(wide), tv), tl.where(far, tl.load(wide + rows), forward)
    backward, chi = tl.where(far, tl.load(wide + 2 * rows), backward), tl.where(far, tl.load(wide + 3 * rows), chi)
    bc, hp = tl.where(far, tl.load(wide + 4 * rows), bc), tl.where(far, tl.load(wide + 5 * rows), hp)
    hq = tl.where(far, tl.load(wide + 6 * rows), hq)
    forward, backward = tl.where(lost, inf, forward), tl.where(gained, inf, backward)
    chi = tl.where(lost, inf, chi)
    if CERTIFIED:
        bound = certificate(forward)
        decided = (bound <= LIMIT) | ((tl.load(table + _UNSWEPT * rows) > 0.0) & (far == 0))
        tv = tl.where(decided, tl.minimum(bound, LIMIT), tv)
    pilot, raw_high, raw_low = (
        tl.load(table + _PILOT * rows),
        tl.load(table + _HIGH * rows),
        tl.load(table + _LOW * rows),
    )
    high = tl.where(far, tl.load(wide + _WIDE_HIGH * rows), (raw_high - pilot) * scale - shift)
    low = tl.where(far, tl.load(wide + _WIDE_LOW * rows), (raw_low - pilot) * scale - shift)
    mismatch = lost | gained
    drift = tl.where(mismatch, inf, tl.load(table + _DRIFT * rows))
    span = tl.where(mismatch, inf, raw_high - raw_low)
    ratio = tl.where(mismatch, inf, tl.maximum(tl.maximum(high, -low), 0.0))
    out += row
    put(out, rows, 0, (drift, span, tv, forward, backward, ratio))
    put(out, rows, 6, (tl.where(gained, 0.0, tl.exp(-high)), tl.where(lost, inf, tl.exp(-low)), chi, bc, hp, hq))
    if TOKEN:
        token = tl.load(ids + row)
        p, q = tl.load(z + row * z_step + token).to(tl.float64), tl.load(w + row * w_step + token).to(tl.float64)
        moved = tl.load(wide + _LSE_Q * rows) - tl.load(wide + _LSE_P * rows)
        put(out, rows, 12, (tl.where(far, (q - p) * scale - moved, ((q - p) - pilot) * scale - shift),))
