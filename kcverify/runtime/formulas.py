"""The statistics that follow from a row's sums: the one source of them, for torch and for the Triton kernel.

A kernel binds this text to `triton.language` in place of torch, so that only what both have may stand here: `where`,
`log`, `exp`, `sqrt` and arithmetic, and no annotations. Every argument is float64.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch as ops


def divergences(total, grown, b, shift, x, g, d, po, px, gaps, squares, roots):
    """Both KL divergences, total variation, chi-squared and affinity, for rows whose tokens both sides have.

    `total` is S, `shift` log(1+b), `gaps`, `squares`, `roots` the sums TV, CHI2, BC of the second sweep, the others the
    sums of their names. A NaN stays one.
    """
    whole = total * grown
    large = b >= 1.0
    only_p = po / total
    only_q = px / whole
    forward = ops.where(large, shift - x / total, g / total - (b - shift) + px / total)
    backward = ops.where(large, (x + d) / whole - shift, (d - g + po) / whole + (b / grown - shift))
    tv = 0.5 * (gaps / whole + only_p + only_q)
    chi = squares / (whole * grown) + only_q
    bc = 1.0 - 0.5 * (roots / total + only_p + only_q)
    forward = ops.where(forward < 0.0, 0.0, forward)
    backward = ops.where(backward < 0.0, 0.0, backward)
    chi = ops.where(chi < 0.0, 0.0, chi)
    tv = ops.where(tv < 0.0, 0.0, ops.where(tv > 1.0, 1.0, tv))
    bc = ops.where(bc < 0.0, 0.0, ops.where(bc > 1.0, 1.0, bc))
    return forward, backward, tv, chi, bc


def entropies(total, grown, shift, u, q):
    """Entropies of the reference and of the candidate in nats, from the sums U and Q."""
    reference = ops.log(total) - u / total
    candidate = ops.log(total) + shift - q / (total * grown)
    return ops.where(reference < 0.0, 0.0, reference), ops.where(candidate < 0.0, 0.0, candidate)


def ends(highest, lowest, pilot, shift, scale):
    """Largest and smallest `ln(q/p)` over the tokens that both sides have; `scale` is 1/T."""
    return (highest - pilot) * scale - shift, (lowest - pilot) * scale - shift


def certificate(kl):
    """Upper bound `sqrt(KL/2)` of the total variation (Pinsker), a little enlarged for the rounding of the sums."""
    bound = ops.sqrt(0.5 * kl) * (1.0 + 2e-5) + 1e-12
    return ops.where(bound > 1.0, 1.0, bound)


def chosen(tv, bound, unswept, limit):
    """Total variation, or its certificate where that decides a clause with this limit."""
    decided = (bound <= limit) | unswept
    return ops.where(decided, ops.where(bound > limit, limit, bound), tv)
