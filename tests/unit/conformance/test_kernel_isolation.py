"""A user's module may do anything when it is imported or called: the tool says what happened and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kcverify.conformance import isolate, later
from kcverify.diagnostics import InputError

TEXT = (Path(__file__).parents[3] / "contracts" / "kernels" / "int8_strides.kc").read_text(encoding="utf-8")
IMPORTS = {
    "quits": ("raise SystemExit(3)", "SystemExit: 3"),
    "raises": ("raise ValueError('no such device')", "no such device"),
    "segfault": ("import ctypes\nctypes.string_at(0)", "signal SIGSEGV"),
    "leaves": ("import os\nos._exit(0)", "exit code 0"),
    "forever": ("print('x' * 10**6)\nwhile True:\n    pass", "no answer in"),
}


def apart(kernel, limit=120):
    (contract,) = isolate.kernels_of(TEXT, "a.kc")
    return isolate.contract_apart(contract, TEXT, "a.kc", kernel, limit)


@pytest.mark.parametrize("name", IMPORTS)
def test_a_module_that_ends_at_import_is_wrong_input(tmp_path, monkeypatch, name):
    body, reason = IMPORTS[name]
    (tmp_path / f"mine_{name}.py").write_text(f"{body}\n")
    monkeypatch.chdir(tmp_path)
    if name == "forever":
        monkeypatch.setattr(isolate, "IMPORT_LIMIT", 6)
    with pytest.raises(InputError) as stop:
        apart(f"mine_{name}:kernel")
    assert reason in stop.value.diagnostics[0].message


def test_a_kernel_that_ends_its_process_when_called_is_a_violation(tmp_path, monkeypatch):
    (tmp_path / "mine_calls.py").write_text("import os\ndef kernel(a, b):\n    print('loud')\n    os._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    found = apart("mine_calls:kernel")
    assert found["verdict"] == "violation"
    assert "exit code 0" in found["findings"][0]["message"]


def test_what_kcverify_does_wrong_is_its_own_fault(tmp_path):
    out = tmp_path / "answer.json"
    isolate.main(str(out), {"row": "no such row", "class": "C-PRC-01"})
    assert "KeyError" in json.loads(out.read_text())["fault"]


def test_a_library_that_is_not_there_is_named():
    assert later.missing("no_such_library") == "no_such_library is not installed"
    assert later.missing("json") == ""
    assert later.Later("kcverify.conformance.samples", "matmul_good").__name__ == "samples.matmul_good"
