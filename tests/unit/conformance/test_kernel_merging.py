"""Trees that merge larger parts into smaller ones, and exponentials of base 2: bounds against worst cases and such arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import errors, merging, samples_blocks  # noqa: E402
from kcverify.conformance import tolerances as t  # noqa: E402
from kcverify.conformance.contract import declared  # noqa: E402
from kcverify.conformance.isolate import contract_here, kernels_of  # noqa: E402
from kcverify.conformance.model import Declared  # noqa: E402
from kcverify.conformance.operations import BY_NAME, EPSILON  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402

ROOT = Path(__file__).parents[3] / "contracts" / "kernels"
U = Fraction(1, 2**11)
LESS = Fraction(99, 100)
WIDE = Declared("float32", "float16", "int8", summation="cascade")


def worst_merge(into, other):
    """Means of both parts and their mean off by the model's roundings at their worst: all exact. `n e^2` over the sum of squares.

    The means solve the Cauchy and Schwarz equality: d and m in the ratio of what they cost.
    """
    n, w = into + other, Fraction(other, into)
    g = (1 + U) ** 3 - 1
    d = g * w * Fraction(n, other)  # proportions: g s d of the difference, u m of the mean
    m = U
    share = Fraction(other, n)
    a, b = m - share * d, m + (1 - share) * d
    off = (a + share * d * (1 + U) ** 3) * (1 + U) - m
    return n * off**2 / (into * a**2 + other * b**2)


@pytest.mark.parametrize(("into", "other"), [(1, 1), (8, 1), (1, 8), (1, 100), (3, 1000), (1, 65536)])
def test_the_bound_of_a_merge_is_kept_and_less_by_one_percent_broken(into, other):
    """Exact fractions: means at the equality of Cauchy and Schwarz, every rounding up."""
    bound = merging.merge_error(into, other, "float16")
    reached = worst_merge(into, other)
    assert reached <= bound**2
    assert reached > (bound * LESS) ** 2


def test_four_roundings_a_level_do_not_cover_a_larger_part():
    """What was declared for smaller parts into larger ones alone is broken by one merge of 100 terms into one."""
    four = t.gamma(4, "float16").value
    assert worst_merge(1, 1) < four**2 < worst_merge(1, 100)
    assert merging.merge_error(1, 1, "float16") < four


class Arithmetic:
    """float64 numbers, each result moved by u of float16: by `sign` of it, at random where that is 0, away from 0 where None."""

    def __init__(self, sign, seed):
        self.sign, self.g = sign, torch.Generator().manual_seed(seed)

    def __call__(self, x, roundings=1):
        at = torch.rand(x.shape, generator=self.g, dtype=torch.float64) * 2 - 1
        at = torch.where(torch.rand(x.shape, generator=self.g) < 0.5, at.sign(), at)
        return x * (1 + float(U) * roundings * (self.sign if self.sign else at))


def into(f, a, b):
    if a is None:
        return b
    (n, mean, squares), (m, other, more) = a, b
    apart = f(other - mean)
    share = f(torch.tensor(m / (n + m), dtype=torch.float64))
    grown = f(f(f(apart * apart) * share) * n)
    return n + m, f(mean + f(apart * share)), f(squares + f(more + grown))


def updates(f, x):
    mean, squares = x[..., :1], torch.zeros_like(x[..., :1])
    for j in range(1, x.shape[-1]):
        term = x[..., j : j + 1]
        apart = f(term - mean)
        mean = f(mean + f(apart / (j + 1)))
        squares = f(squares + f(apart * f(term - mean)))
    return x.shape[-1], mean, squares


def counter(f, x, block):
    """As the processor's kernel has it: the counter's last digit is never carried further."""
    parts = x.split(block, -1)
    digits = [None] * max(t.ceil_log2(len(parts)), 1)
    for i, part in enumerate(parts):
        digits[0] = into(f, digits[0], updates(f, part))
        at = 1
        while at < len(digits) and (i + 1) % 2**at == 0:
            digits[at], digits[at - 1] = into(f, digits[at], digits[at - 1]), None
            at += 1
    out = None
    for digit in digits:
        out = out if digit is None else into(f, out, digit)
    return out


def moments(f, x, block, lanes):
    each = x.shape[-1] // lanes
    left = x[..., each * lanes :]
    out = updates(f, left) if left.shape[-1] else None
    for i in range(lanes if each else 0):
        out = into(f, out, counter(f, x[..., i : each * lanes : lanes], block))
    return out


def variance(f, x, block, lanes):
    count, _, squares = moments(f, x, block, lanes)
    return f(squares / count)[..., 0]


def layer_norm(f, x, block, lanes):
    count, mean, squares = moments(f, x, block, lanes)
    root = f(f(f(squares / count) + EPSILON).sqrt(), t.FUNCTION_ROUNDOFFS)
    return f(f(x - mean) / root)


def rows(n, seed):
    """Normal rows, rows of one large number in front, and rows with an offset."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(20, n, generator=g, dtype=torch.float64)
    x[:5, 0] *= 40
    x[5:10] += 2
    x[10:12, -1] = 30
    return x


