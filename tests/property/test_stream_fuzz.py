"""Whatever bytes a file holds: a diagnostic or an answer, never a traceback."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcverify.diagnostics import InputError
from kcverify.output.inspect import text
from kcverify.readers import documents
from kcverify.readers.answer import data
from kcverify.readers.inspection import inspect

DATA = Path(__file__).resolve().parents[1] / "data" / "streams"
JSON = sorted(p for p in DATA.iterdir() if p.suffix in (".json", ".jsonl"))
BINARY = sorted(p for p in DATA.iterdir() if p.suffix in (".kld", ".safetensors"))
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def looked_at(path: Path) -> None:
    """An answer that JSON can hold, or diagnostics with a hint; no warning of a library on the way."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = data(inspect(path))
    except InputError as error:
        assert all(d.message and d.hint for d in error.diagnostics)
        assert all("\n" not in d.message for d in error.diagnostics)
        return
    json.dumps(found, allow_nan=False)
    text(found, color=False)


def put(folder: Path, raw: bytes) -> Path:
    path = folder / "a.bin"
    path.write_bytes(raw)
    return path


@QUICK
@given(
    st.binary(max_size=400),
    st.sampled_from(
        [
            b"",
            b"_logits_",
            b"\x93NUMPY\x01\x00",
            b"PAR1",
            b"PK\x03\x04",
            b"{",
            b"[",
            b"\x80\x02",
            b"\x10\0\0\0\0\0\0\0{",
        ]
    ),
)
def test_any_bytes(tmp_path: Path, raw: bytes, start: bytes) -> None:
    looked_at(put(tmp_path, start + raw))


@QUICK
@given(st.sampled_from(JSON + BINARY), st.floats(0, 1))
def test_any_cut(tmp_path: Path, path: Path, share: float) -> None:
    raw = path.read_bytes()
    looked_at(put(tmp_path, raw[: int(len(raw) * share**3)]))


@QUICK
@given(
    st.sampled_from(JSON + BINARY),
    st.lists(st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4),
)
def test_any_overwritten_bytes(tmp_path: Path, path: Path, changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(path.read_bytes()[:400_000])
    for at, new in changes:
        raw[at : at + len(new)] = new
    looked_at(put(tmp_path, bytes(raw)))


SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 10**400, 0.0, -0.5, 1e308, -9999.0, float("nan"), float("inf"), float("-inf"),
    "", "a", "7", "token_id:5", "\ud800", [], {}, [None], [[]], [1, 2], {"logprob": -1.0}, {"a": 1}, [[-1.0, 3, None]], "x" * 500,
)  # fmt: skip


def mutated(value: Any, random_: random.Random) -> Any:
    """The document with one part replaced, dropped, doubled or wrapped."""
    if isinstance(value, dict) and value and random_.random() < 0.85:
        key = random_.choice(list(value))
        out = dict(value)
        roll = random_.random()
        if roll < 0.1:
            del out[key]
        elif roll < 0.15:
            out[str(random_.randrange(9))] = out.pop(key)
        else:
            out[key] = mutated(value[key], random_)
        return out
    if isinstance(value, list) and value and random_.random() < 0.8:
        at = random_.randrange(len(value))
        roll = random_.random()
        if roll < 0.15:
            return value[:at] + value[at + 1 :]
        if roll < 0.25:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], mutated(value[at], random_), *value[at + 1 :]]
    return random_.choice(SCALARS)


@pytest.mark.parametrize("path", JSON, ids=lambda p: p.name)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False), st.booleans())
def test_any_mutated_document(tmp_path: Path, path: Path, random_: random.Random, later: bool) -> None:
    good = next(iter(documents.documents(path))).value
    bad = good
    for _ in range(random_.randrange(1, 4)):
        bad = mutated(bad, random_)
    try:
        raw = json.dumps(bad).encode("utf-8", "surrogatepass")
    except UnicodeEncodeError:
        return
    looked_at(put(tmp_path, json.dumps(good).encode() + b"\n" + raw if later else raw))


KINDS = ("<f4", "<f8", "<i8", "|u1", "|b1", "<f2", "<U3", "<c8")
NAMES = (
    "responses", "response_mask", "rollout_log_probs", "old_log_probs", "sequences", "action_mask", "tokens", "loss_masks", "log_probs",
    "input_ids", "token_mask", "generation_logprobs", "input_lengths", "sample_mask", "logits", "scores",
)  # fmt: skip


@QUICK
@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 5), max_size=3), st.integers(0, 9)),
        max_size=6,
    )
)
def test_any_arrays(tmp_path: Path, columns: dict[str, tuple[str, list[int], int]]) -> None:
    arrays = {
        name: (np.random.default_rng(seed).integers(-3, 4, size=shape)).astype(kind)
        for name, (kind, shape, seed) in columns.items()
    }
    np.savez(tmp_path / "a.npz", **arrays)
    looked_at(tmp_path / "a.npz")
    safetensors = pytest.importorskip("safetensors.numpy")
    plain = {k: np.ascontiguousarray(v) for k, v in arrays.items() if v.dtype.kind in "fiub"}
    safetensors.save_file(plain, tmp_path / "a.safetensors")
    looked_at(tmp_path / "a.safetensors")


@pytest.mark.needs("pyarrow")
@QUICK
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(range(8)), min_size=1, max_size=5))
def test_any_parquet(tmp_path: Path, columns: dict[str, int]) -> None:
    import pyarrow
    import pyarrow.parquet

    cells: list[list[Any]] = [
        [[-1.0, -2.0], [-3.0]], [[1, 2], [3]], [None, [1]], ["a", "b"], [1, 2], [[[1]], [[2]]], [[None, 1.0], []], [{"a": 1}, {"a": 2}],
    ]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table({n: cells[i] for n, i in columns.items()}), tmp_path / "a.parquet")
    looked_at(tmp_path / "a.parquet")
    raw = (tmp_path / "a.parquet").read_bytes()
    looked_at(put(tmp_path, raw[: len(raw) // 2] + raw[len(raw) // 2 + 3 :]))


@pytest.mark.needs("torch")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.sampled_from(SCALARS[:15]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
        max_leaves=8,
    ),
    st.floats(0, 1),
)
def test_any_torch_file(tmp_path: Path, value: Any, share: float) -> None:
    import torch

    torch.save(value, tmp_path / "a.pt")
    looked_at(tmp_path / "a.pt")
    raw = (tmp_path / "a.pt").read_bytes()
    looked_at(put(tmp_path, raw[: int(len(raw) * share)]))
