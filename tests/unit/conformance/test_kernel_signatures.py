"""Signatures of violations, draws and confidence, formats of single operands, and distributions, as contracts state them."""

from __future__ import annotations

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import contract as run  # noqa: E402
from kcverify.conformance import sampling, signatures  # noqa: E402
from kcverify.conformance.isolate import contract_here, kernels_of  # noqa: E402
from kcverify.conformance.sampling import Effort  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402

SAMPLES = "kcverify.conformance.samples:"
TEXT = """kernel contract c version "1"
  class {row}
scope {{ op {op}; dtypes {dtypes}; shapes m in [1, 40], n in [2, 24], k in [2, {most}] }}
requires {{ finite(a) }}
ensures {{ finite(out) }}
tolerance {{ {tolerance} }}
oracle {{ {op} in float64 }}
measure {{ trials {trials}; distributions {names}; seed 3; confidence {confidence} }}
violation {{ {violation} }}
"""


def found(kernel, violation="residual exceeds tolerance -> L2", effort=sampling.AS_WRITTEN, **more):
    given = {
        "row": "C-PRC-01", "op": "matmul", "dtypes": "float32 -> float32", "most": 64, "trials": 4, "names": "normal",
        "confidence": "95%", "tolerance": "backward_error <= gamma(k, float32) + unit_roundoff(float32)",
    }  # fmt: skip
    return contract_here(TEXT.format(violation=violation, **{**given, **more}), "c.kc", None, kernel, effort)


@pytest.mark.parametrize(
    ("violation", "kernel", "more", "seen"),
    [
        ("residual exceeds tolerance -> L2", f"{SAMPLES}matmul_narrow", {}, True),
        ("residual exceeds tolerance -> L2", "matmul.float32", {}, False),
        ("residual grows with k -> L3", f"{SAMPLES}matmul_narrow", {"most": 512}, True),
        ("residual grows with k -> L3", "matmul.float32", {"most": 512}, False),
        ("residual grows with k -> L3", f"{SAMPLES}wrong_sign", {}, False),
        ("output differs between runs -> L2", f"{SAMPLES}matmul_by_rows", {}, False),
        ("output depends on batch -> L2", f"{SAMPLES}matmul_by_batch", {}, True),
        ("output depends on batch -> L2", f"{SAMPLES}matmul_by_rows", {}, False),
        ("output is biased -> L1", f"{SAMPLES}matmul_truncated", {"tolerance": "backward_error <= 2^-18"}, True),
        ("output is biased -> L1", f"{SAMPLES}matmul_by_rows", {}, False),
    ],
)
def test_a_signature_is_seen_or_not(violation, kernel, more, seen):
    answer = found(kernel, violation, **more)
    (one,) = answer["signatures"]
    assert one["seen"] is seen, one
    assert (answer["raises"] != "") == (answer["verdict"] == "violation")
    if seen:
        assert answer["verdict"] == "violation"
        assert answer["raises"] == violation[-2:]


def test_runs_that_differ_are_seen():
    calls = iter(range(10**6))

    def unsteady(a, b):
        return (a @ b) * (1 + 2.0**-22 * (next(calls) % 2))

    text = TEXT.format(
        row="C-PRC-01", op="matmul", dtypes="float32 -> float32", most=64, trials=4, names="normal", confidence="95%",
        tolerance="backward_error <= 2^-18", violation="output differs between runs -> L2",
    )  # fmt: skip
    (contract,) = kernels_of(text, "c.kc")
    answer = run.run_contract(contract, "unsteady", "c.kc", function=unsteady)
    assert answer["signatures"][0]["seen"] is True
    assert answer["verdict"] == "violation"


def test_the_ladder_tells_what_coerced_sums_allow():
    answer = found(f"{SAMPLES}matmul_narrow", "residual grows with k -> L3", most=1024)
    ladder = answer["signatures"][0]["ladder"]
    assert [row["size"] for row in ladder] == sorted(row["size"] for row in ladder)
    assert ladder[-1]["size"] == 1024
    assert ladder[-1]["residual"] > ladder[-1]["limit"]
    assert ladder[0]["coerced"]["bfloat16"] == pytest.approx(16 / 256 / (1 - 16 / 256), abs=1e-6)


