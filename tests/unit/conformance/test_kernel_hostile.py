"""Kernels that are clumsy or want to pass without the work: each ends in a verdict or a coded message, none in a traceback or a pass."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kcverify.conformance import form, harness, isolate, memory, surroundings, tampering  # noqa: E402
from kcverify.conformance.kernels import find, left  # noqa: E402
from kcverify.conformance.model import Declared, Protocol, Run, Verdict  # noqa: E402
from kcverify.conformance.operations import BY_NAME as OPERATIONS  # noqa: E402
from kcverify.conformance.precision import accumulator  # noqa: E402
from kcverify.conformance.table import ROWS as CLASSES  # noqa: E402
from kcverify.conformance.table import run_class  # noqa: E402
from kcverify.diagnostics import InputError  # noqa: E402

TEXT = (Path(__file__).parents[3] / "contracts" / "kernels" / "shapes_and_memory.kc").read_text(encoding="utf-8")
TEXT = TEXT.replace("C-CMP-03", "C-PRC-01").replace("trials 12", "trials 2").replace("k in [2, 256]", "k in [4, 32]")

MODULE = """
import inspect, os, random, shutil, sys
import torch

def zeros(a, b):
    return torch.zeros(a.shape[0], b.shape[1])

def leaves_gradients(a, b):
    a.requires_grad_()
    return a @ b

def changes_class(a, b):
    a.__class__ = torch.nn.Parameter
    return a @ b

def default_dtype(a, b):
    torch.set_default_dtype(torch.float64)
    return a @ b

def seeds(a, b):
    torch.manual_seed(0)
    return a @ b

def threads(a, b):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return a @ b

def shallow(a, b):
    import sys
    sys.setrecursionlimit(300)
    return a @ b

def deep(a, b):  # as torch's compiler does
    import sys
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))
    return a @ b

def gradients_off(a, b):
    torch.set_grad_enabled(False)
    return a @ b

def replaces_torch(a, b):
    torch.Tensor.abs = lambda self: torch.zeros_like(self)
    torch.isfinite = lambda x: torch.ones_like(x, dtype=torch.bool)
    return zeros(a, b)

def replaces_the_check(a, b):
    from kcverify.conformance import harness, model
    harness.compare = lambda *x, **y: True
    model.Run.verdict = property(lambda self: model.Verdict.WITHIN)
    return zeros(a, b)

def replaces_python(a, b):
    import builtins
    builtins.max = lambda *x, **y: 0
    sys.modules["json"] = None
    return zeros(a, b)

def asks_the_caller(a, b):
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("operation")
        if hasattr(found, "oracle"):
            return found.oracle(a.double(), b.double()).float()
        frame = frame.f_back
    return zeros(a, b)

def forgets_the_caller(a, b):
    frame = inspect.currentframe()
    while frame is not None:
        run = frame.f_locals.get("run")
        if hasattr(run, "readings"):
            run.readings.clear()
            run.findings.clear()
        frame = frame.f_back
    return zeros(a, b)

def _place():
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and "out" in frame.f_locals:
            return frame.f_locals["out"]
        frame = frame.f_back

def answers_itself(a, b):
    with open(_place(), "w") as file:
        file.write('{"verdict": "within_tolerance"}')
    os._exit(0)

def answers_nonsense(a, b):
    with open(_place(), "w") as file:
        file.write("[" * 100000)
    os._exit(0)

def removes_the_folder(a, b):
    shutil.rmtree(os.path.dirname(_place()), ignore_errors=True)
    return a @ b

def loops(a, b):
    while True:
        pass

def interrupts(a, b):
    raise KeyboardInterrupt

def breaks_the_check(a, b):
    from kcverify.conformance import answer
    answer._FEATURES, answer.EXIT = None, None
    return a @ b

