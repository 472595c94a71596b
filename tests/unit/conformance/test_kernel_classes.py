"""The twelve classes: each tells its three kernels apart, and rejects every way to pass without work."""

from __future__ import annotations

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import ranks, samples  # noqa: E402
from kcverify.conformance.calibrate import STATES, calibrate, calibrate_class, told_apart  # noqa: E402
from kcverify.conformance.cheats import NAMES, cheats, right_for  # noqa: E402
from kcverify.conformance.model import Declared, Derivation, Protocol, Reading, Run, Verdict  # noqa: E402
from kcverify.conformance.table import BY_ID, ROWS, run_class  # noqa: E402

LOCAL = [row for row in ROWS if row.id != "C-ORD-03"]


def test_there_are_twelve():
    assert len(ROWS) == len(BY_ID) == 12


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_class_tells_its_kernels_apart(row):
    states = calibrate_class(row)
    assert [s.name for s in states] == list(STATES)
    assert told_apart(states), [(s.name, s.ordinary, s.run.verdict, s.run.worst()) for s in states]


def test_the_matrix_says_which_class_is_under_specified(monkeypatch):
    """A class whose bad kernel is its good one cannot tell them apart."""
    row = BY_ID["C-EXC-02"]
    blind = type(row)(**{**row.__dict__, "bad": row.good})
    (found,) = calibrate((blind,))
    assert not found["calibrated"]
    assert [s["state"] for s in found["states"]] == list(STATES)


@pytest.mark.parametrize("row", LOCAL, ids=lambda row: row.id)
@pytest.mark.parametrize("name", NAMES)
def test_a_class_rejects_kernels_without_work(row, name):
    p = row.protocol
    quick = Protocol(2, p.distributions[:2], p.seed, p.confidence, p.shapes)
    kernel = cheats(right_for(row.operations[0], row.declared))[name]
    assert run_class(row, kernel, protocol=quick).verdict is Verdict.VIOLATION


def test_a_result_that_is_part_of_an_operand_is_no_result():
    """It changes when the operand does."""
    run = run_class(BY_ID["C-PRC-03"], lambda a, b: a.mul_(1.0))
    assert run.verdict is Verdict.VIOLATION
    assert {d.code.slug for d in run.findings} >= {"output_deferred"}


def test_mutated_operands_and_kept_results_are_named():
    row = BY_ID["C-PRC-01"]
    for name, slug in (
        ("mutated_input", "inputs_changed"),
        ("cached", "result_cached"),
    ):
        run = run_class(row, cheats(right_for("matmul", row.declared))[name])
        assert slug in {d.code.slug for d in run.findings}


def test_work_that_is_done_after_the_check_is_named():
    """Each result is written when the next one is asked for: no clock decides whether that is seen."""
    row, owed = BY_ID["C-PRC-01"], []

    def later(a, b):
        for out, answer in owed:
            out.copy_(answer)
        owed[:] = [(torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype), a @ b)]
        return owed[0][0]

    found = run_class(row, later)
    assert found.verdict is Verdict.VIOLATION
    assert "output_deferred" in {d.code.slug for d in found.findings}


def test_a_kernel_that_raises_is_a_violation_with_its_reason():
    def broken(a, b):
        raise ValueError("no such shape\nsecond line")

    run = run_class(BY_ID["C-PRC-01"], broken)
    assert run.verdict is Verdict.VIOLATION
    assert "no such shape" in run.findings[0].message
    assert "second line" not in run.findings[0].message


def test_any_exception_of_a_kernel_is_its_violation():
    class OddError(Exception):
        pass

    def odd(*args):
        raise OddError

    for row in LOCAL:
        run = run_class(row, odd, protocol=Protocol(1, ("normal",)))
        assert run.verdict is Verdict.VIOLATION, row.id


def test_only_a_plain_tensor_of_the_right_shape_counts():
    for kernel in (lambda a, b: None, lambda a, b: (a @ b)[:, :1], lambda a, b: torch.nn.Parameter((a @ b).float())):
        run = run_class(BY_ID["C-CMP-02"], kernel)
        assert run.verdict is Verdict.VIOLATION
        assert run.findings[0].code.slug == "output_form"


