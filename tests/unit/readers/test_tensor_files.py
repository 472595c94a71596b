"""Rows of logits, `generate`, and the batches of RL trainers, in each container."""

from __future__ import annotations

import json

import numpy as np
import pytest
from stream_files import DATA, SHARED, batch, requests, safetensors

from kcverify.readers import arrays
from kcverify.readers.opening import open_stream
from kcverify.readers.stream import Status

V, M, B, P, X = Status.VALUE, Status.MISSING, Status.BANNED, Status.PLACEHOLDER, Status.BROKEN

PROJECTS = {
    "verl": ("responses", "response_mask", "rollout_log_probs", "old_log_probs"),
    "trl": ("completion_ids", "completion_mask", "sampling_per_token_logps", "old_per_token_logps"),
    "nemo-rl": ("input_ids", "token_mask", "generation_logprobs", "prev_logprobs"),
    "openrlhf": ("sequences", "action_mask", "rollout_log_probs", "action_log_probs"),
}


def project(name: str) -> dict[str, np.ndarray]:
    ids, mask, rollout, trainer = PROJECTS[name]
    b = batch()
    out = {ids: b["ids"], mask: b["mask"], rollout: b["rollout"], trainer: b["trainer"]}
    if name == "openrlhf":
        out["sequences"] = np.concatenate([np.full((2, 3), 1, dtype=np.int64), b["ids"]], axis=1)
    return out


def check(path, name: str) -> None:  # type: ignore[no-untyped-def]
    assert open_stream(path).format == name
    a, b = requests(path)
    assert a.token_ids.tolist() == [5, 6, 7, 0]
    assert a.mask.tolist() == [True, True, True, False]
    assert a.status.tolist() == [V, V, V, M]
    assert b.status.tolist() == [V, P, M, M]
    assert b.fields["placeholders"] == {"-9999.0": 1}
    a, b = requests(path, "side=trainer")
    assert a.logprobs[:3].tolist() == [-1.0, -0.75, -2.0]
    assert b.status.tolist() == [V, X, M, M]


