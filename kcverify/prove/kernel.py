"""Checks a certificate with the standard library alone: the trusted core, to be read whole in one sitting.

One enclosure of exp, one interval type and one table of lemmas carry everything. A row of the table reads "if the
premises are at most u (and w) on all but a share rho of the contexts, then the conclusion is at most v"; for the
quantities in LOWER read "at least". Why a row may be used at one corner: every bound of the table grows (for LOWER:
shrinks) with each premise, with H and with rho, and temperature enters through `over_temperature` alone; so putting a
premise's limit, the horizon and the ends of the temperatures in their places can only weaken the conclusion. A number
that had to be rounded is the nearest one of DIGITS significant digits on the safe side, and no other is accepted.
Exit codes of `python -m kcverify.prove.kernel FILE...`: 0 accepted, 1 rejected, 2 unreadable. Format and trusted base
are in docs/certificates.md.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction as Q
from math import comb, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FORMAT, DIGITS, BITS, ONE, WAYS = "kcverify certificate 1", 24, 320, 1 << 320, ("reference_candidate", "candidate_reference")
LOWER = frozenset(("bc", "bc_seq", "ess"))
RESPONSE = LOWER - {"bc"} | {"chi2_seq", "tv_seq", "reward_drift", "pass_rate_drift", "pg_bias"} | {f"kl_seq_{w}" for w in WAYS}
BROKEN = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def need(condition: object, reason: str) -> None:
    """Raise ValueError with the reason unless the condition holds: the certificate then proves nothing."""
    if not condition:
        raise ValueError(reason)


# fmt: off
@dataclass(frozen=True)
class I:
    """All reals x with `lo <= x 2^BITS <= hi`. Operations round outward; `<=` and `>=` hold for all members."""

    lo: int
    hi: int

    def __add__(self, other: Any) -> I:
        return I(self.lo + wrap(other).lo, self.hi + wrap(other).hi)

    def __mul__(self, other: Any) -> I:
        ends = [x * y for x in (self.lo, self.hi) for y in (wrap(other).lo, wrap(other).hi)]
        return I(min(ends) >> BITS, -(-max(ends) >> BITS))

    def __sub__(self, other: Any) -> I:
        return self + other * -1

    def __rsub__(self, other: Any) -> I:
        return self * -1 + other

    def __rtruediv__(self, other: Any) -> I:
        need(self.lo > 0, "a division by zero")
        return I(ONE * ONE // self.hi, -(-ONE * ONE // self.lo)) * other

    def __pow__(self, n: int) -> I:
        return (self * self) ** (n // 2) * (self if n % 2 else 1) if n else I(ONE, ONE)

    def __le__(self, other: Any) -> bool:
        return self.hi <= wrap(other).lo

    def __ge__(self, other: Any) -> bool:
        return wrap(other).hi <= self.lo

    __radd__, __rmul__ = __add__, __mul__


def wrap(x: Any) -> I:
    """A rational as the smallest interval around it."""
    return x if isinstance(x, I) else I((x.numerator << BITS) // x.denominator, -((-x.numerator << BITS) // x.denominator))


def exp(x: Any) -> I:
    """Encloses exp: the Taylor series at x/2^k < 1/2, whose rest is below its last term, squared k times."""
    if isinstance(x, I):
        return I(exp(Q(x.lo, ONE)).lo, exp(Q(x.hi, ONE)).hi)
    if x <= 0:
        return 1 / exp(-x) if x else I(ONE, ONE)
    need(x < 8192, "an exponent beyond 8192")
    k = int(2 * x).bit_length()
    y, n, low, high, a, b = wrap(Q(x) / 2**k), 1, ONE, ONE, ONE, ONE
    while b > 1:
        a, b = (a * y.lo >> BITS) // n, -((-b * y.hi >> BITS) // n)
        n, low, high = n + 1, low + a, high + b
    return I(low, high + 1) ** 2**k


def ln(x: Any) -> I:
    """Encloses ln by exp: ln x = y + ln(1 + t) with t = x exp(-y) - 1, and t - t^2 <= ln(1 + t) <= t for |t| <= 1/2."""
    if isinstance(x, I):
        return I(ln(Q(x.lo, ONE)).lo, ln(Q(x.hi, ONE)).hi)
    y = Q(log(x))
    for _ in range(3):
        y += Q((exp(-y) * x - 1).lo, ONE)
    t = exp(-y) * x - 1
    need(Q(-1, 2) <= t and t <= Q(1, 2), "a logarithm that does not converge")
    return I((t - t * t).lo, t.hi) + y


def sech(x: Q) -> I:
    """Encloses 1/cosh."""
    return 2 / (exp(x) + exp(-x))


def odds(x: I, n: int) -> I:
    """sum over k > n/2 of C(n,k) (x^(n-k) - x^k); over (1+x)^n: P(Bin(n, 1/(1+x)) > n/2) - P(Bin(n, x/(1+x)) > n/2)."""
    need(n <= 4096, "a binomial sum of more than 4096 tokens")
    return sum((comb(n, k) * x ** (n - k) * (1 - x ** (2 * k - n)) for k in range(n // 2 + 1, n + 1)), I(0, 0))


# Rule -> modes of the premise (p pointwise, m mean, s response) : premises > conclusion, ~ for either direction; formula.
# A formula is True where v is a valid conclusion, or else is the conclusion itself, an exact rational.
RULES: dict[str, tuple[str, Any]] = {
    "double": ("pm:logit_drift>logit_span", lambda p, v, u: 2 * u),
    "over_temperature": ("pm:logit_span>effective_span", lambda p, v, u: u),
    "same": ("pm:effective_span>log_ratio s:tv_seq>pass_rate_drift", lambda p, v, u: u),
    "expm1": ("p:effective_span>ratio_above p:log_ratio>ratio_above p:effective_span>ratio_gap p:log_ratio>ratio_gap", lambda p, v, u: exp(u) <= 1 + v),
    "exp_below": ("pm:effective_span>ratio_below pm:log_ratio>ratio_below", lambda p, v, u: 1 - v <= exp(-u)),
    "tanh_quarter": ("pm:effective_span>tv", lambda p, v, u: exp(u / 2) * (1 - v) <= 1 + v),
    "tanh_half": ("pm:log_ratio>tv", lambda p, v, u: exp(u) * (1 - v) <= 1 + v),
    "kl_span": ("p:effective_span>kl_~", lambda p, v, u: exp((w := u / (1 - exp(-u))) - 1 - v) <= w if u else v >= 0),
    "kl_log_ratio": ("p:log_ratio>kl_~", lambda p, v, u: u * (exp(u) - 1) <= v * (exp(u) + 1)),
    "sech_quarter": ("p:effective_span>bc", lambda p, v, u: v <= sech(u / 4)),
    "sinh_half": ("p:effective_span>chi2", lambda p, v, u: (exp(u / 2) - exp(-u / 2)) ** 2 <= 4 * v),
    "ln_ratio": ("p:ratio_above,ratio_below>log_ratio", lambda p, v, u, w: 1 + u <= exp(v) and exp(-v) <= 1 - w),
    "larger": ("p:ratio_above,ratio_below>ratio_gap", lambda p, v, u, w: max(u, w)),
    "tv_ratio": ("p:ratio_above,ratio_below>tv", lambda p, v, u, w: u * w / (u + w) if u * w else Q(0)),
    "kl_ratio_f": ("p:ratio_above,ratio_below>kl_reference_candidate",
                   lambda p, v, u, w: ln(1 + u) * (w * (1 + u)) + ln(1 - w) * (u * (1 - w)) <= v * (u + w)),
    "kl_ratio_r": ("p:ratio_above,ratio_below>kl_candidate_reference", lambda p, v, u, w: ln(1 + u) * -w - ln(1 - w) * u <= v * (u + w)),
    "pinsker": ("pm:kl_~>tv s:kl_seq_~>tv_seq", lambda p, v, u: v >= 1 or u <= 2 * v * v),
    "bretagnolle_huber": ("pm:kl_~>tv s:kl_seq_~>tv_seq", lambda p, v, u: 1 - v * v <= exp(-u)),
    "le_cam": ("p:bc>tv s:bc_seq>tv_seq", lambda p, v, u: 1 - u * u <= v * v),
    "chi2_root": ("pm:chi2>tv s:chi2_seq>tv_seq", lambda p, v, u: v >= 1 or u <= 4 * v * v),
    "mean": ("p:*>*", lambda p, v, u: u),
    "mix": ("p:tv>tv p:ratio_below>ratio_below", lambda p, v, u: u + p.rho * (1 - u)),
    "union": ("p:tv>tv_seq", lambda p, v, u: v >= 1 or u <= 1 and 1 - (v - p.H * p.rho) <= wrap(1 - u) ** p.H),
    "affinity": ("p:effective_span>tv_seq", lambda p, v, u: v >= 1 or v >= p.H * p.rho and 1 - (v - p.H * p.rho) ** 2 <= sech(u / 4) ** (2 * p.H)),
    "binomial": ("p:log_ratio>tv_seq", lambda p, v, u: v >= 1 or odds(exp(-u), p.H) <= (v - p.H * p.rho) * (1 + exp(-u)) ** p.H),
    "power": ("p:bc>bc_seq", lambda p, v, u: v <= wrap(min(u, 1)) ** p.H),
    "chi2_power": ("p:chi2>chi2_seq", lambda p, v, u: wrap(1 + u) ** p.H <= 1 + v),
    "sum": ("m:tv>tv_seq", lambda p, v, u: min(Q(1), p.H * u)),
    "chain": ("p:kl_~>kl_seq_~ m:kl_candidate_reference>kl_seq_candidate_reference", lambda p, v, u: p.H * u),
    "ess_span": ("p:effective_span>ess", lambda p, v, u: v <= sech(u / 2) ** (2 * p.H)),
    "ess_chi2": ("s:chi2_seq>ess", lambda p, v, u: 1 / (1 + u)),
    "reward": ("s:tv_seq>reward_drift", lambda p, v, u: p.reward_range * u),
    "reward_chi2": ("s:chi2_seq>reward_drift", lambda p, v, u: p.reward_range**2 * u <= 4 * v * v),
    "gradient": ("s:tv_seq>pg_bias", lambda p, v, u: 2 * p.advantage * p.score_norm * u),
    "gradient_tokens": ("s:tv_seq>pg_bias", lambda p, v, u: 2 * p.advantage * p.H * p.token_score_norm * u),
    "clip": ("pm:ratio_gap>clip_share", lambda p, v, u: u / p.clip),
}
# fmt: on
