"""Derived relative errors of the operations: bounds on every order of evaluation with a declared accumulator.

Model: every sum, product and quotient is rounded once, `fl(x op y) = (x op y)(1 + d)`, |d| <= u; exp, log and sqrt are within
`FUNCTION_ROUNDOFFS` u, relative. A product of n factors `(1 + d)^(+-1)` is `1 + theta`, |theta| <= gamma_n = n u / (1 - n u), and
`(1 + gamma_a)(1 + gamma_b) <= 1 + gamma_(a + b)` (Higham, lemma 3.1, 3.3). What these lines call F is `FUNCTION_ROUNDOFFS`.

An exponential amplifies what its argument is off by: `|e^(x + a) - e^x| <= (a + a^2) e^x` for 0 <= a <= 1.

A softmax that is declared `online` in B blocks takes exponentials against the maximum so far, and multiplies its partial sums by
`exp(old - new)` when that rises. A term of x meets at most B such factors. Their arguments add up with its own to `max - x`, since
the maximum only rises, so their roundings together move its exponent by at most u (max - x), as one rounding does; F + 1 roundings a
factor are new. What underflows meanwhile is at most 4 (n + 1)(B + 1) of the smallest normal number, in a sum of at least 1: twice
that, relative, covers it. Milakov and Gimelshein, Online normalizer calculation for softmax (2018), is the recurrence (B = n).

Exponentials of base 2 take `2^(y - max y)`, `y = x l`, l = log2(e), perhaps times a scale, in two roundings. y is rounded once, which moves the
exponent by u (|x| + |max|) <= 2 u max|x|, however small x - max is: such a softmax does see a shift. l and the difference add
`gamma_3 (max - x)`; a factor `2^((old - new) l)` of its own one more rounding of old - new, which add up to max - x. With
`fma(x, l, -max l)` only `max l` is rounded, which is less. Where logits have 0 between them, |x| + |max| is no more than their span.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from kcverify.conformance import merging, weighing
from kcverify.conformance import tolerances as t
from kcverify.conformance.model import Declared, Derivation, exact

EPSILON = 1e-5
"""Of the norms."""

_F = t.FUNCTION_ROUNDOFFS
_NONE, _HALF = Fraction(0), Fraction(1, 2)


def _up(value: float | Tensor) -> Fraction:
    """A double from a float64 computation as a fraction, moved up by more than its rounding."""
    found = exact(value)
    return Fraction(2**1023) if found is None else found * (1 + Fraction(1, 2**30))


def rounded(inner: Derivation, d: Declared) -> Derivation:
    """The accumulator's result rounded to the output; it is as it is where both are one format."""
    return inner if d.output == d.accumulator else t.rounded_to(inner, d.output)


def product(args: list[Tensor], d: Declared) -> Derivation:
    """A sum of products over the last dimension of the first operand, rounded to the output."""
    return rounded(t.gamma(args[0].shape[-1], d.accumulator), d)


def total(args: list[Tensor], d: Declared) -> Derivation:
    """A sum over the last dimension, rounded to the output."""
    return rounded(t.gamma(args[0].shape[-1] - 1, d.accumulator), d)


def rounding(args: list[Tensor], d: Declared) -> Derivation:
    """One rounding to the output."""
    u = t.unit_roundoff(d.output)
    return t.constant(u, f"one rounding to {d.output}")


def _range(x: Tensor) -> Fraction:
    return _up((x.amax(-1) - x.amin(-1)).max())


def _largest(x: Tensor) -> Fraction:
    return _up(x.abs().max())


def exponential(off: Fraction, why: str) -> Derivation:
    """Relative error of an exponential whose argument is off by `off`: `off + off^2`; nothing beyond 1/2."""
    if off > _HALF:
        return Derivation(None, (f"{why}: exponents off by {t.shown(off)} > 1/2 say nothing",))
    value = off + off**2
    return Derivation(value, (f"{why}: exponents off by a = {t.shown(off)}, amplified to a + a^2 = {t.shown(value)}",))


def base_two(span: Fraction, top: Fraction, name: str) -> Fraction:
    """What an exponent `(x - max) log2(e)` of logits up to `top` is off by, in units of x: `gamma_4 span + 2 u (1 + gamma_4) top`."""
    u, four = t.unit_roundoff(name), t.gamma(4, name).value
    assert four is not None
    return four * span + 2 * u * (1 + four) * top


