"""Files that are made to run code, to take memory or time, or to lead a reader out of its bounds; all are small on disk."""

from __future__ import annotations

import io
import json
import os
import pickle
import sqlite3
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


def _mark(path: Path) -> Path:
    return path.parent / MARK


def pickle_bomb(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(_mark(path)), 2))


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
        archive.writestr("archive/data.pkl", pickle.dumps({"logits": Bomb(_mark(path))}, 2))
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
    array[0] = Bomb(_mark(path))
    np.save(path, array, allow_pickle=True)


def npz_objects(path: Path) -> None:
    array = np.empty(1, dtype=object)
    array[0] = Bomb(_mark(path))
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
    path.write_bytes(_npy_header(f"__import__('os').mkdir({str(_mark(path))!r})") + bytes(64))


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


def json_deep(path: Path) -> None:
    path.write_text('{"a":' * 200000)


def json_list_deep(path: Path) -> None:
    path.write_text("[" * 500000 + "]" * 500000)


def json_digits(path: Path) -> None:
    path.write_text('{"format": "kcverify-certificate/1", "limit": ' + "9" * 3_000_000 + "}")


def json_exponent(path: Path) -> None:
    """Numbers that would be gigabytes if they were written out; as JSON numbers and as the texts that hold exact ones."""
    big = {
        "n": "1e999999999",
        "limit": "9" * 4000,
        "clauses": [{"name": "d", "evidence": {"log_e_fail": "1e999999999"}}],
    }
    path.write_text(
        json.dumps({"format": "kcverify-certificate/1", **big})[:-1] + ', "x": 1e999999999, "y": -1e-999999999}'
    )


def json_lines_of_nothing(path: Path) -> None:
    path.write_bytes(b"{}\n" * 100000)


def yaml_bomb(path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]" for i in range(20)]
    path.write_text("\n".join(lines))


def yaml_code(path: Path) -> None:
    path.write_text(f"contract: !!python/object/apply:os.mkdir [{str(_mark(path))!r}]\n")


def yaml_deep(path: Path) -> None:
    path.write_text("contract: " + "[" * 100000)


def contract_deep(path: Path) -> None:
    path.write_text("contract c\nnumerical { d: tv <= " + "(" * 100000 + "1" + ")" * 100000 + " -> L1 }")


def contract_numbers(path: Path) -> None:
    path.write_text("contract c\nnumerical { d: tv <= 1e999999999 -> L1; e: tv <= " + "9" * 1_000_000 + " -> L1 }")


def contract_many(path: Path) -> None:
    path.write_text("contract c\nnumerical {\n" + "\n".join(f"d{i}: tv <= 0.1 -> L1;" for i in range(200_000)) + "\n}")


def contract_imports(path: Path) -> None:
    path.write_text('import "../../../../../../etc/passwd"\nimport "/dev/zero"\ncontract c\n')


def zeros(path: Path) -> None:
    """10 GiB that take no room."""
    with path.open("wb") as file:
        file.truncate(10 << 30)


def json_sparse(path: Path) -> None:
    """One JSON line of 10 GiB that takes no room."""
    with path.open("wb") as file:
        file.write(b'{"a": "')
        file.truncate(10 << 30)


