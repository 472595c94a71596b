"""What a kernel may return and leave behind: the form of a result, settings of the process, exceptions that fail to speak."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from kcverify.conformance import surroundings
from kcverify.conformance.form import SAID, printable, reason
from kcverify.conformance.kernels import find
from kcverify.conformance.model import Declared, Protocol, Run, Verdict
from kcverify.conformance.precision import accumulator, denormals

SMALL = Protocol(trials=1, distributions=("normal",), shapes=(("m", 1, 4), ("n", 2, 4), ("k", 4, 16)))


def checked(kernel, check=accumulator, operation="matmul", declared=None):
    run = Run(kernel, declared or Declared(), SMALL, operation)
    check(run)
    return run


FORMS = {
    "float64": (lambda a, b: a.double() @ b.double(), "float64, not float32"),
    "bfloat16": (lambda a, b: (a @ b).bfloat16(), "bfloat16, not float32"),
    "complex": (lambda a, b: torch.complex(a @ b, torch.ones(a.shape[0], b.shape[1])), "complex numbers"),
    "conjugate": (lambda a, b: (a @ b).to(torch.complex64).conj(), "complex numbers"),
    "sparse": (lambda a, b: (a @ b).to_sparse(), "layout torch.sparse_coo"),
    "opaque": (lambda a, b: (a @ b).to_mkldnn(), "layout torch._mkldnn"),
    "elsewhere": (lambda a, b: torch.empty(a.shape[0], b.shape[1], device="meta"), "on meta, not on cpu"),
    "nothing": (lambda a, b: None, "a NoneType"),
    "several": (lambda a, b: (a @ b,), "a tuple"),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.filterwarnings("ignore")
def test_a_result_in_another_form_is_a_violation_with_its_reason(name):
    kernel, said = FORMS[name]
    run = checked(kernel)
    assert run.verdict is Verdict.VIOLATION
    assert said in next(d.message for d in run.findings if d.code.slug == "output_form")


def test_values_of_the_declared_format_may_come_in_a_wider_one():
    declared = Declared("bfloat16", "float32", "bfloat16")
    assert checked(lambda a, b: (a @ b).float(), declared=declared).verdict is Verdict.WITHIN


@pytest.mark.parametrize(
    "change", [lambda x: x.resize_(0), lambda x: setattr(x, "data", torch.zeros(1)), lambda x: x.zero_()]
)
def test_operands_that_a_kernel_reshapes_are_a_finding_and_put_back(change):
    def kernel(a, b):
        out = a @ b
        change(a)
        return out

    run = checked(kernel)
    assert {d.code.slug for d in run.findings} == {"inputs_changed"}


def test_an_exception_that_cannot_say_what_it_is_is_still_a_finding():
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError

    def kernel(a, b):
        raise MuteError

    assert any("MuteError" in d.message and "no reason" in d.message for d in checked(kernel).findings)


def test_what_a_kernel_says_moves_no_cursor_and_ends():
    assert printable("a\x1b[31m\n\u202eb") == "a[31m b"
    assert len(reason(ValueError("x" * 10**6))) < SAID + 10


FLUSH = """import torch
torch.set_flush_denormal(True)
torch.set_default_dtype(torch.float64)
def multiply(a, b):
    return a * b
"""


@pytest.fixture
def settings():
    before = surroundings.read()
    yield before
    surroundings.put(before)


def test_a_module_that_flushes_denormals_does_not_flush_those_of_the_oracle(tmp_path, monkeypatch, settings):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flushes_at_import.py").write_text(FLUSH)
    for _ in range(2):  # its module is run by the first import alone
        kernel = find("flushes_at_import:multiply")
        assert surroundings.read() == settings
        assert checked(kernel, denormals, "multiply").verdict is Verdict.VIOLATION
    assert surroundings.read() == settings


def test_what_a_call_changes_about_the_process_holds_for_the_kernel_alone(settings):
    def kernel(a, b):
        torch.set_flush_denormal(True)
        torch.set_default_device("meta")
        return a * b

    run = checked(kernel, denormals, "multiply")
    assert run.verdict is Verdict.VIOLATION
    assert surroundings.read() == settings
    assert any("default device, flushing of denormals" in note for note in run.notes)
