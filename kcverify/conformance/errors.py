"""Derived relative errors of the operations: bounds on every order of evaluation with a declared accumulator."""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor

from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Declared, Derivation, exact


def _up(value: float | Tensor) -> Fraction:
    """A double from a float64 computation as a fraction, moved up by more than its rounding."""
    found = exact(value)
    return Fraction(2**1023) if found is None else found * (1 + Fraction(1, 2**30))


def product(args: list[Tensor], d: Declared) -> Derivation:
    """A sum of products over the last dimension of the first operand, rounded to the output."""
    return t.rounded_to(t.gamma(args[0].shape[-1], d.accumulator), d.output)


def total(args: list[Tensor], d: Declared) -> Derivation:
    """A sum over the last dimension, rounded to the output."""
    return t.rounded_to(t.gamma(args[0].shape[-1] - 1, d.accumulator), d.output)


def rounding(args: list[Tensor], d: Declared) -> Derivation:
    """One rounding to the output."""
    u = t.unit_roundoff(d.output)
    return t.constant(u, f"one rounding to {d.output}")


def _range(x: Tensor) -> Fraction:
    return _up((x.amax(-1) - x.amin(-1)).max())


def _vanishing(name: str) -> Fraction:
    """Beyond this span `exp(-span)` is below the smallest normal number, which an error of `underflow` covers; 7/10 > ln 2."""
    return (1 / t.smallest_normal(name)).numerator.bit_length() * Fraction(7, 10)


def _softmax_at(span: Fraction, shift: Fraction, n: int, d: Declared) -> Derivation:
    """Relative error of a row of n terms: exponents off by `shift` and by one rounding of at most `span`."""
    u = t.unit_roundoff(d.accumulator)
    total = t.gamma(n - 1, d.accumulator)
    if total.value is None:
        return total
    span = min(span, _vanishing(d.accumulator))
    exponent = 2 * (shift + span * u)  # e^a - 1 <= 2 a for a <= 1/2
    one = exponent + (t.FUNCTION_ROUNDOFFS + 2) * u * (1 + exponent)
    lines = (
        *total.lines,
        f"exponent off by {t.shown(exponent / 2)}, function of {t.FUNCTION_ROUNDOFFS} u and a quotient: {t.shown(one)}",
    )
    if exponent > 1:
        return Derivation(None, (*lines, "says nothing: exponents are off by more than 1/2"))
    return t.quotient(one, one + total.value + one * total.value, "term over sum, relative", lines)


def softmax(args: list[Tensor], d: Declared) -> Derivation:
    """Relative error of a softmax of the last dimension."""
    x = args[0]
    return t.rounded_to(_softmax_at(_range(x), Fraction(0), x.shape[-1], d), d.output)


def logsumexp(args: list[Tensor], d: Declared) -> Derivation:
    """Of log-sum-exp, against `1 + max|x| + ln n`."""
    inner = _softmax_at(_range(args[0]), Fraction(0), args[0].shape[-1], d)
    u = t.unit_roundoff(d.accumulator)
    logarithm = t.times(2, inner, "logarithm of a sum off by r is off by at most 2 r")
    steps = t.constant((t.FUNCTION_ROUNDOFFS + 1) * u, "logarithm and sum")
    return t.rounded_to(t.plus(logarithm, steps, "log-sum-exp against 1 + max|x| + ln n"), d.output)


def _condition(x: Tensor) -> Fraction:
    centred = x - x.mean(-1, keepdim=True)
    ratio = (x.square().sum(-1) / centred.square().sum(-1).clamp_min(1e-300)).sqrt().max()
    return _up(ratio)


def variance(args: list[Tensor], d: Declared) -> Derivation:
    """Two passes or Welford's updates: n u kappa to first order (Chan, Golub and LeVeque 1983), doubled."""
    one = t.gamma(args[0].shape[-1] + 4, d.accumulator)
    if one.value is None:
        return one
    kappa = _condition(args[0])
    value = 2 * one.value * kappa
    lines = (
        *one.lines,
        f"variance by two passes or updates: 2 gamma kappa, kappa = {t.shown(kappa)}: {t.shown(value)}",
    )
    return t.rounded_to(Derivation(value, lines), d.output)


def layer_norm(args: list[Tensor], d: Declared) -> Derivation:
    """Of a layer norm, against what is added up."""
    x = args[0]
    mean, var = t.gamma(x.shape[-1], d.accumulator), variance(args, Declared(accumulator=d.accumulator, output="int8"))
    u = t.unit_roundoff(d.accumulator)
    rest = t.constant((t.FUNCTION_ROUNDOFFS + 4) * u, "difference, root and quotient")
    return t.rounded_to(t.plus(t.plus(mean, var, "mean and variance"), rest, "layer norm"), d.output)


def rms_norm(args: list[Tensor], d: Declared) -> Derivation:
    """Relative error of a root mean square norm."""
    squares = t.gamma(args[0].shape[-1] + 2, d.accumulator)
    rest = t.constant((t.FUNCTION_ROUNDOFFS + 4) * t.unit_roundoff(d.accumulator), "root, quotient and product")
    return t.rounded_to(t.plus(squares, rest, "root mean square norm"), d.output)


def attention(args: list[Tensor], d: Declared) -> Derivation:
    """Scores by dot products, softmax, weights rounded to the operands' format, a product with the values."""
    q, k, _ = args
    scores = _up((q.abs() @ k.abs().mT).max() / q.shape[-1] ** 0.5)
    dot, mix = t.gamma(q.shape[-1] + 2, d.accumulator), t.gamma(k.shape[-2], d.accumulator)
    if dot.value is None or mix.value is None:
        return Derivation(None, (*dot.lines, *mix.lines))
    weights = t.rounded_to(_softmax_at(2 * scores, 2 * dot.value * scores, k.shape[-2], d), d.inputs)
    return t.rounded_to(t.plus(t.plus(weights, mix, "weights and mixture"), mix, "second order"), d.output)


def divergence(args: list[Tensor], d: Declared) -> Derivation:
    """Of `Σ p (ln p - ln q)` of two rows of logits, against `2 (1 + max|a| + max|b| + ln n)`, which no `ln p - ln q` exceeds."""
    one, two = (
        logsumexp([x.nan_to_num(0.0, 0.0, 0.0)], Declared(accumulator=d.accumulator, output="int8")) for x in args
    )
    weights = _softmax_at(_range(args[0].nan_to_num(0.0, 0.0, 0.0)), Fraction(0), args[0].shape[-1], d)
    sums = t.gamma(args[0].shape[-1] + 2, d.accumulator)
    if one.value is None or two.value is None or weights.value is None or sums.value is None:
        return Derivation(None, (*one.lines, *two.lines, *sums.lines))
    u = t.unit_roundoff(d.accumulator)
    logs = one.value + two.value + 2 * u
    value = (1 + weights.value) * (1 + logs) * (1 + sums.value) - 1
    lines = (*weights.lines, *sums.lines, f"(1 + weights) (1 + both logarithms) (1 + sum) - 1: {t.shown(value)}")
    return t.rounded_to(Derivation(value, lines), d.output)
