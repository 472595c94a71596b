"""Opening demo models, functions and files of logits, and every way in which a side can be wrong."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kcverify.diagnostics import InputError
from kcverify.digests import sha256_of
from kcverify.measure.sides import FileSide, KernelSide, open_pair, open_side
from kcverify.resources import data_path

_NUMBER = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module of a fresh name into the working folder and return that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])

    def write(text: str) -> str:
        name = f"user_kernel_{next(_NUMBER)}"
        (tmp_path / f"{name}.py").write_text("import torch\n" + text)
        return name

    return write


IDS = torch.zeros(2, 3, dtype=torch.int64)


def test_a_demo_side_says_what_it_is() -> None:
    side = open_side("demo:bf16")
    assert isinstance(side, KernelSide)
    assert (side.name, side.kind, side.vocabulary) == ("demo:bf16", "kernel", 256)
    assert side.fingerprint["format"] == "bfloat16"
    assert side.fingerprint["weights"] == sha256_of(data_path("tinylm.safetensors"))
    assert side.fingerprint["torch"] == torch.__version__
    assert side.fingerprint["device"].startswith("cpu")
    assert side.logits(IDS).shape == (2, 3, 256)


def test_a_pair_shares_the_weights_in_memory() -> None:
    reference, candidate = open_pair("demo:float32", "demo:float32")
    assert torch.equal(reference.logits(IDS), candidate.logits(IDS))


def test_a_function_is_imported_from_the_working_folder(module) -> None:
    name = module("class Model:\n    def run(ids): return torch.nn.functional.one_hot(ids, 5).half()\n")
    side = open_side(f"{name}:Model.run")
    assert side.logits(IDS).shape == (2, 3, 5)
    assert side.fingerprint["format"] == "function"
    assert len(side.fingerprint["code"]) == 64
    assert side.vocabulary is None


BAD_FUNCTIONS = [
    ("def f(ids): raise ValueError('no such weight')", r"ValueError: no such weight \(user_kernel_\d+\.py:2\)"),
    ("def f(ids):\n    import sys\n    sys.exit(3)", r"SystemExit: 3 \(user_kernel_\d+\.py:4\)"),
    ("def f(): return 1", r"TypeError: f\(\) takes 0 positional arguments"),
    ("def f(ids): return [1.0]", r"it returned a list, not a torch.Tensor"),
    ("def f(ids): return None", r"it returned a NoneType, not a torch.Tensor"),
    ("def f(ids): return ids[:, :, None]", r"it returned torch.int64, not floating-point logits"),
    ("def f(ids): return torch.zeros(2, 9)", r"has shape \[2, 9\], expected \[2, 3, vocabulary\]"),
    ("def f(ids): return torch.zeros(2, 4, 9)", r"has shape \[2, 4, 9\], expected \[2, 3, vocabulary\]"),
    ("def f(ids): return torch.zeros(2, 3, 0)", r"has shape \[2, 3, 0\]"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FUNCTIONS, ids=[m for _, m in BAD_FUNCTIONS])
def test_a_function_that_goes_wrong(module, text: str, message: str) -> None:
    side = open_side(f"{module(text)}:f")
    with pytest.raises(InputError, match=message):
        side.logits(IDS)


BAD_MODULES = [
    ("import no_such_package_at_all", r"ModuleNotFoundError: No module named 'no_such_package_at_all' \(user_"),
    ("def f(:", r"SyntaxError"),
    ("1 / 0", r"ZeroDivisionError: division by zero \(user_kernel_\d+\.py:2\)"),
    ("f = 3", r"f is a int, not a function"),
    ("g = 3", r"AttributeError: .*has no attribute 'f'"),
    ("raise SystemExit", r"SystemExit \(user_"),
]


@pytest.mark.parametrize(("text", "message"), BAD_MODULES, ids=[m for _, m in BAD_MODULES])
def test_a_module_that_cannot_be_used(module, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_side(f"{module(text)}:f")


@pytest.mark.parametrize("spec", ["nothing", "demo:", ":f", "", "demo:int3", "no such.module:f", "a..b:f"])
def test_specs_that_name_nothing(spec: str) -> None:
    with pytest.raises(InputError):
        open_side(spec)


def test_an_unknown_format_lists_those_that_exist() -> None:
    with pytest.raises(InputError) as caught:
        open_side("demo:int3")
    assert caught.value.diagnostics[0].hint.startswith("formats are float32, bfloat16, int8,")


def test_an_unknown_device_is_an_option_error() -> None:
    with pytest.raises(InputError, match="--device"):
        open_side("demo:float32", device="nonsense")


def test_smollm2_asks_for_its_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="SmolLM2-135M is not here: no wheel or GGUF file was given"):
        open_side("smollm2:float32")
    with pytest.raises(InputError, match=r"SmolLM2-135M is not here: .*none\.whl is no file"):
        open_side("smollm2:float32", gguf=tmp_path / "none.whl")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_rows_of_an_npy_file(tmp_path: Path, dtype) -> None:
    values = np.arange(12).reshape(4, 3).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    side = open_side(str(tmp_path / "a.npy"))
    assert isinstance(side, FileSide)
    assert (side.kind, side.length, side.vocabulary) == ("file", 4, 3)
    assert side.rows(1, 3).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert len(side.fingerprint["logits"]) == 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_a_safetensors_file(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(12).reshape(4, 3).to(dtype)
    path = tmp_path / "a.safetensors"
    save_file({"logits": values, "token_ids": torch.arange(4) % 3, "other": torch.zeros(1)}, path)
    side = open_side(str(path))
    assert torch.equal(side.rows(1, 3), values[1:3])
    assert side.token_ids.tolist() == [0, 1, 2, 0]
    save_file({"anything": values}, path)
    assert open_side(str(path)).token_ids is None


BAD_TENSORS = [
    ({"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}, "it holds a, b; name the logits `logits`"),
    ({"token_ids": torch.zeros(2, dtype=torch.int64)}, "it holds token_ids; name the logits"),
    ({"logits": torch.zeros(2, 3, 4)}, r"shape \[2, 3, 4\], expected \[rows, vocabulary\]"),
    ({"logits": torch.zeros(0, 3)}, r"shape \[0, 3\]"),
    ({"logits": torch.zeros(2, 3, dtype=torch.int32)}, "holds I32, not floating-point logits"),
    (
        {"logits": torch.zeros(2, 3), "token_ids": torch.arange(3)},
        r"`token_ids` of .* has shape \[3\], expected 2 integers",
    ),
    ({"logits": torch.zeros(2, 3), "token_ids": torch.zeros(2)}, "its `token_ids` are float32, not integers"),
    ({"logits": torch.zeros(2, 3), "token_ids": torch.tensor([0, 3])}, "go from 0 to 3, its vocabulary has 3 tokens"),
    ({"logits": torch.zeros(2, 3), "token_ids": torch.tensor([-1, 2])}, "go from -1 to 2"),
]


@pytest.mark.parametrize(("tensors", "message"), BAD_TENSORS, ids=[m for _, m in BAD_TENSORS])
def test_safetensors_that_hold_no_logits(tmp_path: Path, tensors, message: str) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=message):
        open_side(str(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors"])
@pytest.mark.parametrize(("content", "message"), [(b"", "is empty"), (b"nonsense" * 9, "not a usable")])
def test_files_that_are_no_tensors(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_side(str(tmp_path / name))


def test_npy_that_holds_no_logits(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match=r"not a usable \.npy file") as objects:
        open_side(str(path))
    path.write_bytes(b"garbage")
    with pytest.raises(InputError, match=r"not a usable \.npy file") as garbage:
        open_side(str(path))
    for error in (objects.value, garbage.value):
        [found] = error.diagnostics
        assert "allow_pickle" not in found.message + found.hint
        assert "can run code" in found.hint
    np.save(path, np.zeros((2, 3), np.int32))
    with pytest.raises(InputError, match="holds int32"):
        open_side(str(path))
    np.save(path, np.zeros(3))
    with pytest.raises(InputError, match=r"shape \[3\]"):
        open_side(str(path))
    np.save(path, np.zeros((20, 30)))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"not a usable \.npy file"):
        open_side(str(path))


@pytest.mark.parametrize("ending", [".npy", ".safetensors"])
def test_missing_files_and_folders(tmp_path: Path, ending: str) -> None:
    with pytest.raises(InputError, match="No such file"):
        open_side(str(tmp_path / f"none{ending}"))
    (tmp_path / f"folder{ending}").mkdir()
    with pytest.raises(InputError, match=r"Is a directory"):
        open_side(str(tmp_path / f"folder{ending}"))
