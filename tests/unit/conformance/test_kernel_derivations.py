"""Derived tolerances hold for every arithmetic that keeps the model they name, and are near what such arithmetic reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import contract as run  # noqa: E402
from kcverify.conformance import errors, harness  # noqa: E402
from kcverify.conformance import tolerances as t  # noqa: E402
from kcverify.conformance.cheats import right_for  # noqa: E402
from kcverify.conformance.isolate import contract_here, kernels_of  # noqa: E402
from kcverify.conformance.model import Declared  # noqa: E402
from kcverify.conformance.operations import BY_NAME, EPSILON  # noqa: E402

ROOT = Path(__file__).parents[3] / "contracts" / "kernels"
WIDE = Declared("float32", "float16", "int8")
"""Sums in float16, whose errors float64 shows plainly; no rounding of operands that counts, none of the result."""


@dataclass
class Model:
    """float64 numbers, each result moved by up to u of float16: by `sign` of it, or at random where that is 0."""

    sign: float
    g: torch.Generator

    def __call__(self, x, roundings=1):
        u = float(t.unit_roundoff("float16")) * roundings
        at = torch.rand(x.shape, generator=self.g, dtype=torch.float64) * 2 - 1
        at = torch.where(torch.rand(x.shape, generator=self.g) < 0.5, at.sign(), at)
        return x * (1 + u * (self.sign if self.sign else at))

    def function(self, x):
        return self(x, t.FUNCTION_ROUNDOFFS)

    def total(self, x):
        sums = x[..., 0]
        for i in range(1, x.shape[-1]):
            sums = self(sums + x[..., i])
        return sums[..., None]


def exponentials(f, x):
    return f.function(f(x - x.amax(-1, keepdim=True)).exp())


def softmax(f, x):
    p = exponentials(f, x)
    return f(p / f.total(p))


def logsumexp(f, x):
    return f(x.amax(-1, keepdim=True) + f.function(f.total(exponentials(f, x)).log()))[..., 0]


def two_pass(f, x):
    mean = f(f.total(x) / x.shape[-1])
    return f(f.total(f(f(x - mean) ** 2)) / x.shape[-1])


def welford(f, x):
    mean, sums = x[..., :1], torch.zeros_like(x[..., :1])
    for j in range(1, x.shape[-1]):
        term = x[..., j : j + 1]
        difference = f(term - mean)
        mean = f(mean + f(difference / (j + 1)))
        sums = f(sums + f(difference * f(term - mean)))
    return f(sums / x.shape[-1])


def layer_norm(f, x):
    mean = f(f.total(x) / x.shape[-1])
    return f(f(x - mean) / f.function(f(two_pass(f, x) + EPSILON).sqrt()))


def rms_norm(f, x):
    return f(x / f.function(f(f(f.total(f(x * x)) / x.shape[-1]) + EPSILON).sqrt()))


def attention(f, q, k, v):
    scores = f(f.total(f(q[:, None, :] * k[None])).squeeze(-1) / q.shape[-1] ** 0.5)
    return f.total(f(softmax(f, scores)[:, None, :] * v.mT[None])).squeeze(-1)


def kl(f, a, b):
    logs = [f(f(x - x.amax(-1, keepdim=True)) - f.function(f.total(exponentials(f, x)).log())) for x in (a, b)]
    return f.total(f(softmax(f, a) * f(logs[0] - logs[1]))).squeeze(-1)


def kl_of_p(f, a, b):
    p, other = softmax(f, a), f(f(b - b.amax(-1, keepdim=True)) - f.function(f.total(exponentials(f, b)).log()))
    return f.total(f(p * f(f.function(p.log()) - other))).squeeze(-1)


STEPS = {
    "softmax": [softmax], "logsumexp": [logsumexp], "layer_norm": [layer_norm], "rms_norm": [rms_norm], "attention": [attention],
    "variance": [lambda f, x: two_pass(f, x)[..., 0], lambda f, x: welford(f, x)[..., 0]], "kl": [kl, kl_of_p],
}  # fmt: skip


def operands(name, seed, n, scale, offset):
    g = torch.Generator().manual_seed(seed)
    shapes = BY_NAME[name].shapes({"m": 40, "n": n, "k": 6})
    return [torch.randn(s, generator=g, dtype=torch.float64) * scale + offset for s in shapes]


@pytest.mark.parametrize("name", STEPS)
def test_arithmetic_that_keeps_the_model_keeps_the_tolerance(name):
    """Random and one-sided errors, short and longer rows, small and large spans, with and without an offset."""
    operation, reached = BY_NAME[name], 0.0
    for seed, (n, scale, offset) in enumerate(
        (n, scale, offset) for n in (2, 5, 16) for scale in (0.1, 1.0, 4.0) for offset in (0.0, 2.0)
    ):
        args = operands(name, seed, n, scale, offset)
        limit = operation.tolerance(args, WIDE).value
        if limit is None:
            continue
        for steps in STEPS[name]:
            for sign in (0.0, 1.0, -1.0):
                f = Model(sign, torch.Generator().manual_seed(seed))
                error = (steps(f, *args) - operation.oracle(*args)).abs() / operation.magnitude(*args)
                assert float(error.max()) <= float(limit), (n, scale, offset, sign, steps)
                reached = max(reached, float(error.max()) / float(limit))
    assert reached > 0.02, "the bound is far from anything that was reached"


def test_the_amplified_argument_of_an_exponential_is_reached():
    """Two logits a span apart: the derived bound, less what the quotient and the sum add, is reached within 2 %."""
    u, span = Fraction(1, 2**11), 12.0
    x = torch.tensor([[0.0, -span]], dtype=torch.float64)
    moved = torch.tensor([[0.0, -span * (1 - float(u))]], dtype=torch.float64)
    reached = (moved.exp()[0, 1] - x.exp()[0, 1]) / x.exp()[0, 1]
    found = errors.exponential(Fraction(12) * u, "x - max")
    assert found.value is not None
    assert float(found.value) * 0.98 <= float(reached) <= float(found.value)
    assert "amplified to a + a^2" in found.lines[0]
    assert errors.exponential(Fraction(3, 5), "x").value is None


def test_any_span_of_float32_logits_stays_below_gamma_of_n_and_200():
    """Terms beyond the vanishing span are covered by underflow: the derivation has a limit without operands."""
    for n in (2, 16, 512, 4096):
        worst = errors.softmax_at(Fraction(10**6), Fraction(0), n, Declared()).value
        limit = t.gamma(n + 200, "float32").value
        assert worst is not None
        assert limit is not None
        assert worst <= limit


def test_a_limit_by_derivation_is_printed_with_every_step():
    text = (ROOT / "softmax_stable.kc").read_text(encoding="utf-8")
    found = contract_here(text, "softmax_stable.kc", None, "softmax.float32")
    lines = "\n".join(found["worst"]["tolerance"]["lines"])
    for step in ("x - max rounded once", "amplified to a + a^2", "gamma(F + 2)", "term over sum"):
        assert step in lines
    assert found["declared"]["accumulator"] == "float32"
    assert Fraction(found["worst"]["tolerance"]["exact"]) > 0


def allowed(at, kind):
    """What the derivation allows an answer to show, in the measure that the contract names; a rounding of what fits is none."""
    d = at.declared
    off = float(at.operation.tolerance(at.args, replace(d, output=d.accumulator)).value) * at.operation.magnitude(
        *at.args
    )
    if kind == "ulp_error":
        value = at._of(kind, off, at.expected)
        return None if value is None else value + Fraction(1, 2)
    fits = (harness.wide(at.expected.to(harness.dtype(d.output))) == at.expected) & (off == 0)
    u = 0.0 if d.output == d.accumulator else float(t.unit_roundoff(d.output))
    return at._of(kind, torch.where(fits, 0.0, off + u * (at.expected.abs() + off)), at.expected)


SHIPPED = [p for p in sorted(ROOT.glob("*.kc")) if p.stem not in ("all_reduce", "out_of_range", "scatter")]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_no_shipped_limit_is_below_what_its_derivation_allows(path, monkeypatch):
    """A kernel that keeps its declaration keeps every shipped limit, at every operand that is drawn."""
    (contract,) = kernels_of(path.read_text(encoding="utf-8"), path.name)
    row, given, how = run.prepared(contract, path.name)
    seen, whole = [], harness._limits

    def noted(inner, at, tolerance):
        limits = whole(inner, at, tolerance)
        if tolerance is None:
            seen.extend((at, kind, one) for kind, one in limits if kind)
        return limits

    monkeypatch.setattr(harness, "_limits", noted)
    kernel = right_for(contract.scope.operation, given)
    run.limited(row, kernel, contract, given, replace(how, trials=2, asked=0))
    assert seen or not any(one.error in harness.KINDS for one in contract.tolerances)
    for at, kind, one in seen:
        least = allowed(at, kind)
        if least is not None:
            assert one.value * (1 + Fraction(1, 2**40)) >= least, (
                kind,
                [tuple(x.shape) for x in at.args],
                float(one.value),
                float(least),
            )
