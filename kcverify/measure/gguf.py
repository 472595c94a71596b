"""Reader of GGUF files (format: github.com/ggml-org/ggml/blob/master/docs/gguf.md), with every length checked."""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcverify.diagnostics import InputError, input_error
from kcverify.measure.model import Architecture, Model, check_shapes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_MAX_MEMBER = 4 << 30
_MAX_RATIO = 20
"""Weights hardly shrink: what shrinks more is made to fill memory."""
_MAX_SIZE = 1 << 40
_MAX_DEPTH = 4
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class BlockType:
    """One ggml tensor type: how many elements a block holds, its bytes, and how blocks become float32."""

    name: str
    elements: int
    size: int
    decode: Callable[[Bytes], Floats]


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it lies in the file: numpy shape (slowest first), type and raw bytes."""

    shape: tuple[int, ...]
    type: BlockType
    data: Bytes


@dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of a GGUF file. `path` is what messages name."""

    path: str
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, RawTensor] = field(repr=False)


def _halves(blocks: Bytes, start: int) -> Floats:
    return blocks[:, start : start + 2].copy().view("<f2").astype(np.float32)


def _decode_q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * blocks[:, 2:].copy().view(np.int8).astype(np.float32)


def _decode_q4_1(blocks: Bytes) -> Floats:
    codes = np.concatenate((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), axis=1).astype(np.float32)
    return _halves(blocks, 0) * codes + _halves(blocks, 2)


BLOCK_TYPES: Mapping[int, BlockType] = {
    0: BlockType("F32", 1, 4, lambda blocks: blocks.copy().view("<f4").astype(np.float32)),
    1: BlockType("F16", 1, 2, lambda blocks: blocks.copy().view("<f2").astype(np.float32)),
    3: BlockType("Q4_1", 32, 20, _decode_q4_1),
    8: BlockType("Q8_0", 32, 34, _decode_q8_0),
}


class _Cursor:
    """Reads little-endian values from a buffer and refuses to pass its end."""

    def __init__(self, buffer: memoryview, path: str) -> None:
        self.buffer, self.path, self.at = buffer, path, 0

    def fault(self, reason: str) -> InputError:
        return input_error("model_invalid", path=self.path, reason=f"{reason} (byte {self.at})")

    def take(self, size: int) -> memoryview:
        if size > len(self.buffer) - self.at:
            raise self.fault(f"cut short: {size} bytes expected, {len(self.buffer) - self.at} left")
        self.at += size
        return self.buffer[self.at - size : self.at]

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        raw = self.take(self.scalar("<Q"))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.fault("a string is not UTF-8") from error

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < _MAX_DEPTH:
            element, count = self.scalar("<I"), self.scalar("<Q")
            if count > len(self.buffer) - self.at:  # every element takes at least one byte
                raise self.fault(f"an array of {count} elements is longer than the file")
            return [self.value(element, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise self.fault(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])


def _tensor(cursor: _Cursor, base: int, info: tuple[str, tuple[int, ...], int, int]) -> RawTensor:
    name, shape, kind, offset = info
    if kind not in BLOCK_TYPES:
        known = ", ".join(t.name for t in BLOCK_TYPES.values())
        raise cursor.fault(f"tensor `{name}` has ggml type {kind}; known are {known}")
    block = BLOCK_TYPES[kind]
    if shape[-1] % block.elements:
        raise cursor.fault(f"tensor `{name}` of shape {list(shape)} does not fill blocks of {block.elements}")
    size = prod(shape) // block.elements * block.size
    start = base + offset
    if start + size > len(cursor.buffer):
        raise cursor.fault(f"tensor `{name}` ends at byte {start + size}, the file at {len(cursor.buffer)}")
    return RawTensor(shape, block, np.frombuffer(cursor.buffer, np.uint8, size, start))


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.string(), cursor.scalar("<I")
    if not 1 <= dimensions <= 4:
        raise cursor.fault(f"tensor `{name}` has {dimensions} dimensions")
    shape = tuple(reversed([cursor.scalar("<Q") for _ in range(dimensions)]))
    if not all(1 <= n < _MAX_SIZE for n in shape):
        raise cursor.fault(f"tensor `{name}` has shape {list(shape)}")
    return name, shape, cursor.scalar("<I"), cursor.scalar("<Q")


def parse(buffer: bytes | mmap.mmap, path: str) -> GgufFile:
    """Metadata and tensor views of a GGUF file of version 2 or 3 held in `buffer`.

    Raises InputError (`model_invalid`) for another format, a truncated file, an unknown type or a bad length.
    """
    cursor = _Cursor(memoryview(buffer), path)
    if bytes(cursor.take(4)) != b"GGUF":
        raise input_error("model_invalid", path=path, reason="it does not start with GGUF")
    version, tensor_count, pair_count = cursor.scalar("<I"), cursor.scalar("<Q"), cursor.scalar("<Q")
    if version not in (2, 3):
        raise cursor.fault(f"GGUF version {version}; known are 2 and 3")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.fault(f"alignment {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    return GgufFile(path, metadata, {info[0]: _tensor(cursor, base, info) for info in infos})


def _member(path: Path) -> bytes:
    """Bytes of the one `.gguf` file in a wheel or zip."""
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(".gguf")]
        if len(members) != 1:
            raise input_error("model_invalid", path=path, reason=f"it holds {len(members)} .gguf files, expected one")
        if members[0].file_size > _MAX_MEMBER:
            raise input_error("model_invalid", path=path, reason=f"its model has {members[0].file_size} bytes")
        if members[0].file_size > _MAX_RATIO * max(members[0].compress_size, 1 << 20):
            reason = f"its model of {members[0].file_size} bytes is packed into {members[0].compress_size}"
            raise input_error("model_invalid", path=path, reason=reason)
        return archive.read(members[0])


def read_gguf(path: Path) -> GgufFile:
    """The GGUF file at `path`: a `.gguf` (memory-mapped), or the only one inside a `.whl` or `.zip` (never imported).

    Raises InputError: `file_unreadable`, `file_empty`, `model_invalid`.
    """
    try:
        if path.stat().st_size == 0:
            raise input_error("file_empty", path=path)
        if path.suffix in (".whl", ".zip"):
            return parse(_member(path), str(path))
        with path.open("rb") as handle:
            return parse(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), str(path))
    except OSError as error:
        raise input_error("file_unreadable", path=path, reason=error.strerror or error) from error
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise input_error("model_invalid", path=path, reason=f"not a usable zip: {error}") from error


