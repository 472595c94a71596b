"""The shipped kernels: every trap is found, what is right passes, a crash is a finding."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import adapters, isolate, kernels  # noqa: E402
from kcverify.conformance.kernels import BY_NAME, ROWS, SURVEY  # noqa: E402
from kcverify.conformance.model import Declared, Protocol, Run, Verdict  # noqa: E402
from kcverify.conformance.operations import BY_NAME as OPERATIONS  # noqa: E402
from kcverify.conformance.probes import DISTRIBUTIONS, draw, generator, indices  # noqa: E402
from kcverify.conformance.table import BY_ID, run_class  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402
from kcverify.elaborate.kernel import DISTRIBUTIONS as WORDS  # noqa: E402

RIGHT = [
    "matmul.bfloat16", "matmul.float16", "linear.float32", "softmax.float32", "softmax.bfloat16", "layer_norm.float32",
    "rms_norm.bfloat16", "attention.float32", "attention.bfloat16", "logsumexp.float32", "variance.float32", "sum.float16",
]  # fmt: skip


def _run(name, class_id):
    row, kernel = BY_ID[class_id], BY_NAME[name]
    return run_class(row, kernel.kernel, kernel.declared, kernel.protocol(row), kernel.operation)


def test_pairs_at_int16_give_the_published_number():
    """x = 255 and w = 127, K = 64: 2,072,640 exactly; 1,048,544 in pairs that saturate. The u8 operand is a + 128."""
    a, b = torch.full((1, 64), 127, dtype=torch.int8), torch.full((64, 1), 127, dtype=torch.int8)
    saturated = int(adapters.int16_pairs(a, b)) + 128 * 127 * 64
    assert (255 * 127 * 64, saturated) == (2_072_640, 32_767 * 32)


def test_half_sums_overflow_where_float32_sums_do_not():
    a, b = torch.full((1, 128), 600.0).half(), torch.ones(128, 1).half()
    run = Run(adapters.half_sums, Declared("float16", "float32", "bfloat16"), Protocol())
    assert torch.isinf(adapters.half_sums(a, b)).all()
    from kcverify.conformance.harness import compare

    assert compare(run, OPERATIONS["matmul"], [a, b], "128 terms of 600") is False
    assert run.verdict is Verdict.VIOLATION


@pytest.mark.parametrize("value", [464.0, 465.0, 1000.0, float("inf")])
def test_e4m3_saturates(value):
    assert float(adapters.cast_e4m3(torch.tensor([value]))) == 448.0


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_keeps_its_tolerance(name):
    kernel = BY_NAME[name]
    assert kernel.operation in OPERATIONS
    found = [_run(name, c) for c in ("C-CMP-03", "C-CMP-01", "C-CMP-02", "C-PRC-01") if kernel.applies(BY_ID[c])]
    assert found
    assert {run.verdict for run in found} == {Verdict.WITHIN}


@pytest.mark.parametrize("name", [f"format.{row}" for row in ("int8", "w8a8", "fp8", "int4", "int8_bf16", "int4_bf16")])
def test_kernels_of_formats_keep_theirs(name):
    assert _run(name, "C-PRC-01").verdict is Verdict.WITHIN


def test_the_survey_covers_every_class_and_kernel():
    assert {c.id for _, c in SURVEY} == set(BY_ID)
    assert {k.name for k, _ in SURVEY} == {k.name for k in ROWS}
    assert len({k.name for k in ROWS}) == len(ROWS)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the fault is of torch 2.13")
def test_a_kernel_that_ends_its_process_is_a_finding():
    """bfloat16 `_weight_int8pack_mm` with k no multiple of 32: its process ends, or its rows are wrong."""
    found = isolate.survey_one(BY_NAME["weight_int8pack.unpadded"], BY_ID["C-CMP-03"])
    assert found["verdict"] == "violation"


def test_a_crash_names_its_signal(monkeypatch, tmp_path):
    (tmp_path / "ends_here.py").write_text(
        "import os, signal\ndef kernel(a, b):\n    os.kill(os.getpid(), signal.SIGSEGV)\ndef sleeps(a, b):\n    import time\n    time.sleep(600)\n"
    )
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[3] / "contracts" / "kernels" / "accumulator_bf16.kc").read_text(encoding="utf-8")
    (contract,) = isolate.kernels_of(text, "a.kc")
    found = isolate.contract_apart(contract, text, "a.kc", "ends_here:kernel")
    assert found["verdict"] == "violation"
    assert found["findings"][0]["message"].endswith(f"signal {signal.SIGSEGV.name}")
    slow = isolate.contract_apart(contract, text, "a.kc", "ends_here:sleeps", limit=6)
    assert slow["verdict"] == "inconclusive"
    assert os.getpid()


@pytest.mark.parametrize(
    "name", ["matmul", "no.such:kernel", "torch:no_such", "torch:__version__", ":x", "x:", "a b:c"]
)
def test_a_kernel_that_is_not_there_is_an_input_error(name):
    with pytest.raises(InputError) as stop:
        kernels.find(name)
    assert stop.value.diagnostics[0].code.slug == "kernel_not_found"


def test_every_word_of_the_language_can_be_drawn():
    assert set(DISTRIBUTIONS) == set(WORDS)
    for name in DISTRIBUTIONS:
        (one,), (two,) = (draw(name, ((4, 6),), "bfloat16", generator(3)) for _ in range(2))
        assert torch.equal(one, two)
        assert bool(torch.isfinite(one.float()).all())


def test_subnormal_draws_are_below_the_smallest_normal_number():
    (x,) = draw("subnormal", ((64,),), "float32", generator(1))
    assert bool((x.abs() < torch.finfo(torch.float32).smallest_normal).all())
    assert bool((x != 0).any())


def test_indices_out_of_range_lie_on_both_sides():
    outside = indices(100, 50, generator(1), True)
    assert len(outside) == 100
    assert bool(((outside < 0) | (outside >= 50)).all())
    assert {-1, 50} <= set(outside.tolist())
