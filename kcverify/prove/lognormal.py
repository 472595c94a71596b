"""What a declared noise of the log ratio does to whole responses: estimates that rest on `assume { log_ratio_sd = s }`.

The model: `d = ln(p/q)` of the sampled tokens are independent and normal with standard deviation s. Since the mean of p/q
over the candidate's samples is 1, the mean of `d` is `-s^2/2`. Over n tokens the sum is normal with mean `-n s^2/2` and
variance `n s^2`: the geometric mean ratio concentrates at `exp(-s^2/2)`, and the median weight of a response is
`exp(-n s^2/2)`. Nothing here enters a proof.
"""

from __future__ import annotations

import math
from fractions import Fraction

import sympy as sp

from kcverify.diagnostics import Related, Report
from kcverify.elaborate.contract import Clause, Contract
from kcverify.enclosure import value_down, value_up
from kcverify.exact import decimal_down, decimal_near

_X = sp.Symbol("x")
_HALF = Fraction(1, 2)
_LENGTHS = (1_000, 8_000)
_COLLAPSED = 0.5


def length_findings(contract: Contract, report: Report) -> None:
    """Reports windows of a geometric mean that long responses leave, and sequence weights without a floor that vanish."""
    sd = contract.assumptions.log_ratio_sd
    if not sd:
        return
    for clause in contract.clauses:
        limits = (clause.limit.lower, clause.limit.upper)
        if clause.limit.hole or any(t is not None and t.terms for t in limits):
            continue
        low, high = (t.constant if t is not None else None for t in limits)
        if clause.metric.name == "geometric_ratio":
            _geometric(contract, clause, sd, low, high, report)
        elif clause.metric.name == "sequence_ratio" and not low:
            _collapse(contract, clause, sd, report)


def _related(contract: Contract) -> list[Related]:
    spans = contract.assumptions.spans
    words = {"log_ratio_sd": "the conclusion rests on this", "horizon": "the length"}
    return [Related(spans[name], text) for name, text in words.items() if name in spans]


def share_outside(sd: float, length: int, low: float | None, high: float | None) -> float:
    """Share of responses of a length whose geometric mean ratio is outside `[low, high]`."""
    mean, spread = -sd * sd / 2, sd / math.sqrt(length)
    below = _normal((math.log(low) - mean) / spread) if low else 0.0
    above = _normal((mean - math.log(high)) / spread) if high else 0.0
    return below + above


def _normal(x: float) -> float:
    """Distribution function of the standard normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2


def _geometric(
    contract: Contract, clause: Clause, sd: Fraction, low: Fraction | None, high: Fraction | None, report: Report
) -> None:
    """The window must hold `exp(-s^2/2)`; the decision is by enclosure, the shares are estimates."""
    centre = -sd * sd * _HALF
    left = low is not None and low > 0 and centre < value_down(sp.log(_X), {_X: low})
    right = high is not None and (high == 0 or centre > value_up(sp.log(_X), {_X: high}))
    if not (left or right):
        return
    place = decimal_near(value_up(sp.exp(_X), {_X: centre}), 6)
    lengths = sorted({*_LENGTHS, *([contract.assumptions.horizon] if contract.assumptions.horizon else [])})
    ends = [float(x) if x else None for x in (low, high)]
    shares = " and ".join(
        f"{100 * share_outside(float(sd), n, *ends):.3g}% of responses of {n:,} tokens" for n in lengths
    )
    reason = (
        f"at log_ratio_sd = {decimal_near(sd, 4)} the geometric mean of a long response tends to e^(-s^2/2) = {place}, outside the "
        f"window; outside it are, by estimate, {shares}, and all of them as answers grow"
    )
    hint = "widen the window"
    if low is not None and 0 < low < 1:
        most = value_down(sp.sqrt(-2 * sp.log(_X)), {_X: low})
        hint = f"below a per-token sd of {decimal_down(most, 3)} the window holds e^(-s^2/2); or start it at {decimal_down(Fraction(place), 4)} or lower"
    report.add(
        "unsatisfiable_with_length",
        clause.value_span,
        related=_related(contract),
        name=clause.name,
        reason=reason,
        hint=hint,
    )


def _short(x: float) -> str:
    return f"{x:.2g}".replace("e-0", "e-")


def _collapse(contract: Contract, clause: Clause, sd: Fraction, report: Report) -> None:
    """Without a floor the weight of a typical response may vanish unseen."""
    horizon = contract.assumptions.horizon
    if horizon is None:
        return
    s = float(sd)
    if math.exp(-horizon * s * s / 2) >= _COLLAPSED:
        return
    lengths = sorted({*(n for n in _LENGTHS if n < horizon), horizon})
    medians = ", ".join(f"{_short(math.exp(-n * s * s / 2))} at {n:,} tokens" for n in lengths)
    ess = ", ".join(f"{_short(math.exp(-n * s * s))} at {n:,}" for n in lengths)
    n = sp.Integer(horizon)
    span = value_down(2 * sp.acosh(2 ** (1 / (2 * n))), {})
    reason = (
        f"at log_ratio_sd = {decimal_near(sd, 4)} the median weight e^(-n s^2/2) of a response is {medians}, and the effective sample "
        f"share e^(-n s^2) is {ess}: with no lower limit the gradient of long answers is lost and no clause fails"
    )
    hint = (
        f"add a floor such as `sequence_ratio in [0.5, 2]`, or bound the kernels: an effective span (logit_span over temperature) of "
        f"{decimal_down(span, 3)} keeps `ess >= 0.5` at {horizon:,} tokens, by ESS/N >= cosh(s/2)^(-2H)"
    )
    report.add(
        "weight_collapse", clause.value_span, related=_related(contract), name=clause.name, reason=reason, hint=hint
    )
