"""Composition of many tokens through Gaussian domination of a block of them: the cost stops growing with the horizon.

Let `G_m(a,b)` be half the integral of `|a g - b g'|` for unit normal densities at distance `m`; in the scaling of the
grid, `gamma_m(L) = (e^(L/2) (2 Phi(L/m + m/2) - 1) - e^(-L/2) (2 Phi(L/m - m/2) - 1))/2`.

Lemma. `f_q <= G_m + D sqrt(ab)` and `f_r <= G_n + E sqrt(ab)` imply `f_{q+r} <= G_{sqrt(m^2+n^2)} + (D+E) sqrt(ab)`.
Proof. `f_{q+r}` is the supremum over `r`-step pairs of `sum f_q(a P_i, b Q_i)`. The sum of `sqrt(ab P_i Q_i)` is at
most `sqrt(ab)`. Under the integral `sum G_m(a P_i, b Q_i)` is at most `f_r(a g, b g') <= G_n(a g, b g') + E sqrt(ab g
g')`, and these integrate to `G_{sqrt(m^2+n^2)}(a,b)` (a pair of independent normals) and to at most `E sqrt(ab)`. QED.

At `a = b = 1`: `TV <= erf(M/sqrt(8)) + sum D_i`, `M^2 = sum m_i^2`. A single step would cost 25 % (it must dominate a
kink); a block of 512 costs 0.2 %, because only its neighbourhood of the kink is not yet Gaussian. Any `m` is valid, so
the search over `m` needs no care.

Between nodes. `f_q` is below the `sinh` interpolant of its node bounds, and `gamma_m'' - gamma_m/4` is at most
`k = e^(-m^2/8)/(m sqrt(2 pi))`, so `gamma_m` lies at most `k step^2/8` below its own interpolant, which is added to
`D`. Beyond the last node the excess over the kink decays while that of `gamma_m` is positive: the last excess is a
floor of `D`.

Floats, `u = 2^-53`, `erf`, `erfc`, `exp`, `sinh` within 4 ulp. With `x = L/m + m/2` the relative error of a normal tail
is at most the hazard `x + 1` times `4 u x`, plus `16 u`, plus `(1 + L/2) u` for `e^(+-L/2)`: each of the two tails is
moved to the safe side by `u (64 + 8 (1+x)^2)`. The difference from the kink is moved by `2^-46` of the kink. The final
sum is inflated by `2^-40`, far above its dozen roundings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kcverify.bounds.optimal_grid import UNIT, Floats, Profile

FACTORS = tuple(1 + k / 2048 for k in range(-2, 25))


class Domination(NamedTuple):
    """`f_q <= G_m + deficit sqrt(ab)` everywhere, for one block length `q`."""

    m: float
    deficit: float


def _tails(profile: Profile, m: float) -> Floats:
    """Lower bounds of the excess of `gamma_m` over the kink at the nodes of a profile."""
    root = math.sqrt(0.5)
    out = []
    for i in range(len(profile.values)):
        half = i * profile.step / 2
        centre = 2 * half / m
        slack = UNIT * (64 + 8 * (1 + centre + m / 2) ** 2)
        inner = math.exp(-half) * math.erfc((centre - m / 2) * root)
        outer = math.exp(half) * math.erfc((centre + m / 2) * root)
        out.append(0.5 * (inner * (1 - slack) - outer * (1 + slack)))
    return np.array(out)


def dominations(profile: Profile) -> tuple[Domination, ...]:
    """Deficits of a block of `q = profile.horizon` tokens at the distances `factor span sqrt(q)/2`, one per factor."""
    kink = np.array([math.sinh(i * profile.step / 2) for i in range(len(profile.values))])
    excess = (profile.values - kink * (1 - 2.0**-46)) * (1 + 2 * UNIT)
    out = []
    for factor in FACTORS:
        m = factor * profile.span * math.sqrt(profile.horizon) / 2
        gap = float(np.max(excess - _tails(profile, m)))
        between = profile.step**2 / 8 * math.exp(-m * m / 8) / (m * math.sqrt(2 * math.pi))
        out.append(Domination(m, max(0.0, float(excess[-1]), gap + between) * (1 + 2.0**-44)))
    return tuple(out)


def composed(blocks: Sequence[tuple[tuple[Domination, ...], int]]) -> float:
    """Upper bound of the total variation over `count` blocks of each kind; least over the factors, at most 1."""
    best = 1.0
    for k in range(len(FACTORS)):
        square = sum(count * kind[k].m ** 2 for kind, count in blocks)
        loss = sum(count * kind[k].deficit for kind, count in blocks)
        best = min(best, (math.erf(math.sqrt(square / 8)) + loss) * (1 + 2.0**-40))
    return best