not_callable = 3
"""
EXPECTED = {
    "leaves_gradients": ("violation", "inputs_changed", "changed its operands"),
    "changes_class": ("violation", "inputs_changed", "changed its operands"),
    "default_dtype": ("violation", "process_changed", "default dtype"),
    "seeds": ("violation", "process_changed", "seed of random numbers"),
    "threads": ("violation", "process_changed", "number of threads"),
    "shallow": ("violation", "process_changed", "recursion limit"),
    "deep": ("within_tolerance", "", ""),
    "gradients_off": ("violation", "process_changed", "gradients on or off"),
    "replaces_torch": ("violation", "process_changed", "replaces torch.isfinite, Tensor.abs"),
    "replaces_the_check": ("violation", "process_changed", "Run.verdict"),
    "replaces_python": ("violation", "process_changed", "replaces max, sys.modules['json']"),
    "asks_the_caller": ("violation", "", ""),
    "forgets_the_caller": ("violation", "", ""),
    "answers_itself": ("violation", "kernel_crashed", "exit code 0"),
    "answers_nonsense": ("violation", "kernel_crashed", "exit code 0"),
    "removes_the_folder": ("inconclusive", "check_disturbed", "folder of its answer is gone"),
    "loops": ("inconclusive", "kernel_slow", "no answer of the kernel in 3 s"),
    "interrupts": ("violation", "kernel_crashed", "KeyboardInterrupt"),
    "breaks_the_check": ("inconclusive", "check_disturbed", "broke off: TypeError"),
}


def apart(kernel, limit=60):
    (contract,) = isolate.kernels_of(TEXT, "a.kc")
    return isolate.contract_apart(contract, TEXT, "a.kc", kernel, limit)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_hostile_kernel_has_a_verdict_and_a_code(tmp_path, monkeypatch, name):
    (tmp_path / "hostile_kernels.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    verdict, slug, said = EXPECTED[name]
    found = apart(f"hostile_kernels:{name}", 3 if name == "loops" else 60)
    assert found["verdict"] == verdict
    assert not slug or any(d["slug"] == slug and said in d["message"] for d in found["findings"]), found["findings"]
    json.dumps(found)


def test_who_asks_the_caller_is_shown_where_nobody_calls(tmp_path, monkeypatch):
    """Right in every call that the check makes itself: only the one from a thread of its own differs."""
    (tmp_path / "hostile_kernels.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    found = apart("hostile_kernels:asks_the_caller")
    wrong = [r["name"] for r in found["readings"] if r["verdict"] == "violation"]
    assert wrong == ["called from a thread of its own"]


@pytest.fixture
def quiet_again():
    """Settings as they were."""
    before = surroundings.read()
    yield
    surroundings.put(before)


def test_what_a_module_replaces_at_import_holds_for_its_kernel_alone(tmp_path, monkeypatch, quiet_again):
    body = "import torch\n_old = torch.nn.functional.softmax\ntorch.nn.functional.softmax = lambda *a, **k: _old(*a, **k) * 2\n"
    body += "torch.set_num_threads(1)\ndef kernel(x):\n    return torch.nn.functional.softmax(x, -1)\n"
    (tmp_path / "patches_at_import.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    whole, x = torch.nn.functional.softmax, torch.ones(2, 4)
    for _ in range(2):  # its module is run by the first import alone
        kernel = find("patches_at_import:kernel")
        assert torch.nn.functional.softmax is whole
        assert float(kernel(x)[0, 0]) == 0.5
        assert torch.nn.functional.softmax is whole
    assert "replaces torch.nn.functional.softmax" in left("patches_at_import:kernel")


class StrayError(BaseException):
    """No `Exception`."""


@pytest.mark.parametrize("what", [StrayError("odd"), GeneratorExit()])
def test_what_is_no_exception_is_a_finding_in_this_process_too(what):
    def kernel(a, b):
        raise what

    run = Run(kernel, Declared(), Protocol(1, ("normal",), shapes=(("k", 4, 16),)))
    accumulator(run)
    assert run.verdict is Verdict.VIOLATION
    assert any(d.code.slug == "kernel_raised" and type(what).__name__ in d.message for d in run.findings)


def test_a_module_that_raises_what_is_no_exception_is_not_found(tmp_path, monkeypatch, quiet_again):
    (tmp_path / "stray_at_import.py").write_text("class Odd(BaseException):\n    pass\nraise Odd('way')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="Odd: way"):
        find("stray_at_import:kernel")


def test_a_sign_that_is_still_to_be_applied_is_compared_as_it_reads():
    run = Run(lambda a, b: torch._neg_view(-(a @ b)), Declared(), Protocol(1, ("normal",), shapes=(("k", 4, 16),)))
    accumulator(run)
    assert run.verdict is Verdict.WITHIN
    assert harness.same_bits(torch._neg_view(-torch.ones(2)), torch.ones(2))


def test_a_name_that_torch_replaces_itself_is_no_finding(quiet_again):
    assert tampering.snapshot() == []
    with tampering.watching(True):
        before = tampering.snapshot()
        assert before
        torch.set_default_dtype(torch.float64)
        assert tampering.changes(before) == ()
        torch.set_default_dtype(torch.float32)


def test_memory_beyond_the_limit_is_refused():
    assert memory.free() is None or memory.free() > 2**20
    body = "from kcverify.conformance import memory\nmemory.free = lambda: 2**28\nmemory.bound()\n"
    body += "try:\n    bytearray(2**30)\nexcept MemoryError:\n    print('refused')\n"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True)
    if Path("/proc/self/status").is_file():
        assert done.stdout.strip() == "refused"


BY_CLASS = [row for row in CLASSES if row.operations[0] in OPERATIONS]


@pytest.mark.parametrize("row", BY_CLASS, ids=lambda row: row.id)
@pytest.mark.parametrize("shape", [(0,), (), (3, 1, 2)])
def test_a_result_of_another_shape_is_a_finding_in_every_class(row, shape):
    """Calls beside the comparison took any shape and failed at subtracting it."""
    how = replace(row.protocol, trials=1, distributions=("normal",))
    run = run_class(row, lambda *args, **more: torch.zeros(shape), replace(row.declared, output="float32"), how)
    if shape == () and row.operations[0] == "sum":
        return
    assert run.verdict is Verdict.VIOLATION
    assert any(d.code.slug == "output_form" and f"shape {shape}" in d.message for d in run.findings)


def test_a_sign_that_one_byte_cannot_apply_is_named():
    view = torch._neg_view(torch.zeros(2).to(torch.float8_e4m3fn))
    assert "sign is still to be applied" in form.fault(view, Declared())
