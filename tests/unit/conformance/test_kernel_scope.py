"""No probe leaves the declared scope, and right kernels are never called a violation for what their declaration allows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from kcverify.conformance import contract as run
from kcverify.conformance import harness
from kcverify.conformance.isolate import kernels_of
from kcverify.conformance.model import EXACT, Reading, Verdict
from kcverify.conformance.operations import BY_NAME
from kcverify.conformance.reach import largest
from kcverify.conformance.table import ROWS
from kcverify.conformance.tolerances import EXACT_FORMATS, evaluate, lost, unit_roundoff
from kcverify.diagnostics import InputError, Report
from kcverify.elaborate.words import Binary, Constant

TEXT = """kernel contract c version "1"
  class {row}
scope {{ op {op}; dtypes {dtypes}; shapes {shapes} }}
requires {{ {requires} }}
ensures {{ {ensures} }}
tolerance {{ {tolerance} }}
oracle {{ {oracle} in float64 }}
measure {{ trials 2; distributions {draws}; seed 3; confidence 50% }}
violation {{ residual exceeds tolerance -> L2 }}
"""
PLAIN = {
    "row": "C-PRC-01", "op": "matmul", "dtypes": "float32 -> float32", "shapes": "m in [1, 4], n in [2, 4], k in [4, 64]",
    "requires": "finite(a)", "ensures": "finite(out)", "tolerance": "backward_error <= derived(float32)", "draws": "normal",
}  # fmt: skip


def text(**given):
    parts = {**PLAIN, **given}
    return TEXT.format(**{"oracle": parts["op"], **parts})


def checked(kernel, **given):
    (one,) = kernels_of(text(**given), "c.kc")
    return run.run_contract(one, "x:y", "c.kc", function=kernel)


RANGES = {"m": (16, 32), "n": (32, 48), "k": (48, 64)}
ALIKE = ("C-ORD-02", "C-CMP-01", "C-CMP-03")
CASES = [
    (row, op)
    for row in ROWS
    for op in (row.operations[:1] if row.id in ALIKE else row.operations)
    if op in BY_NAME and row.id != "C-ORD-01"
]
"""Classes that treat all operations alike with their first one; C-ORD-01 permutes terms alone."""


@pytest.mark.parametrize(("row", "name"), CASES, ids=lambda x: x if isinstance(x, str) else x.id)
def test_no_probe_of_a_class_leaves_the_declared_shapes(row, name):
    operation, outside = BY_NAME[name], set()

    def kernel(*args):
        for dim, size in harness.sizes(operation, list(args)).items():
            low, high = RANGES[dim]
            if not low <= size <= high or size % 16:
                outside.add((dim, size))
        return operation.oracle(*[x.double() for x in args]).to(torch.float32)

    shapes = ", ".join(f"{d} in [{RANGES[d][0]}, {RANGES[d][1]}]" for d in operation.dims)
    requires = "; ".join(["finite(a)", *(f"{d} % 16 == 0" for d in operation.dims)])
    (one,) = kernels_of(text(row=row.id, op=name, shapes=shapes, requires=requires), "c.kc")
    klass, declared, how = run.prepared(one, "c.kc")
    run.limited(klass, kernel, one, declared, how)
    assert not outside


def narrow_sums(a, b):
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)
    for i in range(a.shape[1]):
        total = total + (a[:, i : i + 1] * b[i]).bfloat16()
    return total.float()


RIGHT = {
    "narrow sums, declared": (narrow_sums, {"tolerance": "backward_error <= derived(bfloat16)"}),
    "overflow of float16": (
        lambda a, b: (a @ b).half(),
        {"dtypes": "float32 -> float16", "draws": "normal, near_overflow"},
    ),
    "overflow of float32": (
        lambda a, b: (a @ b).float(),
        {"dtypes": "float64 -> float32", "tolerance": "backward_error <= derived(float64)", "draws": "normal, near_overflow"},
    ),
    "wider output than operands": (
        lambda a, b: a.float() @ b.float(),
        {"row": "C-CMP-01", "dtypes": "float16 -> float32"},
    ),
    "whole numbers, fused": (
        lambda a, b: a.int() @ b.int(),
        {"row": "C-CMP-01", "dtypes": "int8 -> int32", "tolerance": "backward_error <= 0"},
    ),
    "whole numbers, schedules": (
        lambda a, b: a.int() @ b.int(),
        {"row": "C-CMP-02", "dtypes": "int8 -> int32", "tolerance": "backward_error <= 0"},
    ),
    "run to run": (lambda a, b: a @ b, {"row": "C-ORD-02", "ensures": "determinism(out) == run_to_run"}),
    "batches in bfloat16": (lambda a, b: a @ b, {"row": "C-ORD-02", "dtypes": "bfloat16 -> bfloat16"}),
    "scales in float16": (lambda a, b: a @ b, {"row": "C-PRC-04", "dtypes": "float16 -> float16"}),
    "one term": (lambda x: x.sum(-1), {"row": "C-CMP-02", "op": "sum", "shapes": "n in [2, 3]", "requires": "finite(x)"}),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_passes_a_sound_contract(name):
    kernel, given = RIGHT[name]
    found = checked(kernel, **given)
    bad = {
        r["name"]: r["verdict"] for r in found["readings"] if r["verdict"] not in ("within_tolerance", "inconclusive")
    }
    assert not bad
    assert found["verdict"] not in ("violation", "under_specified"), found["findings"]


def test_a_float16_result_that_is_wrong_by_a_fifth_is_seen_far_below_one():
    def kernel(x):
        y = torch.softmax(x.float(), -1)
        return (y * (1 + 0.2 * (torch.arange(x.shape[-1]) % 2 * 2 - 1))).half()

    given = {
        "row": "C-CMP-01",
        "op": "softmax",
        "dtypes": "float16 -> float16",
        "shapes": "m in [1, 2], n in [4096, 4096]",
    }
    assert checked(kernel, **given)["verdict"] == "violation"


def test_below_the_smallest_normal_number_a_step_is_lost_and_all_where_it_is_flushed():
    assert lost("float16", False) * 2**24 == 1
    assert lost("float16", True) * 2**14 == 1
    assert lost("float32", False) == lost("float32", True)


def test_whole_numbers_have_no_largest_one_here():
    assert all(largest(name) == float("inf") for name in EXACT_FORMATS)
    assert largest("float16") == 65504.0


CONTRADICTIONS = {
    "oracle": ({"oracle": "softmax"}, "its oracle is `softmax`"),
    "precondition": ({"requires": "q % 16 == 0"}, "`requires` names `q`"),
    "two words": ({"ensures": "determinism(out) == bitwise; determinism(out) == none"}, "`bitwise` and `none`"),
    "whole": ({"row": "C-EXC-01", "dtypes": "int8 -> int32"}, "holds whole ones"),
    "large": ({"shapes": "m in [65536, 65536], n in [1, 2], k in [65536, 65536]"}, "4.29e+09 elements"),
    "enormous": ({"shapes": "m in [1, 2], n in [1, 2], k in [1" + "0" * 30 + ", 1" + "0" * 31 + "]"}, "1e+30 elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_parts_that_do_not_fit_each_other_are_wrong_input(name):
    given, said = CONTRADICTIONS[name]
    with pytest.raises(InputError) as caught:
        checked(lambda a, b: a @ b, **given)
    assert caught.value.diagnostics[0].code.slug == "kernel_contract_missing"
    assert said in caught.value.diagnostics[0].message


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ensures": "out >= 0"}, "`out >= 0`"),
        ({"ensures": "denormals(out) != preserve"}, "`denormals(out) != preserve`"),
        ({"ensures": "finite(out); shape(out) == [m, n]"}, ""),
        ({"requires": "norm(a) <= 1"}, "`norm(a) <= 1`"),
        ({"shapes": "m in [1, 4], n in [2, 4], k in [4, 64], z in [1, 2]"}, "`z in [1, 2]`"),
        ({"tolerance": "spread <= gamma(k, float32)"}, "`spread <= gamma(k, float32)`"),
        ({"requires": "k % 4 == 0"}, ""),
    ],
)
def test_a_part_that_a_run_does_not_check_is_named(given, told):
    found = [d["message"] for d in checked(lambda a, b: a @ b, **given)["findings"] if d["slug"] == "part_unchecked"]
    assert [told in m for m in found] == ([True] if told else [])


def test_numbers_beyond_float64_are_no_tolerance():
    big = Binary("^", Constant(10**7), Constant(40))
    assert evaluate(Binary("*", Binary("^", big, Constant(200)), big), {}).value is None
    assert evaluate(Binary("*", big, Constant(10**7)), {}).value == 10**287
    found = checked(lambda a, b: a @ b, tolerance="backward_error <= (9999999^200)^200")
    assert found["verdict"] == "under_specified"


@pytest.mark.parametrize("bound", ["gamma(k, k)", "unit_roundoff(k)", "derived(k)", "2 * max(gamma(k, k), k)"])
def test_where_a_format_belongs_a_dimension_is_a_diagnostic(bound):
    from kcverify.elaborate.elaborate import elaborate_file
    from kcverify.forms.read import read
    from kcverify.source import Source

    report = Report()
    elaborate_file(read(Source("c.kc", text(tolerance=f"backward_error <= {bound}")), report), report, parameters={})
    assert [d.code.slug for d in report.errors] == ["unknown_word"]


def test_a_norm_neither_overflows_nor_vanishes():
    for scale in (1e300, 1e-300, 1.0):
        assert float(harness.norm(torch.tensor([3.0, 4.0], dtype=torch.float64) * scale)) == pytest.approx(5 * scale)
    assert float(harness.norm(torch.zeros(3, dtype=torch.float64))) == 0
    assert harness.exact(harness.norm(torch.tensor([float("nan"), 1.0], dtype=torch.float64))) is None


def test_what_is_exact_is_not_left_open():
    assert Reading("exact", EXACT.value, EXACT, slack=unit_roundoff("float32")).verdict is Verdict.WITHIN
