"""Dumps in several files: one result bit for bit, on every executor, in every order, and after a stop and a restart."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from safetensors.torch import save_file
from sharded_dumps import ROOT, ROWS, TEXT, WIDTH, Shuffled, run, text, through, written

from kcverify import driver
from kcverify.diagnostics import InputError
from kcverify.elaborate.contract import Contract
from kcverify.measure.options import MeasureOptions


@pytest.mark.parametrize("seed", range(4))
def test_every_order_of_merging_gives_the_same(contract: Contract, dump: Path, serial: str, seed: int) -> None:
    assert text(through(contract, dump, Shuffled(seed))) == serial


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pool_gives_the_same(contract: Contract, dump: Path, serial: str, workers: int) -> None:
    assert text(run(contract, dump, executor="process", workers=workers)) == serial


@pytest.mark.needs("ray")
def test_ray_gives_the_same(contract: Contract, dump: Path, serial: str) -> None:
    assert text(run(contract, dump, executor="ray", workers=2)) == serial


RANK = """
import json, sys
import torch.distributed as dist
sys.path.insert(0, {here!r})
from sharded_dumps import TEXT
from kcverify import driver
from kcverify.diagnostics import InputError
from kcverify.measure.options import MeasureOptions
from kcverify.source import Source
rank, folder, reference, candidate = int(sys.argv[1]), *sys.argv[2:5]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)
(contract,) = driver.load_source(Source("c.kc", TEXT)).contracts
try:
    found = driver.measure_in_group(contract, reference, candidate, options=MeasureOptions(window=16))
    answer = json.dumps(found, allow_nan=False)
except InputError as error:
    answer = "; ".join(d.message for d in error.diagnostics)
with open(f"{{folder}}/{{rank}}.json", "w") as file:
    file.write(answer)
