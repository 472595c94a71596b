"""`inspect` of a dump in shards: what each is, totals, what they disagree in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from stream_files import DATA, batch, safetensors

from kcverify.diagnostics import InputError
from kcverify.output.inspect import shards
from kcverify.readers.answer import data_of_shards
from kcverify.readers.inspected_shards import inspect_shards
from kcverify.readers.inspection import inspect


def dump(folder: Path, *names: str) -> Path:
    for i, name in enumerate(names):
        shutil.copy(DATA / name, folder / f"part-{i}{Path(name).suffix}")
    return folder


def test_totals_are_sums_of_the_shards(tmp_path: Path) -> None:
    found = data_of_shards(inspect_shards(str(dump(tmp_path, "sglang_triples.jsonl", "sglang_triples.jsonl"))))
    each = [inspect(DATA / name) for name in 2 * ["sglang_triples.jsonl"]]
    assert [row["shard"] for row in found["shards"]] == ["part-0", "part-1"]
    assert found["total"]["tokens"] == sum(one.tokens for one in each)
    assert found["total"]["statuses"]["value"] == sum(one.statuses["value"] for one in each)
    assert found["disagreements"] == []
    assert "  total " in shards(found, color=False)


def test_disagreements_are_named_with_their_shards(tmp_path: Path) -> None:
    dump(tmp_path, "sglang_triples.jsonl", "vllm_completions.jsonl", "sglang_triples.jsonl")
    (tmp_path / "part-2.jsonl.kcverify.json").write_text(json.dumps({"temperature": 0.7}), encoding="utf-8")
    found = data_of_shards(inspect_shards(str(tmp_path / "*.jsonl")))
    told = {d["what"]: d for d in found["disagreements"]}
    assert told["format"]["values"][0] == {"value": "sglang", "count": 2, "shards": ["part-0", "part-2"]}
    assert told["temperature"]["values"][1] == {"value": "0.7", "count": 1, "shards": ["part-2"]}
    assert "temperature differs: not declared in 2 shards (part-0, part-1); 0.7 in 1 shard (part-2)" in shards(
        found, color=False
    )


def test_metrics_are_those_of_every_shard(tmp_path: Path) -> None:
    dump(tmp_path, "sglang_triples.jsonl")
    tensors = {"responses": batch()["ids"], "response_mask": batch()["mask"], "rollout_log_probs": batch()["rollout"]}
    safetensors(tmp_path / "part-1.safetensors", tensors)
    found = inspect_shards(str(tmp_path))
    assert found.carries == {"token_ids", "logprobs"}
    assert {d.what for d in found.disagreements} >= {"format", "carries"}


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    dump(tmp_path, "sglang_triples.jsonl")
    (tmp_path / "part-1.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="part-1"):
        inspect_shards(str(tmp_path))
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="no file that ends in"):
        inspect_shards(str(tmp_path / "none"))
