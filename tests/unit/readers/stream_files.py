"""Writers of small files in each format's shape."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kcverify.readers.opening import open_stream
from kcverify.readers.stream import Request

DATA = Path(__file__).resolve().parents[2] / "data" / "streams"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "cases"

_NAMES = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "u1": "U8", "b1": "BOOL", "u2": "BF16"}


def requests(path: Path, *declare: str) -> list[Request]:
    return list(open_stream(path, declare).requests())


def safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """`uint16` arrays are written as bfloat16 bits."""
    header: dict[str, Any] = {}
    body = b""
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        kind = _NAMES[array.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)
    return path


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(v) + "\n" for v in values), encoding="utf-8")
    return path


def kld_row(logits: np.ndarray) -> bytes:
    """One row of float32 logits as llama-perplexity stores it."""
    f = np.float32
    high, low = logits.max(), logits.min()
    low = max(low, f(high - f(16)))
    total = float(np.sum(np.exp((logits - high).astype(f)).astype(f), dtype=np.float64))
    log_total = f(np.log(total))
    minimum = f(f(low - high) - log_total)
    scale = f(f(high - low) / f(65535))
    codes = np.zeros(2 * ((len(logits) + 1) // 2), dtype="<u2")
    if scale:
        inverse = f(f(1) / scale)
        exact = np.rint((inverse * (logits - low).astype(f)).astype(f))
        codes[: len(logits)] = np.where(logits > low, exact, 0).astype("<u2")
    return struct.pack("<ff", scale, minimum) + codes.tobytes()


def kld(path: Path, tokens: np.ndarray, rows: list[list[np.ndarray]]) -> Path:
    """`tokens` int32 `[chunks, context]`; `rows` the float32 logits of each chunk."""
    chunks, context = tokens.shape
    head = b"_logits_" + struct.pack("<iii", context, len(rows[0][0]), chunks) + tokens.astype("<i4").tobytes()
    path.write_bytes(head + b"".join(kld_row(r) for chunk in rows for r in chunk))
    return path


def batch() -> dict[str, np.ndarray]:
    """Two requests of four positions in the shape of trainers, with a padded end."""
    return {
        "ids": np.array([[5, 6, 7, 0], [8, 9, 0, 0]], dtype=np.int64),
        "mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=np.int64),
        "rollout": np.array([[-1.0, -0.5, -2.0, 0.0], [-0.25, -9999.0, 0.0, 0.0]], dtype=np.float32),
        "trainer": np.array([[-1.0, -0.75, -2.0, 0.0], [-0.25, np.nan, 0.0, 0.0]], dtype=np.float32),
    }
