"""A small GGUF file written here, read back, run, and damaged in every way that the reader must refuse."""

from __future__ import annotations

import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcverify.diagnostics import InputError
from kcverify.measure.gguf import dequantise, load_model, parse, read_gguf
from kcverify.measure.sides import open_side
from kcverify.measure.tokenizer import bpe_tokenizer

DIM, HEADS, KV, FFN, LAYERS = 64, 2, 1, 96, 2
LETTERS = [chr(b) for b in range(33, 127)] + ["Ġ", "Ċ"]
MERGES = ["h e", "l l", "he ll", "Ġ w", "o r"]
TOKENS = ["<unk>", *LETTERS, "he", "ll", "hell", "Ġw", "or"]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def q8_0(values: np.ndarray) -> bytes:
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(1) / 127).astype("<f2")
    codes = np.round(blocks / scale[:, None].astype(np.float32)).astype(np.int8)
    return b"".join(s.tobytes() + c.tobytes() for s, c in zip(scale, codes, strict=True))


def q4_1(values: np.ndarray) -> bytes:
    blocks = values.reshape(-1, 32)
    low = blocks.min(1).astype("<f2")
    scale = ((blocks.max(1) - blocks.min(1)) / 15).astype("<f2")
    codes = np.round((blocks - low[:, None].astype(np.float32)) / scale[:, None].astype(np.float32))
    codes = codes.clip(0, 15).astype(np.uint8)
    packed = codes[:, :16] | codes[:, 16:] << 4
    return b"".join(s.tobytes() + m.tobytes() + c.tobytes() for s, m, c in zip(scale, low, packed, strict=True))


ENCODE = {0: lambda v: v.astype("<f4").tobytes(), 1: lambda v: v.astype("<f2").tobytes(), 3: q4_1, 8: q8_0}
METADATA: dict[str, Any] = {
    "general.architecture": "llama", "llama.embedding_length": DIM, "llama.block_count": LAYERS,
    "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV, "llama.feed_forward_length": FFN,
    "llama.rope.freq_base": 10000.0, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.unknown_token_id": 0,
}  # fmt: skip


def weights() -> dict[str, tuple[np.ndarray, int]]:
    draw = np.random.default_rng(0)
    kv = DIM // HEADS * KV
    shapes = {"attn_q": (DIM, DIM), "attn_k": (kv, DIM), "attn_v": (kv, DIM), "attn_output": (DIM, DIM),
              "ffn_gate": (FFN, DIM), "ffn_up": (FFN, DIM), "ffn_down": (DIM, FFN)}  # fmt: skip
    found: dict[str, tuple[np.ndarray, int]] = {"token_embd.weight": (draw.normal(size=(len(TOKENS), DIM)), 8)}
    for i in range(LAYERS):
        for name, shape in shapes.items():
            found[f"blk.{i}.{name}.weight"] = (draw.normal(size=shape) / 8, 3 if i else 1)
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{i}.{name}.weight"] = (np.ones(DIM), 0)
    found["output_norm.weight"] = (np.ones(DIM), 0)
    return {name: (value.astype(np.float32), kind) for name, (value, kind) in found.items()}


def build(metadata: dict[str, Any] = METADATA, tensors: dict[str, tuple[np.ndarray, int]] | None = None) -> bytes:
    tensors = weights() if tensors is None else tensors
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(entry(key, value) for key, value in metadata.items())
    data = b""
    for name, (value, kind) in tensors.items():
        head += text(name) + struct.pack(f"<I{value.ndim}Q", value.ndim, *reversed(value.shape))
        head += struct.pack("<IQ", kind, len(data))
        data += ENCODE[kind](value)
        data += b"\0" * (-len(data) % 32)
    return head + b"\0" * (-len(head) % 32) + data


GOOD = build()
NORM = text("output_norm.weight")


def test_values_come_back_within_their_type() -> None:
    file = parse(GOOD, "a.gguf")
    for name, (value, kind) in weights().items():
        step = {0: 0.0, 1: 2**-11, 3: np.ptp(value) / 15, 8: np.abs(value).max() / 127}[kind]
        np.testing.assert_allclose(dequantise(file.tensors[name]), value, atol=step, rtol=0)


