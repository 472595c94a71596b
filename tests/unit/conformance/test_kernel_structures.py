"""Derivations of declared structures: softmaxes that rescale block by block, moments merged as a tree, against such arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import errors, samples_blocks  # noqa: E402
from kcverify.conformance import tolerances as t  # noqa: E402
from kcverify.conformance.contract import declared  # noqa: E402
from kcverify.conformance.isolate import kernels_of  # noqa: E402
from kcverify.conformance.model import Declared  # noqa: E402
from kcverify.conformance.operations import BY_NAME, EPSILON  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402

ROOT = Path(__file__).parents[3] / "contracts" / "kernels"
U = Fraction(1, 2**11)
WIDE = Declared("float32", "float16", "int8")
"""Sums in float16, whose errors float64 shows plainly."""


class Arithmetic:
    """float64 numbers, each result moved by u of float16: up, down (`sign`), or at random by up to that (0)."""

    def __init__(self, sign: float, seed: int) -> None:
        self.sign, self.g = sign, torch.Generator().manual_seed(seed)

    def __call__(self, x, roundings=1):
        at = torch.rand(x.shape, generator=self.g, dtype=torch.float64) * 2 - 1
        at = torch.where(torch.rand(x.shape, generator=self.g) < 0.5, at.sign(), at)
        return x * (1 + float(U) * roundings * (self.sign if self.sign else at))

    def exp(self, x):
        return self(x.exp(), t.FUNCTION_ROUNDOFFS)

    def total(self, x):
        sums = x[..., :1]
        for i in range(1, x.shape[-1]):
            sums = self(sums + x[..., i : i + 1])
        return sums


def running(f, x, block):
    """The largest number and the sum against it, block by block; a block against its own maximum, then both rescaled."""
    top, total = None, None
    for part in x.split(block, -1):
        own = part.amax(-1, keepdim=True)
        sums = f.total(f.exp(f(part - own)))
        if top is None:
            top, total = own, sums
            continue
        new = torch.maximum(top, own)
        total = f(f(total * f.exp(f(top - new))) + f(sums * f.exp(f(own - new))))
        top = new
    return top, total


def softmax(f, x, block):
    top, total = running(f, x, block)
    return f(f.exp(f(x - top)) / total)


def logsumexp(f, x, block):
    top, total = running(f, x, block)
    return f(top + f(total.log(), t.FUNCTION_ROUNDOFFS))[..., 0]


def attention(f, q, k, v, block):
    """Unnormalised mixtures that are rescaled with their sums: what flash kernels do."""
    scores = f(f.total(f(q[:, None, :] * k[None]))[..., 0] / q.shape[-1] ** 0.5)
    top = total = mixed = None
    for part, values in zip(scores.split(block, -1), v.split(block, 0), strict=True):
        new = part.amax(-1, keepdim=True) if top is None else torch.maximum(top, part.amax(-1, keepdim=True))
        weights = f.exp(f(part - new))
        sums, mixture = f.total(weights), f.total(f(weights[:, None, :] * values.mT[None]))[..., 0]
        if top is not None:
            factor = f.exp(f(top - new))
            sums, mixture = f(sums + f(total * factor)), f(mixture + f(mixed * factor))
        top, total, mixed = new, sums, mixture
    return f(mixed / total)


def merge(f, a, b):
    (n, mean, squares), (m, other, more) = (a, b) if a[0] >= b[0] else (b, a)
    apart = f(other - mean)
    share = f(torch.tensor(m / (n + m), dtype=torch.float64))
    grown = f(f(f(apart * apart) * share) * n)
    return n + m, f(mean + f(apart * share)), f(f(squares + more) + grown)


def moments(f, x, block):
    parts = []
    for part in x.split(block, -1):
        count = part.shape[-1]
        mean = f(f.total(part) / count) if count > 1 else part
        parts.append((count, mean, f.total(f(f(part - mean) ** 2)) if count > 1 else torch.zeros_like(mean)))
    while len(parts) > 1:
        parts = [merge(f, *parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)] + parts[len(parts) // 2 * 2 :]
    return parts[0]


def variance(f, x, block):
    count, _, squares = moments(f, x, block)
    return f(squares / count)[..., 0]


def layer_norm(f, x, block):
    count, mean, squares = moments(f, x, block)
    root = f(f(f(squares / count) + EPSILON).sqrt(), t.FUNCTION_ROUNDOFFS)
    return f(f(x - mean) / root)


STEPS = {
    "softmax": (softmax, "online"), "logsumexp": (logsumexp, "online"), "attention": (attention, "online"),
    "variance": (variance, "pairwise"), "layer_norm": (layer_norm, "pairwise"),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("block", [1, 3, 4])
def test_arithmetic_of_the_declared_structure_keeps_its_tolerance(name, block):
    operation, reached = BY_NAME[name], 0.0
    steps, word = STEPS[name]
    d = replace(WIDE, summation=word, block=block)
    for seed, (n, scale, offset) in enumerate(
        (n, scale, offset) for n in (2, 5, 16) for scale in (0.1, 1.0, 3.0) for offset in (0.0, 2.0)
    ):
        g = torch.Generator().manual_seed(seed)
        shapes = operation.shapes({"m": 20, "n": n, "k": 5})
        args = [torch.randn(s, generator=g, dtype=torch.float64) * scale + offset for s in shapes]
        if operation.name in ("softmax", "logsumexp"):
            args[0] = args[0].sort(-1).values  # the maximum rises in every block
        limit = operation.tolerance(args, d).value
        if limit is None:
            continue
        for sign in (0.0, 1.0, -1.0):
            error = (steps(Arithmetic(sign, seed), *args, block) - operation.oracle(*args)).abs()
            worst = float((error / operation.magnitude(*args)).max())
            assert worst <= float(limit), (n, scale, offset, sign)
            reached = max(reached, worst / float(limit))
    assert reached > 0.01, "the bound is far from anything that was reached"


def test_rescaling_costs_what_the_plain_bound_does_not_allow():
    """Conforming rescaling with one-sided errors leaves the bound of a softmax in one block: it needed one of its own."""
    n, d = 32, replace(Declared("float64", "float32", "float64"), summation="online")
    x = torch.linspace(-0.01, 0.0, n, dtype=torch.float64)[None]
    plain, online = (BY_NAME["softmax"].tolerance([x], replace(d, summation=w)).value for w in ("sequential", "online"))
    u = 2.0**-24

    def moved(value, roundings):
        return value * (1 + roundings * u)

    top, total = x[:, :1], torch.ones(1, 1, dtype=torch.float64)
    for i in range(1, n):
        new = x[:, i : i + 1]
        total, top = moved(total * moved((top - new).exp(), 8), 1) + moved((new - new).exp(), 8), new
    error = float((moved((x - top).exp(), -8) / total / BY_NAME["softmax"].oracle(x) - 1).abs().max())
    assert plain is not None
    assert online is not None
    assert float(plain) < error <= float(online)


def test_one_block_is_the_plain_bound():
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for name in ("softmax", "logsumexp"):
        plain = BY_NAME[name].tolerance([x], Declared())
        assert BY_NAME[name].tolerance([x], Declared(summation="online", block=24)) == plain
        assert BY_NAME[name].tolerance([x], Declared(summation="online", block=8)).value > plain.value


def test_a_tree_of_parts_is_tighter_than_updates_of_long_rows():
    x = torch.randn(2, 4096, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 3
    updates = errors.variance([x], Declared()).value
    tree = errors.variance([x], Declared(summation="pairwise", block=16))
    assert tree.value < updates / 4
    lines = "\n".join(tree.lines)
    assert "256 parts merged at 8 levels" in lines
    assert errors.variance([x], replace(WIDE, summation="pairwise")).value is None, "counts are not exact in float16"


def test_a_mean_of_merged_parts_is_within_four_roundings_a_level():
    n, u = 64, 2.0**-11
    x = torch.rand(50, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for sign in (0.0, 1.0, -1.0):
        _, mean, _ = moments(Arithmetic(sign, 5), x, 1)
        off = float(((mean[:, 0] - x.mean(-1)) / x.mean(-1)).abs().max())
        assert off <= float(t.gamma(4 * 6, "float16").value)
        assert off > u / 4


def test_the_shipped_contracts_declare_their_structure():
    for name, word, block in (("online_softmax", "online", 16), ("merged_variance", "pairwise", 16)):
        (contract,) = kernels_of((ROOT / f"{name}.kc").read_text(encoding="utf-8"), name)
        found = declared(contract, name)
        assert (found.summation, found.block) == (word, block)
    assert samples_blocks.BLOCK == 16


@pytest.mark.parametrize("line", ["block(out) == 0", "block(out) == 1/2", "block(out) <= 4", "block(out) == many"])
def test_a_block_is_a_whole_number_of_terms(line):
    text = (ROOT / "online_softmax.kc").read_text(encoding="utf-8").replace("block(out) == 16", line)
    (contract,) = kernels_of(text, "a.kc")
    with pytest.raises(InputError, match="whole number of terms"):
        declared(contract, "a.kc")
