"""Triton kernel of the last step: every statistic of a row in float64 from its sums, in one launch.

The formulas are those of `formulas`, which other backends run as some hundred small operations of torch; a decoding step
has too few rows to pay for so many launches.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

from types import FunctionType

import triton
import triton.language as tl

from kcverify.runtime import formulas
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


def bound_to_triton(function):
    """A function of `formulas` as one of the device: its text, with `triton.language` for what it calls."""
    return triton.jit(FunctionType(function.__code__, {"ops": tl, "__name__": __name__}, function.__name__))


divergences, entropies, ends, certificate, chosen = (
    bound_to_triton(f)
    for f in (formulas.divergences, formulas.entropies, formulas.ends, formulas.certificate, formulas.chosen)
)


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
    forward, backward, tv, chi, bc = divergences(
        total, grown, b, shift, tl.load(table + _X * rows), tl.load(table + _G * rows), tl.load(table + _D * rows),
        tl.load(table + _PO * rows), tl.load(table + _PX * rows), tl.load(table + _TV * rows),
        tl.load(table + _CHI2 * rows), tl.load(table + _BC * rows),
    )  # fmt: skip
    hp, hq = entropies(total, grown, shift, tl.load(table + _U * rows), tl.load(table + _Q * rows))
    tv, forward = tl.where(far, tl.load(wide), tv), tl.where(far, tl.load(wide + rows), forward)
    backward, chi = tl.where(far, tl.load(wide + 2 * rows), backward), tl.where(far, tl.load(wide + 3 * rows), chi)
    bc, hp = tl.where(far, tl.load(wide + 4 * rows), bc), tl.where(far, tl.load(wide + 5 * rows), hp)
    hq = tl.where(far, tl.load(wide + 6 * rows), hq)
    forward, backward = tl.where(lost, inf, forward), tl.where(gained, inf, backward)
    chi = tl.where(lost, inf, chi)
    if CERTIFIED:
        tv = chosen(tv, certificate(forward), (tl.load(table + _UNSWEPT * rows) > 0.0) & (far == 0), LIMIT)
    pilot, raw_high, raw_low = (
        tl.load(table + _PILOT * rows),
        tl.load(table + _HIGH * rows),
        tl.load(table + _LOW * rows),
    )
    high, low = ends(raw_high, raw_low, pilot, shift, scale)
    high = tl.where(far, tl.load(wide + _WIDE_HIGH * rows), high)
    low = tl.where(far, tl.load(wide + _WIDE_LOW * rows), low)
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
