"""Closed forms around the optimal sequence bound: enclosed from above, and the binomial witness from below."""

from __future__ import annotations

from fractions import Fraction

from flint import arb

from kcverify.enclosure import ball, precision, rational

BITS = 40
VACUOUS = Fraction(38, 5)


def check_arguments(s: Fraction, horizon: int) -> Fraction:
    """The span as an exact rational; raises ValueError unless `s >= 0` (nat) and `horizon >= 1` (token)."""
    if s < 0 or horizon < 1:
        raise ValueError(f"need a span >= 0 and a horizon >= 1, got {s} and {horizon}")
    return Fraction(s)


def _working_bits(s: Fraction, horizon: int) -> int:
    """Precision that survives `cosh - 1` at this span and the power `horizon`."""
    return 160 + 4 * max(0, s.denominator.bit_length() - s.numerator.bit_length()) + 2 * horizon.bit_length()


def _merged(s: arb, horizon: int, k: int) -> arb:
    """Bound that treats the last `k` steps as one step of span `S >= k s`, minimised over `S`.

    One step of span `S` obeys `f_1(a,b) <= (coth(S/2) (a+b) - 2 sqrt(ab)/sinh(S/2))/2` for all `a, b`: with `L =
    ln(a/b)` the difference to `|a-b|/2` is `sqrt(ab) (cosh((|L|-S)/2) - 1)/sinh(S/2)`. The other `horizon - k` steps
    keep `sum (a+b)` and shrink `sum sqrt(ab)` at most by the affinity, so `TV <= (cosh(S/2) - r)/sinh(S/2)` with `r =
    sech(s/4)^(horizon-k)`. The best `S` has `cosh(S/2) = 1/r`, which gives `sqrt(1 - r^2)`.
    """
    log_r = -(horizon - k) * (s / 4).cosh().log()
    edge = (k * s / 2).cosh()
    if k == 0 or edge <= (-log_r).exp():
        return (-(2 * log_r).expm1()).sqrt()
    return (edge - log_r.exp()) / (k * s / 2).sinh()


def _largest_free(s: arb, horizon: int) -> int:
    """Largest `k` for which the best span of `_merged` is at least `k s`: `cosh(k s/2) <= cosh(s/4)^(horizon-k)`."""
    unit = (s / 4).cosh().log()
    low, high = 0, horizon
    while low < high:
        k = (low + high + 1) // 2
        if (k * s / 2).cosh().log() <= (horizon - k) * unit:
            low = k
        else:
            high = k - 1
    return low


def closed_form(s: Fraction, horizon: int) -> Fraction:
    """Rational upper bound of the worst adaptive total variation over `horizon` tokens of effective span `s` (nat).

    The least of `sqrt(1 - sech(s/4)^(2(H-k)))` and `coth(ks/2) - sech(s/4)^(H-k)/sinh(ks/2)` over the best `k`: exact
    for `H = 1, 2, 3`, never above the affinity product (`k = 0`), about 25 % above the optimum for many short steps.
    Enclosed in ball arithmetic and rounded up to 40 bits. Raises ValueError for a negative span or `horizon < 1`.
    """
    s = check_arguments(s, horizon)
    if s == 0:
        return Fraction(0)
    with precision(_working_bits(s, horizon)):
        span = ball(s)
        free = _largest_free(span, horizon)
        near = range(max(0, free - 1), min(horizon, free + 2) + 1)
        bounds = [rational(_merged(span, horizon, k), up=True, bits=BITS) for k in near]
    return min(Fraction(1), *bounds)


def binomial_attained(s: Fraction, horizon: int) -> Fraction:
    """Rational lower bound of `TV(Bin(n, 1/(1+e^(s/2))), Bin(n, 1/(1+e^(-s/2))))`, which independent tokens attain.

    `n` is `horizon` when odd and `horizon - 1` when even (the even step of this witness adds nothing), and 2 tokens are
    one. For odd `n = 2m - 1` the value is `1 - 2 I_p(m, m)`, a regularised incomplete beta function: no sum over `n`
    terms. Enclosed in ball arithmetic and rounded down to 40 bits. Raises ValueError as `closed_form` does.
    """
    s = check_arguments(s, horizon)
    if s == 0:
        return Fraction(0)
    m = (horizon + 1) // 2
    with precision(_working_bits(s, horizon)):
        p = 1 / (1 + (ball(s) / 2).exp())
        value = 1 - 2 * p.beta_lower(m, m, regularized=True)
        return max(Fraction(0), rational(value, up=False, bits=BITS))


def is_vacuous(s: Fraction, horizon: int) -> bool:
    """Whether `horizon ln cosh(s/4)` is at least 7.6: the affinity is below 0.0005, independent tokens of that span
    reach a total variation above 0.998, and `closed_form` is as good as a recursion."""
    if s == 0:
        return False
    with precision(_working_bits(s, horizon)):
        return bool(horizon * (ball(s) / 4).cosh().log() >= ball(VACUOUS))


def log_affinity(s: Fraction, horizon: int) -> float:
    """`horizon ln cosh(s/4)`, for the choice of a grid only."""
    with precision(_working_bits(s, horizon)):
        return float(horizon * (ball(s) / 4).cosh().log())
