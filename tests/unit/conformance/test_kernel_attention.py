"""Attention whose scores are large: rows that every order of evaluation decides are compared, others are left out and named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import reach, weighing  # noqa: E402
from kcverify.conformance import tolerances as t  # noqa: E402
from kcverify.conformance.isolate import contract_here  # noqa: E402
from kcverify.conformance.model import Declared  # noqa: E402
from kcverify.conformance.operations import BY_NAME  # noqa: E402

ROOT = Path(__file__).parents[3] / "contracts" / "kernels"
HALF = Declared("float32", "float16", "int8")


def under(distributions, kernel, formats="float32 -> float32", name="attention_fused"):
    text = (ROOT / f"{name}.kc").read_text(encoding="utf-8").replace("float32 -> float32", formats)
    text = re.sub(r"distributions .*", f"distributions {distributions}", text)
    text = re.sub(
        r"trials .*", "trials 2", re.sub(r"shapes .*", "shapes m in [1, 8], n in [4, 20], k in [4, 12]", text)
    )
    return contract_here(text, "a.kc", None, kernel)


@pytest.mark.parametrize("distributions", ["near_overflow", "near_overflow, normal"])
def test_near_overflow_is_decided(distributions):
    found = under(distributions, "attention.float32")
    assert found["verdict"] == "within_tolerance", found["findings"]


def test_a_kernel_that_mixes_where_one_score_is_largest_is_a_violation(tmp_path, monkeypatch):
    (tmp_path / "mixes.py").write_text(
        "def kernel(q, k, v):\n    return v.mean(0, keepdim=True).expand(q.shape[0], -1) + 0\n"
    )
    monkeypatch.chdir(tmp_path)
    assert under("near_overflow", "mixes:kernel")["verdict"] == "violation"


@pytest.mark.parametrize("kernel", ["attention.bfloat16", "kcverify.conformance.samples:attention_narrow"])
def test_weights_in_the_operands_format_are_no_fault_and_the_shipped_one_is_coarser(kernel):
    found = under("normal", kernel, "bfloat16 -> bfloat16")
    assert found["verdict"] == "within_tolerance"
    assert [s["verdict"] for s in found["calibration"]] == ["violation", "within_tolerance"]
    assert found["calibration"][0]["kernel"] == "attention_coarse"


def operands(scale, gap):
    """One query; scores of `scale` and `gap` below it."""
    q = torch.tensor([[scale, scale]], dtype=torch.float64)
    k = torch.tensor([[1.0, 1.0], [1.0 - gap / scale, 1.0 - gap / scale]], dtype=torch.float64)
    return q, k, torch.tensor([[1.0], [3.0]], dtype=torch.float64)


def test_rows_are_ordinary_decided_or_open():
    small, far, near = (weighing.rows(*operands(s, g), HALF, False) for s, g in ((1.0, 0.5), (1e4, 5e3), (1e4, 1.0)))
    assert [bool(x.ordinary) for x in (small, far, near)] == [True, False, False]
    assert [bool(x.decided) for x in (small, far, near)] == [False, True, False]
    assert [bool(x.open) for x in (small, far, near)] == [False, False, True]
    found = BY_NAME["attention"].tolerance(list(operands(1e4, 5e3)), HALF)
    assert found.value is not None
    assert any("weights 1 and 0 in every order" in line for line in found.lines)


def test_an_open_row_is_left_out_and_the_derivation_says_why_nothing_is_said():
    args = list(operands(1e4, 1.0))
    assert bool(reach.undecided(BY_NAME["attention"], args, HALF).all())
    found = BY_NAME["attention"].tolerance(args, HALF)
    assert found.value is None
    assert "no order decides the weights" in found.lines[-1]
    assert reach.undecided(BY_NAME["matmul"], args[:2], HALF) is None


def test_a_row_that_is_called_decided_is_so_under_errors_of_either_sign():
    """Scores moved by all that they may be off by, against the row's top: the weights stay 0 and 1."""
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64) * 12 for s in ((200, 6), (9, 6), (9, 4)))
    found = weighing.rows(q, k, v, HALF, False)
    assert 20 < int(found.decided.sum()) < 190
    scores = q @ k.mT / 6**0.5
    off = float(t.gamma(8, "float16").value) * (q.abs() @ k.abs().mT) / 6**0.5
    top = scores.argmax(-1, keepdim=True)
    moved = scores + off * torch.where(torch.arange(9) == top, -1.0, 1.0)
    weights = torch.softmax(moved, -1)[found.decided]
    exact = torch.nn.functional.one_hot(top[:, 0], 9).double()[found.decided]
    least = float(t.smallest_normal("float16"))
    assert float(((weights - exact).abs() * v.abs().max()).max()) <= 9 * least


def test_a_causal_row_counts_what_it_sees():
    q = torch.full((2, 1), 1e4, dtype=torch.float64)
    k = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    v = torch.ones(2, 1, dtype=torch.float64)
    assert weighing.rows(q, k, v, HALF, True).open.tolist() == [False, True]
    assert weighing.rows(q, k, v, HALF, False).open.tolist() == [True, True]