@pytest.mark.parametrize("name", ["variance", "layer_norm"])
@pytest.mark.parametrize(("block", "lanes"), [(1, 1), (3, 1), (4, 2), (2, 4)])
def test_arithmetic_of_a_cascade_keeps_its_tolerance(name, block, lanes):
    operation, steps, reached = BY_NAME[name], {"variance": variance, "layer_norm": layer_norm}[name], 0.0
    d = replace(WIDE, block=block, lanes=lanes)
    for seed, n in enumerate((2, 5, 13, 33)):
        x = rows(n, seed)
        limit = operation.tolerance([x], d).value
        for sign in (0.0, 1.0, -1.0) if limit is not None else ():
            error = (steps(Arithmetic(sign, seed), x, block, lanes) - operation.oracle(x)).abs() / operation.magnitude(
                x
            )
            assert float(error.max()) <= float(limit), (n, sign)
            reached = max(reached, float(error.max()) / float(limit))
    assert reached > 0.005, "the bound is far from anything that was reached"


def test_a_mean_of_a_cascade_is_within_its_own_bound_in_both_measures():
    for n, block, lanes in ((33, 1, 1), (70, 2, 4), (129, 4, 1)):
        tree = merging.cascade(n, replace(WIDE, block=block, lanes=lanes))
        assert isinstance(tree, merging.Tree)
        x = rows(n, n)
        for sign in (0.0, 1.0, -1.0):
            mean = moments(Arithmetic(sign, n), x, block, lanes)[1][:, 0]
            off = (mean - x.mean(-1)).abs()
            assert bool((off <= float(tree.root.value) * x.square().mean(-1).sqrt()).all())
            assert bool((off <= float(tree.size.value) * x.abs().mean(-1)).all())


def test_a_cascade_prints_its_steps_and_needs_exact_counts():
    x = rows(64, 3)
    found = errors.variance([x], Declared(summation="cascade", block=16, lanes=4))
    lines = "\n".join(found.lines)
    assert "larger parts into smaller ones" in lines
    assert "c(W) = sqrt(g^2 W + u^2)" in lines
    assert errors.variance([torch.randn(2, 2048, dtype=torch.float64)], WIDE).value is None
    plain, tree = (
        errors.variance([x], replace(Declared(), summation=w, block=16)).value for w in ("pairwise", "cascade")
    )
    assert tree > plain


def test_the_worst_width_of_a_register_counts():
    one, eight = (merging.cascade(100, replace(WIDE, block=4, lanes=v)) for v in (1, 8))
    assert eight.root.value >= one.root.value
    assert eight.height >= one.height


def test_a_logit_is_rounded_where_it_is_in_base_two():
    """Exact fractions: the exponent of a logit next to the largest one, every rounding at its worst; 1 % less is broken."""
    top, span = Fraction(1024), Fraction(1, 8)
    low = top - span
    scaled = (top * (1 + U) - low * (1 - U)) * (1 + U) ** 2
    off = scaled - span
    bound = errors.base_two(span, top, "float16")
    assert bound * LESS < off <= bound
    natural = span * U
    assert off > 1000 * natural, "the bound of natural exponentials does not cover it"


def softmax2(f, x, block):
    """Base 2 in blocks: logits scaled once, factors of scaled maxima, all with errors; log2(e) itself off by u."""
    y = f(x * (1 + float(U)))  # in units of ln 2: log2(e) and ln 2 cancel
    top = total = None
    for part in y.split(block, -1):
        own = part.amax(-1, keepdim=True)
        new = own if top is None else torch.maximum(top, own)
        terms = f(f(part - new).exp(), t.FUNCTION_ROUNDOFFS)
        sums = terms[..., :1]
        for i in range(1, terms.shape[-1]):
            sums = f(sums + terms[..., i : i + 1])
        if top is not None:
            sums = f(sums + f(total * f(f(top - new).exp(), t.FUNCTION_ROUNDOFFS)))
        top, total = new, sums
    return y, top, total


def of_softmax(f, x, block):
    y, top, total = softmax2(f, x, block)
    return f(f(f(y - top).exp(), t.FUNCTION_ROUNDOFFS) / total)


def of_logsumexp(f, x, block):
    _, top, total = softmax2(f, x, block)
    return f(f(f(top + f(total.log(), t.FUNCTION_ROUNDOFFS)) * (1 + float(U))))[..., 0]


