"""Files that are made to run code, to take memory or time, or to lead a reader out of its bounds; all are small on disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

from malicious_tensors import (
    gguf_array,
    gguf_counts,
    gguf_inflates,
    gguf_nested,
    gguf_string,
    gguf_tensor,
    kld_header,
    kld_negative,
    mark,
    npy_code,
    npy_giant,
    npy_long_header,
    npy_negative,
    npy_nested,
    npy_objects,
    npy_overflows,
    npz_climbs,
    npz_inflates,
    npz_lies,
    npz_objects,
    parquet_footer,
    pickle_bomb,
    safetensors_almost,
    safetensors_empty_rows,
    safetensors_far,
    safetensors_length,
    safetensors_negative,
    safetensors_nested,
    safetensors_overlap,
    safetensors_shape,
    torch_expanded,
    torch_inflates,
    torch_zip_bomb,
)


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
    path.write_text(f"contract: !!python/object/apply:os.mkdir [{str(mark(path))!r}]\n")


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
    from kcverify.delivery.tables import APPLICATION, SCHEMA

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
    from kcverify.delivery.tables import _TABLES

    _store(
        path, *_TABLES, "INSERT INTO state VALUES (1, 'seven', x'ff', x'00')",
        "INSERT INTO events VALUES (1, 'started', 'soon', x'ff', 'p', 'h')",
    )  # fmt: skip


def store_trigger(path: Path) -> None:
    from kcverify.delivery.tables import _TABLES

    _store(path, *_TABLES, "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events WHERE seq > 1; END")


def store_deep(path: Path) -> None:
    """Contents that no reader of JSON can follow."""
    from kcverify.delivery.tables import _TABLES

    deep = "[" * 100_000
    _store(
        path, *_TABLES, f"INSERT INTO state VALUES (1, 1, 'h', '{deep}')",
        f"INSERT INTO events VALUES (1, 'started', 1, '{deep}', '', 'h')",
    )  # fmt: skip


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
    "store deep": (store_deep, "x.db", (STORE, HISTORY, REBUILD, STATUS)),
    "store cut": (store_cut, "x.db", (STORE, HISTORY, REBUILD, STATUS)),
    "dsse giant": (dsse_giant, "x.intoto.jsonl", (VERIFY,)),
    "dsse many": (dsse_many, "x.intoto.jsonl", (VERIFY,)),
    "dsse deep": (dsse_deep, "x.intoto.jsonl", (VERIFY,)),
    "sidecar deep": (json_deep, "stream.jsonl.kcverify.json", (SIDECAR,)),
    "sidecar zeros": (zeros, "stream.jsonl.kcverify.json", (SIDECAR,)),
    "sidecar digits": (json_digits, "stream.jsonl.kcverify.json", (SIDECAR,)),
}  # fmt: skip
"""By name: what writes the file, its name, the commands that are given it."""
