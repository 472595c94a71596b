"""Every known trap is found by a shipped contract, or is skipped with what it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance.adapters import kl_rows, tf32_operands  # noqa: E402
from kcverify.conformance.kernels import BY_NAME  # noqa: E402
from kcverify.conformance.traps import ROWS, outcome  # noqa: E402

CONTRACTS = Path(__file__).parents[3] / "contracts" / "kernels"


ELSEWHERE = ("torchao.w8a8.frozen", "torchao.w8a8_narrow.frozen")
"""Another compilation of half a minute: `benchmarks/conformance.py` runs it; its emulation and its narrow twin are run here."""
HERE = [trap for trap in ROWS if trap.kernel not in ELSEWHERE]


@pytest.mark.parametrize("trap", HERE, ids=lambda trap: f"{trap.contract}-{trap.kernel.rpartition(':')[2]}")
def test_a_trap_behaves_as_the_table_says(trap):
    if trap.missing:
        pytest.skip(f"needs {trap.missing.removeprefix('no ')}")
    found = outcome(trap)
    assert found["as_expected"] is not False, found


def test_the_table_names_every_trap_and_kernel_row():
    sources = " ".join(trap.source for trap in ROWS)
    numbers = {int(n) for n in re.findall(r"kernel_traps (\d+)", sources)}
    reports = {int(n) for n in re.findall(r"quantization_reports (\d+)", sources)}
    assert numbers == set(range(1, 7))
    assert reports >= {3, 4, 29, 31, 32, 37, 40, 45}
    assert "CUDA" in sources
    for trap in ROWS:
        assert (CONTRACTS / f"{trap.contract}.kc").is_file(), trap.contract
        assert ":" in trap.kernel or trap.kernel in BY_NAME, trap.kernel


def test_every_violation_has_a_right_twin_under_its_contract():
    """A contract that every kernel fails shows nothing."""
    alone = {
        "int8_product",
        "e4m3_infinity",
        "triton_cast",
        "half_accumulation",
        "softmax_stable",
        "logsumexp_f16",
        "denormals",
    }
    within = {
        trap.contract for trap in ROWS if trap.verdict == "within_tolerance" or trap.otherwise == "within_tolerance"
    }
    texts = {path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in CONTRACTS.glob("*.kc")}
    within |= {name for name, line in texts.items() if "within_tolerance" in line}
    assert {trap.contract for trap in ROWS} - within <= {"e4m3_infinity", "triton_cast"} <= alone


def test_kl_of_minus_infinity_on_both_sides_is_nan_in_torch():
    logits = torch.tensor([[0.0, float("-inf")]])
    assert torch.isnan(kl_rows(logits, logits)).all()


def test_tf32_keeps_eleven_bits():
    one = torch.tensor([[1 + 2.0**-10, 1 + 2.0**-11 + 2.0**-20, 1 + 2.0**-12]])
    assert tf32_operands(torch.eye(3), one.expand(3, 3).contiguous())[0].tolist() == [1 + 2.0**-10, 1 + 2.0**-10, 1.0]