def test_the_same_forward_pass_runs_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.whl", "w") as archive:
        archive.writestr("package/__init__.py", "raise RuntimeError('imported')")
        archive.writestr("package/model.gguf", GOOD)
    (tmp_path / "model.gguf").write_bytes(GOOD)
    ids = torch.arange(10)[None]
    sides = [open_side("smollm2:float32", gguf=tmp_path / name) for name in ("model.whl", "model.gguf")]
    assert torch.equal(sides[0].logits(ids), sides[1].logits(ids))
    assert sides[0].logits(ids).shape == (1, 10, len(TOKENS))
    assert sides[0].vocabulary == len(TOKENS)
    for form in ("int8", "w8a8", "fp8", "int4", "int4_bf16"):
        drift = open_side(f"smollm2:{form}", gguf=tmp_path / "model.gguf").logits(ids) - sides[0].logits(ids)
        assert 0 < float(drift.abs().max()) < 20


def test_bpe_merges_the_lowest_rank_first() -> None:
    tokenizer = bpe_tokenizer(METADATA, "a.gguf")
    ids = tokenizer.encode(b"hello world 42\n")
    assert [TOKENS[i] for i in ids] == ["hell", "o", "Ġw", "or", "l", "d", "Ġ", "4", "2", "Ċ"]
    assert tokenizer.decode(ids) == "hello world 42\n"
    assert tokenizer.encode(b"\x01") == [0]
    with pytest.raises(UnicodeDecodeError):
        tokenizer.encode(b"\xff")


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.merges": None},
        {"tokenizer.ggml.merges": ["h  e"]},
        {"tokenizer.ggml.merges": ["x y"]},
        {"tokenizer.ggml.unknown_token_id": 10**9},
        {"tokenizer.ggml.tokens": [1, 2]},
    ],
    ids=str,
)
def test_a_vocabulary_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="BPE"):
        bpe_tokenizer({**METADATA, **change}, "a.gguf")


def without(name: str) -> dict[str, tuple[np.ndarray, int]]:
    return {key: value for key, value in weights().items() if key != name}


BAD = [
    (b"GGML" + GOOD[4:], "does not start with GGUF"),
    (b"GG", "cut short: 4 bytes expected, 2 left"),
    (GOOD[:4] + struct.pack("<I", 1) + GOOD[8:], "GGUF version 1"),
    (GOOD[:8] + struct.pack("<Q", 2**60) + GOOD[16:], "cut short|dimensions|UTF-8|unknown"),
    (GOOD[:-64], "ends at byte"),
    (GOOD[:100], "cut short"),
    (GOOD[:24] + struct.pack("<Q", 2**63) + GOOD[32:], "cut short"),
    (GOOD[:32] + b"\xff" + GOOD[33:], "a string is not UTF-8"),
    (build({**METADATA, "general.architecture": "mamba"}), "architecture 'mamba'"),
    (build({**METADATA, "llama.block_count": 2**31}), "2147483648 layers, but only"),
    (build({**METADATA, "llama.block_count": 0}), "`llama.block_count` is 0, not positive"),
    (build({**METADATA, "llama.block_count": "two"}), "`llama.block_count` is 'two'"),
    (build({k: v for k, v in METADATA.items() if k != "llama.rope.freq_base"}), "`llama.rope.freq_base` is None"),
    (build({**METADATA, "llama.attention.head_count": 3}), "3 heads and 1 KV heads in 64 channels"),
    (build({**METADATA, "general.alignment": 0}), "alignment 0"),
    (build(tensors=without("token_embd.weight")), "no matrix `token_embd.weight`"),
    (build(tensors=without("blk.1.ffn_up.weight")), "tensor `blk.1.ffn_up.weight` is missing"),
    (build({**METADATA, "llama.feed_forward_length": 95}), r"has shape \[96, 64\], expected \[95, 64\]"),
    (
        GOOD.replace(NORM + struct.pack("<IQI", 1, DIM, 0), NORM + struct.pack("<IQI", 1, DIM, 2)),
        "`output_norm.weight` has ggml type 2; known are F32, F16, Q4_1, Q8_0",
    ),
    (
        GOOD.replace(NORM + struct.pack("<IQI", 1, DIM, 0), NORM + struct.pack("<IQI", 1, 33, 8)),
        r"of shape \[33\] does not fill blocks of 32",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BAD, ids=[m for _, m in BAD])
def test_a_damaged_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(parse(content, "a.gguf"))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2600), st.binary(min_size=1, max_size=8))
def test_no_damage_to_the_head_escapes_as_another_error(at: int, patch: bytes) -> None:
    with suppress(InputError):
        load_model(parse(GOOD[:at] + patch + GOOD[at + len(patch) :], "a.gguf"))


def test_files_that_hold_no_model(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    for content, message in [(b"", "is empty"), (b"nonsense", "not a usable zip")]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_gguf(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "x")
    with pytest.raises(InputError, match=r"holds 0 \.gguf files"):
        read_gguf(path)
    with pytest.raises(InputError, match="No such file"):
        read_gguf(tmp_path / "none.gguf")