@pytest.mark.parametrize(("name", "steps"), [("softmax", of_softmax), ("logsumexp", of_logsumexp)])
@pytest.mark.parametrize("block", [3, 16])
def test_arithmetic_in_base_two_keeps_its_tolerance(name, steps, block):
    operation, reached = BY_NAME[name], 0.0
    d = Declared("float32", "float16", "int8", summation="online", block=block, base="2")
    for seed, (n, scale, offset) in enumerate(
        (n, s, o) for n in (2, 16) for s in (0.1, 3.0) for o in (0.0, 20.0, -60.0)
    ):
        g = torch.Generator().manual_seed(seed)
        x = (torch.randn(20, n, generator=g, dtype=torch.float64) * scale + offset).sort(-1).values
        limit = operation.tolerance([x], d).value
        for sign in (0.0, 1.0, -1.0) if limit is not None else ():
            error = (steps(Arithmetic(sign, seed), x, block) - operation.oracle(x)).abs() / operation.magnitude(x)
            assert float(error.max()) <= float(limit), (n, scale, offset, sign)
            reached = max(reached, float(error.max()) / float(limit))
    assert reached > 0.05, "the bound is far from anything that was reached"


def test_base_two_is_said_in_the_derivation_and_costs_more_away_from_zero():
    near, far = (torch.linspace(o, o + 1, 16, dtype=torch.float64)[None] for o in (-0.5, 1000.0))
    plain, two = Declared(), Declared(base="2")
    for name in ("softmax", "logsumexp", "kl"):
        args = [[x] * len(BY_NAME[name].shapes({"m": 1, "n": 16})) for x in (near, far)]
        found = [[BY_NAME[name].tolerance(a, d).value for a in args] for d in (plain, two)]
        assert found[1][1] > 2 * found[1][0] or name == "logsumexp"
        assert found[1][0] > found[0][0]
    assert any("log2(e)" in line for line in errors.softmax([far], two).lines)


def changed(name, old, new):
    text = (ROOT / f"{name}.kc").read_text(encoding="utf-8")
    assert old in text
    (contract,) = kernels_of(text.replace(old, new), "a.kc")
    return declared(contract, "a.kc")


def test_the_shipped_contracts_declare_trees_and_bases():
    for name in ("variance_cascade", "layer_norm_cascade"):
        found = changed(name, "finite(out)", "finite(out)")
        assert (found.summation, found.block) == ("cascade", 16)
    assert changed("softmax_base2", "finite(out)", "finite(out)").base == "2"


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("softmax_base2", "base(out) == 2", "base(out) == 10", "`base` is `==` 2"),
        ("softmax_base2", "base(out) == 2", "base(out) <= 2", "`base` is `==` 2"),
        ("softmax_base2", "summation(out) == online", "summation(out) == cascade", "is about variance"),
        ("softmax_base2", "  summation(out) == online\n", "", "says nothing without `summation"),
        ("softmax_base2", "base(out) == 2", "lanes(out) == 2", "`lanes` says nothing without"),
        ("softmax_base2", "base(out) == 2", "block(out) == 8", "`block` is `16` and `8`"),
        ("variance_cascade", "lanes(out) == 4", "lanes(out) == 0", "whole number of lanes"),
        ("variance_cascade", "lanes(out) == 4", "lanes(out) == 100_000_000", "at most 64"),
        ("variance_cascade", "lanes(out) == 4", "base(out) == 2", "`base` is about softmax"),
        ("variance_cascade", "summation(out) == cascade", "summation(out) == online", "is about softmax"),
    ],
)  # fmt: skip
def test_structures_that_an_operation_has_not_are_refused(name, old, new, said):
    with pytest.raises(InputError, match="kernel contract") as stop:
        changed(name, old, new)
    assert said in stop.value.diagnostics[0].message


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["variance_tree", "variance_cascade"])
def test_block_kernels_sum_narrow_operands_in_float32(kind, name):
    """In the operands' format their sums left the declared float32, and the contract was called under-specified for it."""
    text = (ROOT / "merged_variance.kc").read_text(encoding="utf-8").replace("float32 -> float32", f"{kind} -> {kind}")
    text = text.replace("trials 12", "trials 5")
    text = text.replace("pairwise", "cascade") if name == "variance_cascade" else text
    text = (
        text.replace("block(out) == 16", "block(out) == 16\n  lanes(out) == 4") if name == "variance_cascade" else text
    )
    found = contract_here(text, "a.kc", None, f"kcverify.conformance.samples_blocks:{name}")
    assert found["verdict"] == "within_tolerance", found["findings"]
    assert [s["verdict"] for s in found["calibration"]] == ["violation", "within_tolerance"]


def test_block_kernels_keep_the_operands_format():
    x = torch.randn(3, 40).bfloat16()
    for kernel in (samples_blocks.softmax_online, samples_blocks.softmax_base2, samples_blocks.variance_raw):
        assert kernel(x).dtype is torch.bfloat16
