"""Files of tensors that are made to run code, to take memory or time, or to lead a reader out of its bounds."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MARK = "executed"
"""A folder that exists only if something in a file was run."""


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, where: Path) -> None:
        self.where = str(where)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.where,)


def mark(path: Path) -> Path:
    return path.parent / MARK


def pickle_bomb(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(mark(path)), 2))


def _inflating(archive: zipfile.ZipFile, name: str, start: bytes, mebibytes: int) -> None:
    """A member of `start` and so many mebibytes of zeros, as the same compressed block over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    archive.writestr(name, content + block * (mebibytes // 16) + packer.flush())
    told = archive.getinfo(name)  # what the directory at the end of the archive will say
    told.compress_type, told.file_size = zipfile.ZIP_DEFLATED, len(start) + (mebibytes << 20)
    told.CRC = 0


def torch_zip_bomb(path: Path) -> None:
    """The layout of `torch.save`, with a pickle that runs something."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"logits": Bomb(mark(path))}, 2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


def torch_inflates(path: Path) -> None:
    """A record of 32 GiB of zeros in 32 MiB."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", _tensor_pickle((1 << 31) - 1))
        archive.writestr("archive/version", "3\n")
        _inflating(archive, "archive/data/0", b"", 32 << 10)


def _tensor_pickle(elements: int) -> bytes:
    """What `torch.save({"input_ids": tensor})` writes about a tensor of float32 in record 0."""
    import torch

    held = io.BytesIO()
    torch.save({"input_ids": torch.zeros(1)}, held)
    with zipfile.ZipFile(held) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        content = archive.read(name)
    whole = struct.pack("<i", elements)
    return content.replace(b"K\x01tq", b"J" + whole + b"tq", 1).replace(b"K\x01\x85q", b"J" + whole + b"\x85q", 1)


def torch_expanded(path: Path) -> None:
    """A trillion rows that share one number."""
    import torch

    one = torch.zeros(1, 4, dtype=torch.int64)
    held = {
        k: one.expand(10**12, 4) for k in ("prompts", "responses", "input_ids", "rollout_log_probs", "old_log_probs")
    }
    torch.save(held, path)


def npy_objects(path: Path) -> None:
    array = np.empty(1, dtype=object)
    array[0] = Bomb(mark(path))
    np.save(path, array, allow_pickle=True)


def npz_objects(path: Path) -> None:
    array = np.empty(1, dtype=object)
    array[0] = Bomb(mark(path))
    np.savez(path, input_ids=array)


def _npy_header(shape: str, descr: str = "'<f4'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def npy_giant(path: Path) -> None:
    path.write_bytes(_npy_header("(9223372036854775807, 1024)") + bytes(64))


def npy_overflows(path: Path) -> None:
    """Elements that are a multiple of 2^64: a product of machine words would be 0."""
    path.write_bytes(_npy_header("(4294967296, 4294967296)") + bytes(64))


def npy_negative(path: Path) -> None:
    path.write_bytes(_npy_header("(-1, 4)") + bytes(64))


def npy_code(path: Path) -> None:
    """A header that is an expression."""
    path.write_bytes(_npy_header(f"__import__('os').mkdir({str(mark(path))!r})") + bytes(64))


def npy_nested(path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"(" * 30000 + b"}\n"
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header)


def npy_long_header(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFFF) + b"{")


def npz_inflates(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        _inflating(archive, "logits.npy", _npy_header("(17179869184,)", "'|u1'"), 16 << 10)


def npz_lies(path: Path) -> None:
    """A member whose header promises 2^40 numbers."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("input_ids.npy", _npy_header("(1099511627776,)", "'<i8'") + bytes(64))


def npz_climbs(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"../{MARK}/input_ids.npy", _npy_header("(1,)", "'<i8'") + bytes(8))


def _safetensors(path: Path, header: bytes, length: int | None = None, data: bytes = bytes(64)) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)


def safetensors_length(path: Path) -> None:
    _safetensors(path, b'{"logits":{}}', 1 << 63)


def safetensors_almost(path: Path) -> None:
    _safetensors(path, b'{"logits":{}}', 99 << 20)


def safetensors_shape(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1 << 47, 1 << 47], "data_offsets": [0, 64]}
    _safetensors(path, json.dumps({"reference": entry}).encode())


def safetensors_far(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 1 << 62]}
    _safetensors(path, json.dumps({"reference": entry}).encode())


def safetensors_overlap(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    _safetensors(path, json.dumps({"reference": entry, "candidate": entry}).encode())


def safetensors_empty_rows(path: Path) -> None:
    """2^47 rows of nothing, which fill no byte."""
    entry = {"dtype": "F32", "shape": [1 << 47, 0], "data_offsets": [0, 0]}
    _safetensors(path, json.dumps({"reference": entry, "candidate": entry}).encode())


def safetensors_negative(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [-4, -4], "data_offsets": [-64, 0]}
    _safetensors(path, json.dumps({"reference": entry}).encode())


def safetensors_nested(path: Path) -> None:
    _safetensors(path, b'{"a":' * 100000)


def parquet_footer(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(32) + struct.pack("<I", 0xFFFFFFF0) + b"PAR1")


def kld_header(path: Path) -> None:
    """llama.cpp's base of log-probabilities: a context and a vocabulary of 2^31 - 1 in a file of a few bytes."""
    path.write_bytes(b"_logits_" + struct.pack("<iii", 2**31 - 1, 2**31 - 1, 2**31 - 1) + bytes(64))


def kld_negative(path: Path) -> None:
    path.write_bytes(b"_logits_" + struct.pack("<Iii", 0xFFFFFFFF, -1, -1) + bytes(64))


def _gguf(pairs: int, tensors: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest


def gguf_counts(path: Path) -> None:
    path.write_bytes(_gguf(1 << 63, 1 << 63, b""))


def gguf_string(path: Path) -> None:
    path.write_bytes(_gguf(1, 0, struct.pack("<Q", (1 << 64) - 1) + b"x"))


def gguf_array(path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k"
    path.write_bytes(_gguf(1, 0, key + struct.pack("<IIQ", 9, 0, 1 << 62)))


def gguf_nested(path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k"
    path.write_bytes(_gguf(1, 0, key + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000))


def gguf_tensor(shape: tuple[int, ...], offset: int, architecture: bool = True) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        def text(word: str) -> bytes:
            return struct.pack("<Q", len(word)) + word.encode()

        pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
        for name in (
            "embedding_length",
            "attention.head_count",
            "attention.head_count_kv",
            "block_count",
            "feed_forward_length",
        ):
            pairs.append(text(f"llama.{name}") + struct.pack("<II", 4, 2 if "length" in name else 1))
        for name in ("rope.freq_base", "attention.layer_norm_rms_epsilon"):
            pairs.append(text(f"llama.{name}") + struct.pack("<If", 6, 1.0))
        info = text("token_embd.weight") + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        info += struct.pack("<IQ", 0, offset)
        path.write_bytes(_gguf(len(pairs), 1, b"".join(pairs) + info + bytes(256)))

    return make


def gguf_inflates(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        _inflating(archive, "m.gguf", b"GGUF", 3 << 10)
