"""Kernel contracts: eight parts, typed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from kcverify.diagnostics import Diagnostic, Report
from kcverify.elaborate import elaborate_file
from kcverify.elaborate.form import digest
from kcverify.elaborate.kernel import KernelContract, KernelScope, Protocol, Signature
from kcverify.elaborate.words import Apply, Binary, Condition, Constant, Sequence, Symbol
from kcverify.source import Source
from kcverify.syntax import parse
from kcverify.syntax.printer import formatted

PARTS = {
    "scope": "op matmul; dtypes float8_e4m3fn, int8 -> bfloat16; shapes m in [1, 4096], k in [64, 16384]",
    "requires": "finite(a); k % 16 == 0",
    "ensures": "shape(out) == [m, k]; finite(out)",
    "tolerance": "backward_error <= gamma(k, float32) + unit_roundoff(bfloat16)",
    "oracle": "matmul in float64",
    "measure": "trials 200; distributions normal, cancellation; seed 7; confidence 99%",
    "violation": "residual grows with k -> L3; output differs between runs -> L2",
}


def _read(text: str) -> tuple[KernelContract, list[Diagnostic]]:
    report = Report()
    (kernel,) = elaborate_file(parse(Source("x.kc", text), report), report, parameters={}).kernels
    return kernel, [d for d in report.diagnostics if d.code.slug != "not_enforced"]


def _text(**lines: str) -> str:
    parts = "".join(f"{name} {{ {line} }}\n" for name, line in {**PARTS, **lines}.items() if line)
    return f'kernel contract gemm version "1.0"\n  class C-PRC-01\n  "doc"\n{parts}'


def test_the_parts_are_typed() -> None:
    kernel, found = _read(_text())
    assert found == []
    assert (kernel.name, kernel.version, kernel.class_name, kernel.description) == ("gemm", "1.0", "C-PRC-01", "doc")
    shapes = (("m", 1, 4096), ("k", 64, 16384))
    assert kernel.scope == KernelScope("matmul", ("float8_e4m3fn", "int8"), "bfloat16", shapes)
    k, zero = Symbol("k"), Constant(Fraction(0))
    assert kernel.requires == (
        Condition(Apply("finite", (Symbol("a"),))),
        Condition(Binary("%", k, Constant(Fraction(16))), "==", zero),
    )
    assert kernel.ensures[0] == Condition(Apply("shape", (Symbol("out"),)), "==", Sequence((Symbol("m"), k)))
    [tolerance] = kernel.tolerances
    gamma = Apply("gamma", (k, Symbol("float32")))
    assert tolerance.bound == Binary("+", gamma, Apply("unit_roundoff", (Symbol("bfloat16"),)))
    assert kernel.oracle == ("matmul", "float64")
    assert kernel.protocol == Protocol(200, ("normal", "cancellation"), 7, Fraction(99, 100))
    assert kernel.violations == (Signature("residual", "grows", "k", "L3"), Signature("output", "differs", "", "L2"))


def test_the_example_of_the_design(data: Path) -> None:
    kernel, found = _read((data / "fp8_gemm.kc").read_text(encoding="utf-8"))
    assert found == []
    assert kernel.scope.operation == "matmul"


@pytest.mark.parametrize("part", list(PARTS))
def test_each_part_is_needed(part: str) -> None:
    [found] = _read(_text(**{part: ""}))[1]
    assert found.code.slug == "kernel_part_missing"
    assert f"`{part}`" in found.message


@pytest.mark.parametrize(
    ("part", "line", "slug"),
    [
        ("scope", "op matmul; dtypes fp8 -> bfloat16; shapes k in [1, 2]", "unknown_word"),
        ("scope", "op matmul; shapes k in [2, 1]", "number_range"),
        ("scope", "op matmul; shapes k in [1, 2], k in [1, 2]", "number_range"),
        ("scope", "op matmul; shape k in [1, 2]", "unknown_field"),
        ("scope", "shapes k in [64, 16384]", "kernel_part_missing"),
        ("scope", "op matmul; op matmul; shapes k in [1, 2]", "duplicate"),
        ("requires", "finite a", "kernel_form"),
        ("requires", "k % 16", "kernel_form"),
        ("requires", "finit(a)", "unknown_word"),
        ("requires", "k == ", "kernel_form"),
        ("requires", "k == 1 1", "kernel_form"),
        ("ensures", "shape(out) == [m,]", "kernel_form"),
        ("tolerance", "backwards_error <= 1", "unknown_word"),
        ("tolerance", "backward_error <= gamma(k)", "kernel_arguments"),
        ("tolerance", "backward_error <= gamma(n, float32)", "unknown_name"),
        ("tolerance", "backward_error >= 1", "kernel_form"),
        ("tolerance", "backward_error <= 1e9999999", "number_invalid"),
        ("oracle", "matmul with float64", "kernel_form"),
        ("oracle", "matmul in double", "unknown_word"),
        ("measure", "trials 0", "number_range"),
        ("measure", "confidence 100%", "number_range"),
        ("measure", "distributions gaussian", "unknown_word"),
        ("measure", "sedd 5", "unknown_field"),
        ("violation", "residual grows with q -> L3", "unknown_name"),
        ("violation", "residual shrinks -> L3", "unknown_word"),
        ("violation", "residual grows with k -> L4", "unknown_word"),
        ("violation", "residual grows with k", "kernel_form"),
    ],
)
def test_faults(part: str, line: str, slug: str) -> None:
    found = _read(_text(**{part: line}))[1]
    assert slug in {d.code.slug for d in found}
    assert all(d.span is not None for d in found)


def test_priorities_and_shares() -> None:
    kernel, found = _read(_text(tolerance="relative_error <= -2^-8 * (k + 1) / 3 + 1% "))
    assert found == []
    bound = kernel.tolerances[0].bound
    assert isinstance(bound, Binary)
    assert (bound.operator, bound.right) == ("+", Constant(Fraction(1, 100)))


def test_the_digest_ignores_layout() -> None:
    text = _text()
    other = formatted(parse(Source("x.kc", text), Report()))
    assert other != text
    assert digest(_read(text)[0]) == digest(_read(other)[0])
    assert digest(_read(text)[0]) != digest(_read(_text(measure="trials 3"))[0])
