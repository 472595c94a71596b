"""Kernel contracts as they run: shipped ones give what line 1 says; what is wrong with a contract is a finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kcverify.conformance import contract as run
from kcverify.conformance import probes
from kcverify.conformance.isolate import contract_here, kernels_of
from kcverify.conformance.kernels import BY_NAME
from kcverify.conformance.model import Verdict
from kcverify.conformance.table import BY_ID
from kcverify.diagnostics import InputError

ROOT = Path(__file__).parents[3] / "contracts"
SHIPPED = [p for p in sorted(ROOT.rglob("*.kc")) if "\nkernel contract " in p.read_text(encoding="utf-8")]

PLAIN = """kernel contract c version "1"
  class {row}
scope {{ op {op}; dtypes {dtypes}; shapes m in [1, 12], n in [2, 12], k in [2, {most}] }}
requires {{ finite(a){requires} }}
ensures {{ finite(out){ensures} }}
tolerance {{ {tolerance} }}
oracle {{ {op} in float64 }}
measure {{ trials 4; distributions normal; seed 3; confidence 95% }}
violation {{ residual exceeds tolerance -> L2 }}
"""


def plain(row="C-PRC-01", op="matmul", dtypes="float32 -> float32", most="64", requires="", ensures="", tolerance=None):
    limit = tolerance or "backward_error <= gamma(k, float32) + unit_roundoff(float32)"
    return PLAIN.format(row=row, op=op, dtypes=dtypes, most=most, requires=requires, ensures=ensures, tolerance=limit)


def expectations():
    for path in SHIPPED:
        line = path.read_text(encoding="utf-8").splitlines()[0]
        findings = re.findall(r"finding ([\w, ]+)", line)
        for verdict, names in re.findall(r"kernels (\w+) ([^;]+)", line):
            for name in names.split(","):
                yield pytest.param(
                    path,
                    name.strip(),
                    verdict,
                    findings[0].split(", ") if findings else [],
                    id=f"{path.stem}-{name.strip()}",
                )


@pytest.mark.parametrize(("path", "kernel", "verdict", "findings"), list(expectations()))
def test_a_shipped_contract_gives_what_its_first_line_says(path, kernel, verdict, findings):
    if kernel in BY_NAME and BY_NAME[kernel].risky:
        pytest.skip("runs in a process of its own: test_kernel_survey")
    found = contract_here(path.read_text(encoding="utf-8"), str(path), None, kernel)
    assert found["verdict"] == verdict, found["worst"]
    assert set(findings) <= {d["slug"] for d in found["findings"]}


def test_ten_are_shipped():
    assert len(SHIPPED) >= 10


def slugs(text, kernel="matmul.float32"):
    found = contract_here(text, "c.kc", None, kernel)
    return found["verdict"], {d["slug"] for d in found["findings"]}


def test_a_good_kernel_under_a_sound_contract():
    assert slugs(plain()) == ("within_tolerance", set())


def test_a_limit_that_says_nothing_is_under_specified():
    text = plain(tolerance="backward_error <= gamma(k, bfloat16)", most="512")
    assert slugs(text) == ("under_specified", {"tolerance_fails_closed"})


def test_a_limit_that_the_good_kernel_breaks_says_nothing_about_the_kernel():
    verdict, found = slugs(plain(tolerance="backward_error <= 2^-60"), "kcverify.conformance.samples:matmul_narrow")
    assert verdict == "under_specified"
    assert "good_fails" in found


def test_shapes_that_hide_the_fault_are_under_specified():
    """Only multiples of 16: the kernel that drops tails passes."""
    text = plain("C-CMP-03", requires="; k % 16 == 0", most="64")
    assert slugs(text) == ("under_specified", {"fault_passes"})


def test_only_shapes_that_keep_the_preconditions_are_drawn():
    text = plain(requires="; k % 8 == 0")
    found = contract_here(text, "c.kc", None, "matmul.float32")
    assert found["verdict"] == "within_tolerance"
    for row in found["readings"]:
        for k in re.findall(r"\d+x(\d+), \d+x\d+", row["where"]):
            assert int(k) % 8 == 0


@pytest.mark.parametrize(("requires", "keeps"), [("; k >= 32", lambda k: k >= 32), ("; k % 8 != 0", lambda k: k % 8)])
def test_other_preconditions_are_kept_by_drawing_again(requires, keeps):
    found = contract_here(plain(requires=requires), "c.kc", None, "matmul.float32")
    shapes = [row["where"] for row in found["readings"] if row["name"].startswith("matmul, ")]
    assert shapes
    assert all(keeps(int(re.match(r"\d+x(\d+)", where)[1])) for where in shapes)


def test_a_remainder_by_zero_is_no_precondition():
    assert (
        contract_here(plain(requires="; k % 0 == 0"), "c.kc", None, "matmul.float32")["verdict"] == "within_tolerance"
    )


@pytest.mark.parametrize(
    ("kind", "loose"),
    [
        ("backward_error", "2^-8"), ("forward_error", "2^-8"), ("relative_error", "2^-2"), ("absolute_error", "2^-8"),
        ("ulp_error", "10^4"), ("mismatch_rate", "0.99"),
    ],
)  # fmt: skip
def test_every_kind_of_error_is_measured(kind, loose):
    text = plain(tolerance=f"{kind} <= {loose}", op="linear")
    assert contract_here(text, "c.kc", None, "linear.float32")["verdict"] == "within_tolerance"
    found = contract_here(plain(tolerance=f"{kind} <= 0", op="linear"), "c.kc", None, "linear.bfloat16")
    assert found["worst"]["verdict"] == "violation" or found["verdict"] == "inconclusive"


def test_a_limit_that_zeros_keep_decides_nothing():
    found = contract_here(plain(tolerance="backward_error <= 10^8"), "c.kc", None, "matmul.float32")
    assert found["verdict"] in ("inconclusive", "under_specified")
    assert found["evidence"]["draws"] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (plain("C-XXX-99"), "none of"),
        (plain("C-EXC-02"), "is about embedding"),
        (plain(dtypes="float4_e2m1 -> float32"), "can be drawn"),
        (plain(ensures="; denormals(out) == sometimes"), "one of preserve, flush"),
        (plain(requires="; k % 97 == 0"), "keeps `requires`"),
        (plain(requires="; k > 1000"), "keeps `requires`"),
    ],
)
def test_a_contract_that_cannot_run_is_an_input_error(text, reason):
    with pytest.raises(InputError) as stop:
        contract_here(text, "c.kc", None, "matmul.float32")
    assert reason in stop.value.diagnostics[0].message


def test_the_contract_is_chosen_by_name():
    both = plain() + plain().replace("contract c", "contract d")
    kernels = kernels_of(both, "c.kc")
    assert run.select(kernels, "d", "c.kc").name == "d"
    for name in (None, "e"):
        with pytest.raises(InputError):
            run.select(kernels, name, "c.kc")


def test_declarations_are_read_off_the_postconditions():
    text = plain(ensures="; denormals(out) == flush; determinism(out) == run_to_run; summation(out) == pairwise")
    (contract,) = kernels_of(text, "c.kc")
    found = run.declared(contract, "c.kc")
    assert (found.denormals, found.determinism, found.summation, found.accumulator) == (
        "flush",
        "run_to_run",
        "pairwise",
        "float32",
    )


def test_shipped_kernels_of_formats_keep_their_own_oracle():
    text = plain(op="linear", tolerance="backward_error <= gamma(k, float32) + 6 * unit_roundoff(float32)")
    assert contract_here(text, "c.kc", None, "format.int4")["verdict"] == Verdict.WITHIN.value


def test_the_table_of_classes_can_be_run_from_contracts():
    for row in BY_ID.values():
        assert row.statement
        assert row.tolerance
        assert row.operations


SIX = {"normal", "lognormal", "cancellation", "subnormal", "near_overflow", "structured"}
LEFT_OUT = {
    "attention_fused": {"subnormal"}, "attention_online": {"subnormal"},  # zeros are right
    "softmax_base2": {"near_overflow"},  # base 2 rounds such logits by more than an exponent
    "causal_shapes": SIX - {"normal"}, "shapes_and_memory": SIX - {"normal"},  # the class draws shapes, of one distribution
    "e4m3_infinity": SIX - {"normal"}, "e5m2_infinity": SIX - {"normal"},  # a format of five or four bits overflows by design
    "merged_variance": {"subnormal", "near_overflow"}, "variance_cascade": {"subnormal", "near_overflow"},  # squares leave float32 at either end
    "triton_cast": SIX - {"normal", "lognormal"},
    "logsumexp_f16": SIX - {"normal"},  # units of the result, which its limit needs to be of the operands' size
    "w8a8_linear": {"subnormal", "near_overflow"}, "int4_weight": {"subnormal", "near_overflow"},  # scales leave float32
    "w8a8_frozen": SIX, "int8_weight_shapes": SIX - {"normal"},  # one compilation; shapes
    "triton_dot": {"subnormal", "near_overflow"}, "tf32_allowed": {"subnormal", "near_overflow"},
}  # fmt: skip
"""What contracts do not draw, beside what `probes.UNFIT` has a reason against."""


@pytest.mark.parametrize("path", [p for p in SHIPPED if p.parent.name == "kernels"], ids=lambda p: p.stem)
def test_all_six_distributions_are_drawn_where_they_make_sense(path):
    (contract,) = kernels_of(path.read_text(encoding="utf-8"), path.name)
    if contract.class_name in ("C-EXC-02", "C-ORD-03"):
        pytest.skip("indices and ranks have their own draws")
    d = run.declared(contract, path.name)
    unfit = {name for name in SIX if probes.unfit(name, d.each, d.output)}
    assert SIX - set(contract.protocol.distributions) == LEFT_OUT.get(path.stem, set()) | unfit