def store_of_another(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE users (name TEXT)")
    db.commit()
    db.close()


def _store(path: Path, *statements: str) -> None:
    from kcverify.delivery.store import APPLICATION, SCHEMA

    db = sqlite3.connect(path)
    for statement in (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {SCHEMA}", *statements):
        db.execute(statement)
    db.commit()
    db.close()


_ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n"


def store_endless(path: Path) -> None:
    """Views that never end, in the place of the tables."""
    _store(
        path,
        f"CREATE VIEW state (one, seq, hash, body) AS {_ENDLESS}, n, 'h', '{{}}' FROM t WHERE n < 0",
        f"CREATE VIEW events (seq, kind, at, body, previous, hash) AS {_ENDLESS}, 'k', 1, '{{}}', 'p', 'h' FROM t",
    )


def store_texts(path: Path) -> None:
    """Texts where numbers are expected; a column of SQLite takes any type."""
    from kcverify.delivery.store import _TABLES

    _store(
        path, *_TABLES, "INSERT INTO state VALUES (1, 'seven', x'ff', x'00')",
        "INSERT INTO events VALUES (1, 'started', 'soon', x'ff', 'p', 'h')",
    )  # fmt: skip


def store_trigger(path: Path) -> None:
    from kcverify.delivery.store import _TABLES

    _store(path, *_TABLES, "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events WHERE seq > 1; END")


def store_cut(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + bytes(200))


def dsse_giant(path: Path) -> None:
    """A payload of 70 MiB."""
    line = (
        b'{"payload":"'
        + b"A" * (70 << 20)
        + b'","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"a","sig":"AA=="}]}\n'
    )
    path.write_bytes(line)


def dsse_many(path: Path) -> None:
    path.write_bytes(b"{}\n" * 1_000_000)


def dsse_deep(path: Path) -> None:
    path.write_bytes(b'{"payload":' + b"[" * 1_000_000 + b"\n")


INSPECT, COMPARE = ("inspect", "FILE"), ("compare", "FILE", "FILE")
MEASURE = ("measure", "CONTRACT", "--reference", "FILE", "--candidate", "FILE")
GGUF = (
    "measure",
    "CONTRACT",
    "--reference",
    "smollm2:float32",
    "--candidate",
    "smollm2:int8",
    "--data",
    "CONTRACT",
    "--gguf",
    "FILE",
)
CHECK = ("check", "FILE")
CERTIFICATE = ("certificate", "check", "FILE")
EVIDENCE = ("gate", "CONTRACT", "--stage", "offline", "--evidence", "FILE")
STORE = ("gate", "CONTRACT", "--store", "FILE")
HISTORY, REBUILD, STATUS = ("history", "--store", "FILE"), ("rebuild", "--store", "FILE"), ("status", "--store", "FILE")
RESULT = ("emit", "cloudevents", "CONTRACT", "--result", "FILE")
ENTRY = ("conformance", "compare", "FILE", "FILE")
EVENT = ("replay", "FILE")
VERIFY = ("verify", "FILE", "--public-key", "PUBLIC")
PRINT = ("fingerprint", "--compare", "FILE", "FILE")
SIDECAR = ("inspect", "STREAM")
OBSERVATIONS = ("measure", "CONTRACT", "--reference", "demo:float32", "--candidate", "demo:int8", "--data", "FILE")
JSON_READERS = (INSPECT, COMPARE, CERTIFICATE, EVIDENCE, RESULT, ENTRY, EVENT, VERIFY, PRINT, OBSERVATIONS)

CASES: dict[str, tuple[Callable[[Path], None], str, tuple[tuple[str, ...], ...]]] = {
    "pickle": (pickle_bomb, "x.pt", (INSPECT, COMPARE, MEASURE, EVIDENCE)),
    "torch zip": (torch_zip_bomb, "x.pt", (INSPECT, EVIDENCE, MEASURE)),
    "torch inflates": (torch_inflates, "x.pt", (INSPECT, EVIDENCE)),
    "torch expanded": (torch_expanded, "x.pt", (INSPECT, COMPARE, EVIDENCE)),
    "npy objects": (npy_objects, "x.npy", (INSPECT, MEASURE)),
    "npz objects": (npz_objects, "x.npz", (INSPECT,)),
    "npy giant": (npy_giant, "x.npy", (INSPECT, MEASURE)),
    "npy overflows": (npy_overflows, "x.npy", (INSPECT, MEASURE)),
    "npy negative": (npy_negative, "x.npy", (INSPECT, MEASURE)),
    "npy code": (npy_code, "x.npy", (INSPECT, MEASURE)),
    "npy nested": (npy_nested, "x.npy", (INSPECT, MEASURE)),
    "npy long header": (npy_long_header, "x.npy", (INSPECT, MEASURE)),
    "npz inflates": (npz_inflates, "x.npz", (INSPECT,)),
    "npz lies": (npz_lies, "x.npz", (INSPECT,)),
    "npz climbs": (npz_climbs, "x.npz", (INSPECT,)),
    "safetensors length": (safetensors_length, "x.safetensors", (INSPECT, MEASURE)),
    "safetensors almost": (safetensors_almost, "x.safetensors", (INSPECT, MEASURE)),
    "safetensors shape": (safetensors_shape, "x.safetensors", (INSPECT, MEASURE)),
    "safetensors far": (safetensors_far, "x.safetensors", (INSPECT, MEASURE)),
    "safetensors overlap": (safetensors_overlap, "x.safetensors", (INSPECT, MEASURE)),
    "safetensors empty rows": (safetensors_empty_rows, "x.safetensors", (INSPECT, MEASURE)),
    "safetensors negative": (safetensors_negative, "x.safetensors", (INSPECT, MEASURE)),
    "safetensors nested": (safetensors_nested, "x.safetensors", (INSPECT, MEASURE)),
    "parquet footer": (parquet_footer, "x.parquet", (INSPECT,)),
    "kld header": (kld_header, "x.kld", (INSPECT, COMPARE)),
    "kld negative": (kld_negative, "x.kld", (INSPECT, COMPARE)),
    "gguf counts": (gguf_counts, "x.gguf", (GGUF,)),
    "gguf string": (gguf_string, "x.gguf", (GGUF,)),
    "gguf array": (gguf_array, "x.gguf", (GGUF,)),
    "gguf nested": (gguf_nested, "x.gguf", (GGUF,)),
    "gguf huge tensor": (gguf_tensor(((1 << 63), (1 << 63)), 0), "x.gguf", (GGUF,)),
    "gguf empty tensor": (gguf_tensor((0, (1 << 64) - 1), 0), "x.gguf", (GGUF,)),
    "gguf far tensor": (gguf_tensor((2, 2), (1 << 64) - 8), "x.gguf", (GGUF,)),
    "gguf inflates": (gguf_inflates, "x.zip", (GGUF,)),
    "json deep": (json_deep, "x.json", JSON_READERS),
    "json list deep": (json_list_deep, "x.json", JSON_READERS),
    "json digits": (json_digits, "x.json", JSON_READERS),
    "json exponent": (json_exponent, "x.json", JSON_READERS),
    "json lines of nothing": (json_lines_of_nothing, "x.jsonl", JSON_READERS),
    "json sparse": (json_sparse, "x.json", JSON_READERS),
    "zeros": (zeros, "x.bin", (*JSON_READERS, CHECK, STORE, MEASURE)),
    "yaml bomb": (yaml_bomb, "x.yaml", (CHECK,)),
    "yaml code": (yaml_code, "x.yaml", (CHECK,)),
    "yaml deep": (yaml_deep, "x.yaml", (CHECK,)),
    "json contract deep": (json_deep, "x.json", (CHECK,)),
    "json contract digits": (json_digits, "x.json", (CHECK,)),
    "contract deep": (contract_deep, "x.kc", (CHECK,)),
    "contract numbers": (contract_numbers, "x.kc", (CHECK,)),
    "contract many": (contract_many, "x.kc", (CHECK,)),
    "contract imports": (contract_imports, "x.kc", (CHECK,)),
    "store of another": (store_of_another, "x.db", (STORE, HISTORY, REBUILD, STATUS)),
    "store endless": (store_endless, "x.db", (STORE, HISTORY, REBUILD, STATUS)),
    "store texts": (store_texts, "x.db", (STORE, HISTORY, REBUILD, STATUS)),
    "store trigger": (store_trigger, "x.db", (STORE, HISTORY, REBUILD, STATUS)),
    "store cut": (store_cut, "x.db", (STORE, HISTORY, REBUILD, STATUS)),
    "dsse giant": (dsse_giant, "x.intoto.jsonl", (VERIFY,)),
    "dsse many": (dsse_many, "x.intoto.jsonl", (VERIFY,)),
    "dsse deep": (dsse_deep, "x.intoto.jsonl", (VERIFY,)),
    "sidecar deep": (json_deep, "stream.jsonl.kcverify.json", (SIDECAR,)),
    "sidecar zeros": (zeros, "stream.jsonl.kcverify.json", (SIDECAR,)),
    "sidecar digits": (json_digits, "stream.jsonl.kcverify.json", (SIDECAR,)),
}  # fmt: skip
"""By name: what writes the file, its name, the commands that are given it."""
