"""Kernel contracts whose parts conflict or ask for the absurd: refused with place and hint, or what is not looked at is named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from kcverify.conformance import contract, isolate, parts
from kcverify.diagnostics import InputError

TEXT = (Path(__file__).parents[3] / "contracts" / "kernels" / "shapes_and_memory.kc").read_text(encoding="utf-8")
TEXT = TEXT.replace("C-CMP-03", "C-PRC-01")

REFUSED = {
    "oracle of few bits": ("in float64", "in float8_e4m3fn", "no finer than results", "matmul in float64", "oracle"),
    "oracle of whole numbers": ("in float64", "in int8", "no finer than results", "matmul in float64", "oracle"),
    "oracle elsewhere": ("matmul in float64", "softmax in float64", "its oracle is `softmax`", "matmul in float64", "oracle"),
    "whole sums of fractions": ("derived(float32)", "derived(int8)", "declares them in int8", "derived(float32)", "tolerance"),
    "another shape": ("shape(out) == [m, n]", "shape(out) == [n, m]", "is [m, n], not [n, m]", "shape(out) == [m, n]", "shape"),
    "a number for a word": ("finite(out)", "denormals(out) == 3", "not `3`", "preserve, flush", "denormals"),
    "two words": (
        "finite(out)", "denormals(out) == flush\n  denormals(out) == preserve", "`flush` and `preserve`", "keep one", "denormals",
    ),
    "a block of nothing": ("finite(out)", "block(out) == 4", "says nothing without", "leave it out", "block"),
    "shapes that break requires": ("finite(a)", "k % 16 == 0\n  k % 16 == 1", "keeps `requires`", "widen `shapes`", "requires"),
    "a dimension of nothing": ("finite(a)", "q >= 3", "no dimension of `matmul`", "use m, n, k", "q"),
    "an operand like a disk": ("k in [2, 256]", "k in [99999999999, 999999999999]", "elements; at most", "smaller sizes", "shapes"),
    "trials for years": ("trials 12", "trials 999999999999", "at most 1000000", "fewer trials", "trials"),
    "no class": ("  class C-PRC-01\n", "", "it names no class", "class C-PRC-01", "contract"),
    "a class of others": ("C-PRC-01", "C-ORD-01", "is about sum, not `matmul`", "take one of sum", "op"),
    "a format without numbers": ("float32 -> float32", "float4_e2m1 -> float32", "`float4_e2m1` can be drawn", "take one of float64", "dtypes"),
    "three formats": ("float32 -> float32", "float32, float16, bfloat16 -> float32", "2, one for each", "name 1 or 2", "dtypes"),
}  # fmt: skip


def read(old, new):
    assert old in TEXT
    (found,) = isolate.kernels_of(TEXT.replace(old, new), "a.kc")
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_with_place_and_hint(name):
    old, new, said, hint, at = REFUSED[name]
    with pytest.raises(InputError) as stop:
        contract.prepared(read(old, new), "a.kc")
    (found,) = stop.value.diagnostics
    assert found.code.slug == "kernel_contract_missing"
    assert said in found.message
    assert hint in (found.hint or found.code.fix)
    assert found.span is not None
    assert at in found.span.text
    assert found.span.start >= TEXT.index("kernel contract")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("finite(out)", "exceptions(out) == RAISE", "exceptions(out) == RAISE"),
        ("finite(out)", "out_of_range(out) == CLAMP", "out_of_range(out) == CLAMP"),
        ("finite(out)", "determinism(out) == none", "determinism(out) == none"),
        ("finite(out)", "summation(out) == pairwise", "summation(out) == pairwise"),
        ("finite(a)", "k % 0 == 0", "k % 0 == 0"),
        ("residual exceeds", "weather exceeds", "weather exceeds"),
        ("backward_error <= derived(float32)", "spread <= 1", "spread <= 1"),
    ],
)  # fmt: skip
def test_what_another_class_looks_at_is_named(old, new, part):
    assert part in parts.unchecked(read(old, new))


def test_the_word_of_the_class_is_looked_at():
    text = TEXT.replace("C-PRC-01", "C-ORD-02").replace("finite(out)", "determinism(out) == none")
    (found,) = isolate.kernels_of(text, "a.kc")
    assert parts.unchecked(found) == []


def test_a_division_by_nothing_says_so():
    found = isolate.contract_here(
        TEXT.replace("derived(float32)", "1 / (k - k)").replace("trials 12", "trials 2"), "a.kc", None, "matmul.float32"
    )
    assert found["verdict"] == "under_specified"
    assert any("/ 0 is no number" in d["message"] for d in found["findings"])