@pytest.mark.parametrize("name", PROJECTS)
def test_safetensors_of_a_project(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    check(safetensors(tmp_path / "b.safetensors", project(name)), name)


@pytest.mark.parametrize("name", PROJECTS)
def test_npz_of_a_project(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    np.savez_compressed(tmp_path / "b.npz", **project(name))
    check(tmp_path / "b.npz", name)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", PROJECTS)
def test_torch_file_of_a_project(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    import torch

    torch.save({k: torch.from_numpy(v) for k, v in project(name).items()}, tmp_path / "b.pt")
    check(tmp_path / "b.pt", name)


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("name", PROJECTS)
def test_parquet_of_a_project(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({k: pyarrow.array(list(v)) for k, v in project(name).items()})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    check(tmp_path / "b.parquet", name)


@pytest.mark.needs("torch")
def test_slime_samples(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import torch

    sample = {
        "index": 4, "tokens": [1, 2, 3, 4], "response_length": 2, "loss_mask": [1, 0], "rollout_log_probs": [-0.5, -1.0],
        "reward": 1.0, "status": "completed",
    }  # fmt: skip
    torch.save({"rollout_id": 0, "samples": [sample]}, tmp_path / "0.pt")
    (a,) = requests(tmp_path / "0.pt")
    assert a.request_id == "4"
    assert a.token_ids.tolist() == [3, 4]
    assert a.mask.tolist() == [True, False]
    assert a.fields["reward"] == 1.0


def test_masks_multiply_and_a_dropped_sample_counts_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    columns = project("trl") | {"tool_mask": np.array([[1, 0, 1, 1], [1, 1, 1, 1]])}
    a, b = requests(safetensors(tmp_path / "t.safetensors", columns))
    assert a.mask.tolist() == [True, False, True, False]
    assert b.mask.tolist() == [True, True, False, False]
    nemo = project("nemo-rl") | {
        "sample_mask": np.array([1.0, 0.0], dtype=np.float32),
        "input_lengths": np.array([2, 2]),
    }
    a, b = requests(safetensors(tmp_path / "n.safetensors", nemo))
    assert a.mask.tolist() == [True, True, False, False]
    assert not b.mask.any()


@pytest.mark.parametrize("kind", ["f8", "f4", "f2"])
def test_rows_of_logits_with_ids(kind: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = np.array([[1.0, 2.0, 3.0], [0.0, -np.inf, 0.0], [-np.inf] * 3, [0.0, np.nan, 1.0]]).astype(kind)
    path = safetensors(tmp_path / "l.safetensors", {"logits": rows, "token_ids": np.array([2, 1, 0, 0])})
    (a,) = requests(path)
    assert a.status.tolist() == [V, B, X, X]
    assert a.logprobs[0] == pytest.approx(-np.log(1 + np.exp(-1) + np.exp(-2)), abs=1e-12)
    assert a.fields["placeholders"] == {"broken row": 2, "-inf": 1}
    assert isinstance(a.logits.base, np.memmap) or isinstance(a.logits, np.memmap)


def test_npy_and_a_batch_of_rows(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.save(tmp_path / "l.npy", rows)
    (a,) = requests(tmp_path / "l.npy")
    assert a.logits.shape == (6, 4)
    assert np.array_equal(a.logits, rows.reshape(6, 4))
    assert a.token_ids is None


def test_bfloat16_is_widened_by_its_bits(tmp_path) -> None:  # type: ignore[no-untyped-def]
    values = np.array([[1.0, -2.5, 0.15625], [3.0, -np.inf, 65280.0]], dtype=np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    path = safetensors(tmp_path / "l.safetensors", {"logits": bits})
    (a,) = requests(path)
    assert a.logits.dtype == np.float32
    assert np.array_equal(a.logits, values)


def test_blocks_cut_at_the_same_rows_whatever_the_type(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(arrays, "BLOCK", 8)
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.save(tmp_path / "a.npy", rows)
    np.save(tmp_path / "b.npy", rows.astype(np.float64))
    a, b = requests(tmp_path / "a.npy"), requests(tmp_path / "b.npy")
    assert [r.request_id for r in a] == [r.request_id for r in b] == ["rows-0", "rows-2", "rows-4"]
    assert np.array_equal(np.concatenate([r.logits for r in a]), rows)


def test_generate_raw_and_processed() -> None:
    path = DATA / "hf_generate.safetensors"
    stream = open_stream(path)
    (raw,) = stream.requests()
    (processed,) = requests(path, "logprobs_mode=processed")
    assert stream.declared["logprobs_mode"].value == "raw"
    assert "scores" in stream.notes[0]
    # expected.json of the case, which was computed in float32
    assert raw.logprobs == pytest.approx([-0.258062, -0.380120, -1.009334], abs=5e-5)
    assert processed.logprobs == pytest.approx([0.0, 0.0, -0.209419], abs=5e-5)
    assert raw.token_ids.tolist() == processed.token_ids.tolist() == [7042, 30, 198]
    kept = np.isfinite(processed.logits).sum(axis=1)
    assert kept.tolist() == [1, 1, 3]


def test_the_whole_generate_of_the_case() -> None:
    folder = SHARED / "hf_generate"
    if not folder.is_dir():
        pytest.skip("needs ../shared/cases/hf_generate")
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    (raw,) = requests(folder / "generate.safetensors")
    (processed,) = requests(folder / "generate.safetensors", "logprobs_mode=processed")
    assert raw.logprobs == pytest.approx(expected["raw_logprobs"], abs=5e-5)
    assert processed.logprobs == pytest.approx(expected["processed_logprobs"], abs=5e-5)


def test_generate_of_a_batch(tmp_path) -> None:  # type: ignore[no-untyped-def]
    scores = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    sequences = np.array([[0, 1, 2, 3], [4, 3, 2, 1]])
    a, b = requests(safetensors(tmp_path / "g.safetensors", {"scores": scores, "sequences": sequences}))
    assert a.token_ids.tolist() == [1, 2, 3]
    assert b.token_ids.tolist() == [3, 2, 1]
    assert np.array_equal(b.logits, scores[:, 1])