def _exponents(span: Fraction, shift: Fraction, d: Declared, top: Fraction) -> Derivation:
    """Of `exp(x - max)`: the difference is rounded once, and was off by `shift` before; |x| <= `top` counts in base 2."""
    u, most = t.unit_roundoff(d.accumulator), weighing.vanishing(d.accumulator)
    kept = min(span, most)
    bounded = f"span {t.shown(kept)}" + (" (terms beyond vanish)" if kept < span else "")
    before = f", {t.shown(shift)} before" if shift else ""
    if d.base == "2":
        off = base_two(kept, top, d.accumulator)
        return exponential(
            shift + off, f"x log2(e) rounded, |x| <= {t.shown(top)}, then its difference, {bounded}{before}"
        )
    return exponential(shift + kept * u, f"x - max rounded once, {bounded}{before}")


def _of_base(d: Declared) -> int:
    """Roundings more of a logarithm: by ln 2, itself rounded, where it is of base 2, and a maximum that was scaled."""
    return 4 if d.base == "2" else 0


def _parts(n: int, d: Declared) -> int:
    """Blocks of n terms, as declared."""
    return -(-n // d.block)


def _rescaled(n: int, d: Declared) -> tuple[int, Derivation]:
    """Roundings that rescaling adds to a term, and what underflows in it; none of a sum in one block."""
    blocks = _parts(n, d) if d.summation == "online" else 1
    if blocks == 1:
        return 0, t.NOTHING
    lost = 8 * (n + 1) * (blocks + 1) * t.smallest_normal(d.accumulator)
    more = blocks * (_F + 1)
    return more, t.constant(lost, f"online in {blocks} blocks: {more} roundings more, and at most so much underflows")


def _sum_of_exponentials(e: Derivation, n: int, d: Declared) -> Derivation:
    """Positive terms: the error of each, and of their sum."""
    more, lost = _rescaled(n, d)
    said = f"sum of {n} exponentials, gamma(F + n - 1{f' + {more}' if more else ''})"
    return t.compound(said, e, t.gamma(_F + n - 1 + more, d.accumulator), lost)


def softmax_at(span: Fraction, shift: Fraction, n: int, d: Declared, top: Fraction = _NONE) -> Derivation:
    """Relative error of a row of n terms up to `top` that span `span`, exponents off by `shift`: a term over the sum of all."""
    e = _exponents(span, shift, d, top)
    more, _ = _rescaled(n, d)
    said = f"a term and the quotient, gamma(F + 2{f' + {more}' if more else ''})"
    term = t.compound(said, e, t.gamma(_F + 2 + more, d.accumulator))
    return t.quotient(term, _sum_of_exponentials(e, n, d), "term over sum, (1 + term) / (1 - sum) - 1")


def softmax(args: list[Tensor], d: Declared) -> Derivation:
    """Relative error of a softmax of the last dimension."""
    x = args[0]
    return rounded(softmax_at(_range(x), _NONE, x.shape[-1], d, _largest(x)), d)


def _logarithm(args: list[Tensor], d: Declared) -> Derivation:
    """Of `max + log(sum)` in the accumulator, against `1 + max|x| + ln n`: `|log(1 + r)| <= r / (1 - r)`, then log and sum."""
    x = args[0]
    inner = _sum_of_exponentials(_exponents(_range(x), _NONE, d, _largest(x)), x.shape[-1], d)
    moved = t.quotient(t.NOTHING, inner, "logarithm of a sum off by r: at most r / (1 - r)")
    more = _of_base(d)
    said = f"logarithm and sum, gamma(F + 1{f' + {more}' if more else ''})"
    return t.compound(said, moved, t.gamma(_F + 1 + more, d.accumulator))


def logsumexp(args: list[Tensor], d: Declared) -> Derivation:
    """Of log-sum-exp, against `1 + max|x| + ln n`."""
    return rounded(_logarithm(args, d), d)


def _condition(x: Tensor, epsilon: float) -> Fraction:
    """Largest root mean square of a row over its deviation, the root of its variance and `epsilon`."""
    spread = x.var(-1, correction=0) + epsilon
    return _up((x.square().mean(-1) / spread.clamp_min(1e-300)).sqrt().max())


def _variance(x: Tensor, d: Declared, epsilon: float = 0.0) -> Derivation:
    """Relative error of variance + epsilon: `(1 + 3/2 q + q^2)(1 + gamma_p) - 1`, q = gamma_p kappa, p = n + 8 + 4 ceil(log2 n).

    kappa is the root mean square over the root of variance + epsilon. Two passes: the mean is off by
    gamma_n mean|x|, which adds its square, at most `gamma_n^2 kappa^2`, and terms have n + 3 roundings. Welford's updates: the
    mean of j terms is off by `e_j <= u Σ_(i<=j)|x_i| (j + 2 + 2 H_j) / j`, and the update `d_j d'_j` by `|d_j e_j| + |d'_j e_(j-1)| +
    |e_j e_(j-1)|`, with `Σ d_j^2 (j - 1)/j = n V` and `Σ|x_i| <= sqrt(j n) rms`; by Cauchy and Schwarz the sum of the first two is at
    most `sqrt(2) p u kappa n V`, of the third half the square of that, and 3/2 > sqrt(2) covers `1 + O(u)`.
    """
    n = x.shape[-1]
    if d.summation in merging.TREES:
        return _merged(x, d, epsilon)
    p = n + 8 + 4 * t.ceil_log2(n)
    one, kappa = t.gamma(p, d.accumulator), _condition(x, epsilon)
    if one.value is None:
        return one
    q = one.value * kappa
    means = Derivation(
        Fraction(3, 2) * q + q**2,
        (*one.lines, f"means off by q = gamma kappa = {t.shown(q)}, kappa = {t.shown(kappa)}: 3/2 q + q^2"),
    )
    return t.compound(f"two passes or updates of {n} terms, gamma({p})", means, one)


def _merged(x: Tensor, d: Declared, epsilon: float) -> Derivation:
    """Moments of parts, merged as a tree: `(1 + 3/2 q + q^2 + 2 Q + Q^2)(1 + gamma(p + 2 h + 8)) - 1`.

    Parts A and B give the mean of `merging` and `S = S_A + S_B + c (m_B - m_A)^2`, c = n_A n_B / n (Chan, Golub and LeVeque, 1983);
    parts come by two passes or Welford's updates. With R^2 the sum of squares that a node holds, its mean is off by
    `sqrt(n) e <= K R` (`merging`). In S every term has at most 2 h + 7 roundings, and `c (e_A + e_B)^2 <= n_A e_A^2 + n_B e_B^2`
    (Cauchy and Schwarz), whichever part is the larger one. Summed over all merges that is at most `h K^2 Σ x^2 = Q^2 n V`, since each
    of h levels holds every x once: Q = sqrt(h) K kappa. The cross terms are at most 2 Q n V by the same inequality.
    q = gamma(p) kappa is of the parts, as in `_variance`. Sums of two passes as balanced trees stay below.
    """
    tree = merging.tree(x.shape[-1], d)
    if isinstance(tree, Derivation):
        return tree
    part, top = t.gamma(tree.leaf, d.accumulator), tree.root
    if part.value is None or top.value is None:
        return t.larger(part, top)
    kappa, root = _condition(x, epsilon), t.root_up(Fraction(tree.height))
    assert root is not None
    q, whole = part.value * kappa, root * top.value * kappa
    said = f"{tree.said}, kappa = {t.shown(kappa)}: q = {t.shown(q)} of a part, Q = sqrt(h) K kappa"
    means = Derivation(
        Fraction(3, 2) * q + q**2 + 2 * whole + whole**2,
        tuple(dict.fromkeys((*part.lines, *top.lines, f"{said} = {t.shown(whole)}: 3/2 q + q^2 + 2 Q + Q^2"))),
    )
    count = tree.leaf + 2 * tree.height + 8
    return t.compound(f"moments of parts of {x.shape[-1]} terms, gamma({count})", means, t.gamma(count, d.accumulator))


def _mean(x: Tensor, d: Declared) -> Derivation:
    """Of a mean and a difference from it, against mean|x|: a sum, or parts merged as a tree."""
    if d.summation not in merging.TREES:
        return t.gamma(x.shape[-1] + 1, d.accumulator)
    tree = merging.tree(x.shape[-1], d)
    if isinstance(tree, Derivation):
        return tree
    sizes = x.abs().mean(-1)
    flat = torch.where(sizes > 0, x.square().mean(-1).sqrt() / sizes, 1.0)
    off = merging.within(tree, _up(flat.max())).size
    return t.compound("mean of parts, and a difference from it", off, t.gamma(1, d.accumulator))


def variance(args: list[Tensor], d: Declared) -> Derivation:
    """Two passes, Welford's updates, or moments of parts merged as a tree where that is declared; relative."""
    return rounded(_variance(args[0], d), d)


def _root(under: Derivation, why: str) -> Derivation:
    """Of `1 / sqrt(y)`, y off by v relative: `(1 - v)^(-1/2) - 1 <= v / (2 (1 - v))`; nothing beyond 1/2."""
    if under.value is None:
        return under
    if under.value > _HALF:
        return Derivation(None, (*under.lines, f"{why} says nothing: off by more than 1/2 under the root"))
    value = under.value / (2 * (1 - under.value))
    return Derivation(value, (*under.lines, f"{why}, v / (2 (1 - v)): {t.shown(value)}"))


def layer_norm(args: list[Tensor], d: Declared) -> Derivation:
    """Of a layer norm, against `(|x - mean| + mean|x|) / sqrt(variance + epsilon)`: what is added up."""
    x = args[0]
    mean = _mean(x, d)
    root = _root(_variance(x, d, EPSILON), "root of variance + epsilon")
    rest = t.gamma(_F + 3, d.accumulator)
    value = t.compound(
        "layer norm: mean and difference, root, gamma(F + 3) of epsilon, root and quotient", mean, root, rest
    )
    return rounded(value, d)


def rms_norm(args: list[Tensor], d: Declared) -> Derivation:
    """Relative error of a root mean square norm: squares, sum, mean and epsilon are positive."""
    root = _root(t.gamma(args[0].shape[-1] + 2, d.accumulator), "root of mean square + epsilon")
    value = t.compound("root mean square norm, gamma(F + 2) of root and quotient", root, t.gamma(_F + 2, d.accumulator))
    return rounded(value, d)


def _weights(args: list[Tensor], d: Declared, dot: Derivation, causal: bool) -> Derivation:
    """Of the weights in every row that the arithmetic decides; a softmax does not see a shift.

    The scores' own error is what the exponents are off by, against their computed maximum.
    """
    q, k, v = args
    n, rows = k.shape[-2], weighing.rows(q, k, v, d, causal)
    assert rows is not None
    assert dot.value is not None
    found: list[Derivation] = []
    if rows.scores is not None:
        scores = _up(rows.scores)
        off = dot.value * scores
        said = (*dot.lines, f"scores of at most |q||k| / sqrt(d) = {t.shown(scores)}, off by {t.shown(off)}")
        one = softmax_at(2 * scores + 2 * off, off, n, d, scores)
        found.append(Derivation(one.value, (*said, *one.lines)))
    if bool(rows.decided.any()):
        one = softmax_at(_NONE, _NONE, n, d)
        said = ("one score is above all others by more than every score is off by: weights 1 and 0 in every order",)
        found.append(Derivation(one.value, (*dot.lines, *said, *one.lines)))
    if not found:
        why = "every row's scores are off by more than 1/8 of an exponent in some order of evaluation, and no score is above that"
        return Derivation(None, (*dot.lines, f"{why}: no order decides the weights, whatever the kernel"))
    return found[0] if len(found) == 1 else t.larger(*found)


def attention(args: list[Tensor], d: Declared, causal: bool = False) -> Derivation:
    """Scores by dot products, softmax, weights rounded to the operands' format, a product with the values."""
    q, k, _ = args
    dot, mix = t.gamma(q.shape[-1] + 2, d.accumulator), t.gamma(k.shape[-2], d.accumulator)
    if dot.value is None or mix.value is None:
        return Derivation(None, (*dot.lines, *mix.lines))
    weights = t.rounded_to(_weights(args, d, dot, causal), d.inputs)
    return rounded(t.compound("weights and their mixture of the values", weights, mix), d)


def divergence(args: list[Tensor], d: Declared) -> Derivation:
    """Of `Σ p (ln p - ln q)` of two rows of logits, against `D = 2 (1 + max|a| + max|b| + ln n)`.

    `|ln p - ln q| <= 2 (max|a| + max|b|) <= D`, and both logarithms together are off by at most their relative error times D,
    whether taken of logits (log-sum-exp and two differences) or of p itself (its error and the logarithm's).
    """
    one, two = (_logarithm([x.nan_to_num(0.0, 0.0, 0.0)], d) for x in args)
    x = args[0].nan_to_num(0.0, 0.0, 0.0)
    weights = softmax_at(_range(x), _NONE, x.shape[-1], d, _largest(x))
    moved = t.quotient(t.NOTHING, weights, "logarithm of a probability: at most w / (1 - w)")
    parts = t.gamma(2 * (_F + 2 + _of_base(d)), d.accumulator)
    logs = t.plus(t.plus(t.larger(one, two), moved, "logarithms of logits or of p"), parts, "with their differences")
    u = t.constant(t.unit_roundoff(d.accumulator), "ln p - ln q rounded")
    sums = t.gamma(args[0].shape[-1] + 1, d.accumulator)
    return rounded(t.compound("p, ln p - ln q, products and sum", weights, logs, u, sums), d)
