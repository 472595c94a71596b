"""Rows a second and resident memory of `inspect` and `compare` on generated files of 1 GB (or --megabytes).

    .venv/bin/python benchmarks/readers.py --megabytes 1000

Every file is read in a process of its own: `growth` is its largest resident set over that after the imports. A pair to
compare is a file and a second one of the same bytes: two files, each read and paired, of the size that is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

VOCABULARY = 32_000
CHILD = """
import sys, time
from kcverify.readers.inspection import inspect
from kcverify.streams.sharded import compare_sides
def high():
    lines = open('/proc/self/status').read().split('\\n')
    return int(next(l for l in lines if l.startswith('VmHWM')).split()[1]) / 1024
before, start = high(), time.perf_counter()
if len(sys.argv) == 2:
    found = inspect(sys.argv[1])
    requests, rows = found.requests, found.tokens
else:
    found = compare_sides(*sys.argv[1:])
    requests, drift = found["requests"]["pairs"], found["drift"] or found["explained"]
    rows = max([0, *(part["rows"] for part in drift["table"] + drift["bounds"])])
print(requests, rows, time.perf_counter() - start, before, high())
"""


def json_lines(path: Path, size: int) -> None:
    """SGLang answers of 200 tokens with the 5 most probable ones."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, size=(200, 5))
    values = -np.sort(rng.exponential(size=(200, 5)), axis=1).round(6)
    meta = {
        "output_token_logprobs": [[float(v[0]), int(i[0]), None] for v, i in zip(values, ids, strict=True)],
        "output_top_logprobs": [
            [[float(a), int(b), None] for a, b in zip(v, i, strict=True)] for v, i in zip(values, ids, strict=True)
        ],
    }
    text = json.dumps({"meta_info": {"id": "#", **meta}}).encode() + b"\n"
    with path.open("wb") as file:
        for i in range(size // len(text) + 1):
            file.write(text.replace(b"#", b"r%d" % i, 1))


def _rows(path: Path, head: bytes, row: bytes, size: int) -> None:
    block = row * max(1, (4 << 20) // len(row))
    with path.open("wb") as file:
        file.write(head)
        for _ in range(size // len(block)):
            file.write(block)


def safetensors(path: Path, size: int) -> None:
    """Rows of logits in bfloat16."""
    row = (
        (np.random.default_rng(0).normal(size=VOCABULARY).astype(np.float32).view(np.uint32) >> 16)
        .astype("<u2")
        .tobytes()
    )
    block = max(1, (4 << 20) // len(row))
    rows = size // (block * len(row)) * block
    shape = {"dtype": "BF16", "shape": [rows, VOCABULARY], "data_offsets": [0, rows * len(row)]}
    head = json.dumps({"logits": shape}).encode()
    _rows(path, struct.pack("<Q", len(head)) + head, row, size)


def npy(path: Path, size: int) -> None:
    """Rows of logits in float32."""
    row = np.random.default_rng(0).normal(size=VOCABULARY).astype("<f4").tobytes()
    block = max(1, (4 << 20) // len(row))
    rows = size // (block * len(row)) * block
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (rows, VOCABULARY)}
        )
        head = file.tell()
    _rows(path, path.read_bytes()[:head], row, size)


def kld(path: Path, size: int) -> None:
    """llama.cpp's 16-bit rows."""
    context = 512
    codes = np.random.default_rng(0).integers(0, 65536, size=VOCABULARY).astype("<u2")
    row = struct.pack("<ff", 15.0 / 65535, -20.0) + codes.tobytes()
    rows = context - 1 - context // 2
    chunks = max(1, size // (rows * len(row)))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, size=chunks * context).astype("<i4")
    with path.open("wb") as file:
        file.write(b"_logits_" + struct.pack("<iii", context, VOCABULARY, chunks) + tokens.tobytes())
        for _ in range(chunks):
            file.write(row * rows)


def batch(path: Path, size: int) -> None:
    """A verl batch of 1024 positions a request, in safetensors."""
    width = 1024
    rows = max(1, size // (width * 17))
    header, at = {}, 0
    for name, kind, item in (("responses", "I64", 8), ("response_mask", "BOOL", 1), ("rollout_log_probs", "F64", 8)):
        header[name] = {"dtype": kind, "shape": [rows, width], "data_offsets": [at, at + rows * width * item]}
        at += rows * width * item
    head = json.dumps(header).encode()
    ids = np.arange(width, dtype="<i8").tobytes()
    values = (-np.random.default_rng(0).exponential(size=width)).astype("<f8").tobytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for row in (ids, b"\x01" * width, values):
            for _ in range(rows):
                file.write(row)


def parquet(path: Path, size: int) -> None:
    """The same columns in parquet, in one row group for every 1000 requests. Needs pyarrow."""
    import pyarrow
    import pyarrow.parquet

    rng, rows, width = np.random.default_rng(0), 1000, 1024
    with pyarrow.parquet.ParquetWriter(
        path,
        pyarrow.schema(
            [("responses", pyarrow.list_(pyarrow.int32())), ("rollout_log_probs", pyarrow.list_(pyarrow.float32()))]
        ),
        compression="NONE",
        use_dictionary=False,
    ) as writer:
        while not path.exists() or path.stat().st_size < size:
            columns = {
                "responses": list(rng.integers(0, VOCABULARY, size=(rows, width)).astype(np.int32)),
                "rollout_log_probs": list(-rng.exponential(size=(rows, width)).astype(np.float32)),
            }
            writer.write_table(pyarrow.table(columns, schema=writer.schema))


FILES: dict[str, Callable[[Path, int], None]] = {
    "json lines": json_lines, "safetensors": safetensors, "npy": npy, "llama.cpp": kld, "batch": batch, "parquet": parquet,
}  # fmt: skip


PAIRED = ("json lines", "safetensors", "npy", "batch")
"""Files that are compared as well."""


def measured(paths: Sequence[Path]) -> tuple[int, int, float, float]:
    """Requests, rows, seconds, and growth of the largest resident set in MB: of one file read, or of two compared."""
    run = subprocess.run([sys.executable, "-c", CHILD, *map(str, paths)], capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(run.stderr)
    requests, tokens, seconds, before, after = run.stdout.split()
    return int(requests), int(tokens), float(seconds), float(after) - float(before)


def main() -> None:
    """Print one line a format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--only", choices=FILES)
    chosen = parser.parse_args()
    print(
        f"{'command':8} {'file':12} {'MB':>6} {'requests':>9} {'rows':>9} {'seconds':>8} {'rows/s':>10} {'MB/s':>6} {'growth MB':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, make in FILES.items():
            if chosen.only not in (None, name):
                continue
            path, other = Path(folder) / "file", Path(folder) / "other"
            make(path, chosen.megabytes << 20)
            size = path.stat().st_size / 2**20
            for command, paths in (("inspect", [path]), ("compare", [path, other])):
                if command == "compare":
                    if name not in PAIRED:
                        continue
                    shutil.copyfile(path, other)
                requests, rows, seconds, growth = measured(paths)
                print(
                    f"{command:8} {name:12} {size:6.0f} {requests:9} {rows:9} {seconds:8.1f} {rows / seconds:10,.0f} "
                    f"{size * len(paths) / seconds:6.0f} {growth:9.0f}", flush=True,
                )  # fmt: skip
            path.unlink()
            other.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