def test_nothing_is_decided_where_zeros_pass():
    """A protocol of zeros: every kernel agrees with the oracle, so the check has no power."""
    run = run_class(BY_ID["C-PRC-01"], samples.matmul_good, protocol=Protocol(2, ("zeros",)))
    found = [r for r in run.readings if r.name == "matmul, zeros"]
    assert all(r.verdict is Verdict.WITHIN for r in found)
    alone = Run(samples.matmul_good, Declared(), Protocol(), readings=list(found), powerless=2)
    assert alone.verdict is Verdict.UNDER_SPECIFIED


def test_between_the_slack_nothing_is_decided():
    limit = Derivation(Fraction(1), ())
    assert Reading("", Fraction(1), limit, slack=Fraction(1, 10)).verdict is Verdict.INCONCLUSIVE
    assert Reading("", Fraction(9, 10), limit, slack=Fraction(1, 10)).verdict is Verdict.WITHIN
    assert Reading("", Fraction(12, 10), limit, slack=Fraction(1, 10)).verdict is Verdict.VIOLATION
    assert Reading("", None, limit).verdict is Verdict.VIOLATION
    assert Reading("", Fraction(0), Derivation(None, ())).verdict is Verdict.UNDER_SPECIFIED
    assert Run(samples.matmul_good, Declared(), Protocol()).verdict is Verdict.INCONCLUSIVE


def test_flushed_denormals_are_right_where_they_are_declared():
    row = BY_ID["C-PRC-03"]
    assert run_class(row, samples.multiply_flushing, Declared(denormals="flush")).verdict is Verdict.WITHIN


@pytest.mark.parametrize(
    ("policy", "kernel", "verdict"),
    [
        ("CLAMP", samples.embedding_clamped, Verdict.WITHIN), ("CLAMP", samples.embedding_good, Verdict.VIOLATION),
        ("ZERO", samples.embedding_clamped, Verdict.VIOLATION), ("UNDEFINED", samples.embedding_clamped, Verdict.WITHIN),
        ("RAISE", samples.embedding_good, Verdict.WITHIN),
    ],
)  # fmt: skip
def test_what_an_index_out_of_range_does_is_declared(policy, kernel, verdict):
    assert run_class(BY_ID["C-EXC-02"], kernel, Declared(out_of_range=policy)).verdict is verdict


def _raising(x):
    if not bool(torch.isfinite(x).all()):
        raise ValueError("not finite")
    return torch.relu(x)


@pytest.mark.parametrize(
    ("policy", "kernel", "verdict"),
    [
        ("IEEE_PROPAGATE", torch.relu, Verdict.WITHIN),
        ("IEEE_PROPAGATE", lambda x: torch.where(x > 0, x, torch.zeros_like(x)), Verdict.VIOLATION),
        ("MASK", lambda x: torch.relu(torch.nan_to_num(x)), Verdict.WITHIN), ("MASK", torch.relu, Verdict.VIOLATION),
        ("RAISE", _raising, Verdict.WITHIN), ("RAISE", torch.relu, Verdict.VIOLATION),
    ],
)  # fmt: skip
def test_what_nan_and_infinity_do_is_declared(policy, kernel, verdict):
    assert run_class(BY_ID["C-EXC-01"], kernel, Declared(exceptions=policy), operation="relu").verdict is verdict


def test_run_to_run_is_weaker_than_bitwise():
    row = BY_ID["C-ORD-02"]
    assert run_class(row, samples.matmul_by_batch).verdict is Verdict.VIOLATION
    assert run_class(row, samples.matmul_by_batch, Declared(determinism="run_to_run")).verdict is Verdict.WITHIN
    assert run_class(row, samples.matmul_by_batch, Declared(determinism="none")).verdict is Verdict.WITHIN


def test_thread_count_is_put_back():
    before = torch.get_num_threads()
    run_class(BY_ID["C-ORD-02"], samples.matmul_by_rows, protocol=Protocol(1, ("normal",)))
    assert torch.get_num_threads() == before


def test_a_rank_that_ends_is_reported():
    found = ranks.reduce("kcverify.conformance.samples:no_such_kernel", 7)
    assert isinstance(found, str)
    assert "ended with 1" in found
    assert "no_such_kernel" in found