dist.destroy_process_group()
"""


def in_two_ranks(dump: Path, candidate: Path, folder: Path, second: Path | None = None) -> list[str]:
    """What each rank answers; `second` is the dump of rank 1 where it is another."""
    code = RANK.format(here=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    sides = [(dump / "ref", candidate), (dump / "ref", candidate)]
    if second is not None:
        sides[1] = (second / "ref", second / "cand")
    ranks = [
        warm.Popen([sys.executable, "-c", code, str(rank), str(folder), *map(str, pair)], env=environment, cwd=dump)
        for rank, pair in enumerate(sides)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return [(folder / f"{rank}.json").read_text() for rank in (0, 1)]


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)
def test_a_process_group_gives_the_same_on_every_rank(dump: Path, serial: str, tmp_path: Path) -> None:
    first, second = map(json.loads, in_two_ranks(dump, dump / "cand", tmp_path))
    assert first == second, "the mark of the run too"
    assert text(first) == serial


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)
def test_what_goes_wrong_on_one_rank_is_raised_on_all(dump: Path, tmp_path: Path) -> None:
    written(tmp_path / "bad", ids=True)
    other = torch.zeros(ROWS[1], dtype=torch.int64)
    save_file(
        {"logits": torch.zeros(ROWS[1], WIDTH), "token_ids": other}, tmp_path / "bad" / "ref" / "part-1.safetensors"
    )
    (tmp_path / "bad" / "ref" / "part-1.npy").unlink()
    answers = in_two_ranks(tmp_path / "bad", tmp_path / "bad" / "cand", tmp_path)
    assert answers[0] == answers[1]
    assert answers[0].startswith("the two sides scored different tokens: row 0")


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)
@pytest.mark.parametrize(
    ("other", "told"), [("gone", "cannot read"), ("less", "the ranks of the group see different files")]
)
def test_ranks_that_see_different_files_end_together(dump: Path, tmp_path: Path, other: str, told: str) -> None:
    for side in ("ref", "cand"):
        for path in sorted((dump / side).iterdir())[:2] if other == "less" else ():
            (tmp_path / "less" / side).mkdir(parents=True, exist_ok=True)
            (tmp_path / "less" / side / path.name).write_bytes(path.read_bytes())
    answers = in_two_ranks(dump, dump / "cand", tmp_path, second=tmp_path / other)
    assert answers[0] == answers[1]
    assert told in answers[0]


def test_the_verdicts_are_those_of_one_file(contract: Contract, tmp_path: Path) -> None:
    """Shards of whole requests in one file give the same counts, verdicts and quantiles."""
    for i in range(3):
        reference = 3 * torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(i))
        for side, logits in (("ref", reference), ("cand", reference + 0.01 * reference.roll(1, 0))):
            (tmp_path / side).mkdir(exist_ok=True)
            np.save(tmp_path / side / f"{i}.npy", logits.numpy())
    for side in ("ref", "cand"):
        parts = [np.load(tmp_path / side / f"{i}.npy") for i in range(3)]
        np.save(tmp_path / f"{side}.npy", np.concatenate(parts))
    shards = run(contract, tmp_path)
    one = driver.measure(
        contract, str(tmp_path / "ref.npy"), str(tmp_path / "cand.npy"), None, MeasureOptions(window=16)
    )
    for clause, other in zip(shards["measured"]["clauses"], one["measured"]["clauses"], strict=True):
        shard, _, name = clause["max"].pop("request").partition("/")
        offset = int(other["max"].pop("request").removeprefix("rows-"))
        assert 32 * int(shard) + int(name.removeprefix("rows-")) == offset
        assert clause == other
    assert shards["measured"]["histograms"] == one["measured"]["histograms"]
    assert (shards["verdict"], shards["data"]["measured rows"]) == (one["verdict"], 96)


def test_what_is_not_finite_is_counted(serial: str) -> None:
    found = json.loads(serial)
    assert found["measured"]["rows"]["total"] == sum(ROWS)
    assert found["measured"]["rows"]["invalid"] == 1
    assert found["shards"] == {"total": 5, "measured": 5, "matched_by": "name", "lost": []}
    assert found["fingerprints"]["candidate"] | {"side": "", "logits": ""} == {
        "side": "",
        "format": "F32",
        "shards": "5",
        "logits": "",
    }


def test_requests_of_the_data_lie_over_the_shards(contract: Contract, dump: Path, tmp_path: Path) -> None:
    cuts = (40, 33, 8, 25, 25, 17)
    lines = [json.dumps({"request_id": f"r{i}", "token_ids": [1] * n, "tags": []}) for i, n in enumerate(cuts)]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(lines), encoding="utf-8")
    found = run(contract, dump, str(data))
    assert (found["data"]["requests"], found["data"]["measured requests"]) == (6, 6)
    assert text(run(contract, dump, str(data), executor="process", workers=2)) == text(found)
    data.write_text(lines[0] + "\n" + json.dumps({"request_id": "x", "token_ids": [1] * 108}), encoding="utf-8")
    with pytest.raises(InputError, match=r"request x of the data runs over the end of .*part-1\.npy"):
        run(contract, dump, str(data))
    data.write_text(lines[0], encoding="utf-8")
    with pytest.raises(InputError, match="the dump in shards has 148 rows, the data has 40 positions"):
        run(contract, dump, str(data))


def test_outcomes_by_request_are_counted_once(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.kc"
    path.write_text(
        TEXT.replace(
            "guarantee", "runtime { fails: failure_rate <= 50% -> L1; slow: p50 latency <= 1 s -> L1 }\nguarantee"
        )
    )
    (contract,) = driver.load(path)
    outcomes = tmp_path / "o.jsonl"
    outcomes.write_text(
        "\n".join(json.dumps({"request_id": f"r{i}", "latency_ms": 5}) for i in range(7)), encoding="utf-8"
    )
    one = run(contract, dump, observations=outcomes)
    rows = {c["name"]: c["evidence"] for c in one["measured"]["clauses"]}
    assert rows["slow"]["requests"] == 7
    assert rows["fails"]["exceeding_requests"] == 1, "the row that is not finite"
    assert text(run(contract, dump, observations=outcomes, executor="process", workers=2)) == text(one)