def test_all_declared_draws_are_made_and_the_confidence_is_printed():
    answer = found("matmul.float32", trials=40, names="normal, lognormal")
    e = answer["evidence"]
    assert (answer["verdict"], e["met"], e["asked"]) == ("within_tolerance", True, 40)
    assert e["draws"] >= 40
    assert e["share"] == pytest.approx(1 - 0.05 ** (1 / 40))
    assert answer["trials"] == 20


@pytest.mark.parametrize("effort", [Effort(trials=5), Effort(seconds=0.0)])
def test_fewer_draws_are_inconclusive(effort):
    answer = found("matmul.float32", trials=40, effort=effort)
    assert answer["verdict"] == "inconclusive"
    assert answer["evidence"]["reached"] == pytest.approx(1 - 0.05 ** (answer["evidence"]["draws"] / 40))
    assert "confidence_not_met" in {d["slug"] for d in answer["findings"]}
    assert found(f"{SAMPLES}wrong_sign", trials=40, effort=Effort(trials=5))["verdict"] == "violation"


def test_draws_that_tell_nothing_do_not_count():
    """Zeros pass every comparison: the other distribution is drawn again for them."""
    answer = found("matmul.float32", trials=12, names="zeros, normal")
    assert answer["evidence"]["draws"] >= 12
    assert answer["verdict"] == "within_tolerance"
    alone = found("matmul.float32", trials=12, names="zeros")
    assert alone["evidence"]["draws"] == 0
    assert alone["verdict"] in ("inconclusive", "under_specified")


@pytest.mark.parametrize(
    "name", ["normal", "lognormal", "cancellation", "subnormal", "near_overflow", "structured"]
)  # fmt: skip
@pytest.mark.parametrize(
    ("op", "row", "kernel", "dtypes"),
    [
        ("matmul", "C-PRC-01", "matmul.bfloat16", "bfloat16 -> bfloat16"),
        ("softmax", "C-PRC-02", "softmax.float32", "float32 -> float32"),
        ("layer_norm", "C-CMP-01", "layer_norm.float32", "float32 -> float32"),
        ("attention", "C-CMP-03", "attention.float32", "float32 -> float32"),
    ],
)
def test_right_kernels_are_within_on_every_distribution(name, op, row, kernel, dtypes):
    """The derived tolerance: `spread` belongs to another class and limits nothing here."""
    answer = found(kernel, op=op, row=row, dtypes=dtypes, names=name, tolerance="spread <= 1")
    assert answer["worst"]["verdict"] in ("within_tolerance", "under_specified"), answer["worst"]
    assert "violation" not in {r["verdict"] for r in answer["readings"]}


def test_every_operand_has_its_own_format():
    answer = found(
        "scaled_mm.mixed", dtypes="float8_e5m2, float8_e4m3fn -> bfloat16", most=128,
        tolerance="backward_error <= gamma(k, float32) + unit_roundoff(bfloat16)",
    )  # fmt: skip
    assert answer["declared"]["formats"] in (("float8_e5m2", "float8_e4m3fn"), ["float8_e5m2", "float8_e4m3fn"])
    assert answer["verdict"] == "within_tolerance"
    with pytest.raises(InputError) as stop:
        found("matmul.float32", dtypes="float32, bfloat16, float16 -> float32")
    assert "one for each" in stop.value.diagnostics[0].message


def test_tails_and_needed_trials_are_exact():
    assert signatures.tail(0, 5) == 1
    assert signatures.tail(5, 5) == Fraction(1, 32)
    assert sampling.needed(Fraction(95, 100), Fraction(95, 100)) == 59
    assert sampling.needed(Fraction(95, 100), Fraction(99, 100)) == 90