def dequantise(tensor: RawTensor) -> Floats:
    """float32 values of a tensor in its numpy shape."""
    return tensor.type.decode(tensor.data.reshape(-1, tensor.type.size)).reshape(tensor.shape)


def _required(file: GgufFile, key: str, kind: type[int] | type[float]) -> Any:
    value = file.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise input_error("model_invalid", path=file.path, reason=f"metadata `{key}` is {value!r}")
    if value <= 0:
        raise input_error("model_invalid", path=file.path, reason=f"metadata `{key}` is {value!r}, not positive")
    return value


def load_model(file: GgufFile) -> Model:
    """Float32 model of a GGUF file of architecture `llama`.

    Raises InputError: `model_invalid`, `shape_invalid`.
    """
    name = file.metadata.get("general.architecture")
    if name != "llama":
        raise input_error("model_invalid", path=file.path, reason=f"architecture {name!r}, only `llama` is known")
    dim, heads = _required(file, "llama.embedding_length", int), _required(file, "llama.attention.head_count", int)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise input_error("model_invalid", path=file.path, reason="it has no matrix `token_embd.weight`")
    kv_heads = _required(file, "llama.attention.head_count_kv", int)
    if dim % (2 * heads) or heads % kv_heads:
        reason = f"{heads} heads and {kv_heads} KV heads in {dim} channels"
        raise input_error("model_invalid", path=file.path, reason=reason)
    architecture = Architecture(
        vocabulary=embedding.shape[0],
        dim=dim,
        layers=_required(file, "llama.block_count", int),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim // heads,
        ffn=_required(file, "llama.feed_forward_length", int),
        rope_theta=_required(file, "llama.rope.freq_base", float),
        eps=_required(file, "llama.attention.layer_norm_rms_epsilon", float),
    )
    tensors = {key: torch.from_numpy(dequantise(raw)) for key, raw in file.tensors.items()}
    return check_shapes(Model(architecture, tensors), file.path)
