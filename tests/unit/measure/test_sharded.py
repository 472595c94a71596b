"""Dumps in several files: one result bit for bit, on every executor, in every order, and after a stop and a restart."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kcverify import driver
from kcverify.diagnostics import InputError
from kcverify.elaborate.contract import Contract
from kcverify.executors.pool import Answer
from kcverify.measure.options import MeasureOptions
from kcverify.measure.records import FileState, Records
from kcverify.measure.shard import in_several
from kcverify.measure.sharded import measure_shards
from kcverify.source import Source

ROOT = Path(__file__).parents[3]
TEXT = """contract c
assume { temperature = 1; sampler = full_softmax; horizon <= 4 tokens; reward in [0, 1] }
slice early = position < 8
numerical {
  drift: logit_span <= 0.12 except 1% -> L2
  far: tv <= 0.05 except 1% -> L1
  soon: mean kl(candidate || reference) <= 1 nats on early -> L1
}
guarantee { safe: reward_drift <= 0.6 }
"""
ROWS = (40, 33, 8, 50, 17)
WIDTH = 64


def written(folder: Path, *, ids: bool = False, endings: tuple[str, str] = (".npy", ".safetensors")) -> Path:
    """Five shards a side; row 20 of shard 3 is not finite on one side."""
    generator = torch.Generator().manual_seed(4)
    for side in ("ref", "cand"):
        (folder / side).mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(ROWS):
        reference = 3 * torch.randn(rows, WIDTH, generator=generator)
        candidate = reference + 0.03 * torch.randn(rows, WIDTH, generator=generator)
        tokens = torch.randint(0, WIDTH, (rows,), generator=generator)
        if i == 3:
            candidate[20, 5] = torch.nan
        for side, ending, logits in zip(("ref", "cand"), endings, (reference, candidate), strict=True):
            path = folder / side / f"part-{i}{ending}"
            if ending == ".npy":
                np.save(path, logits.numpy())
            else:
                save_file({"logits": logits} | ({"token_ids": tokens} if ids else {}), path)
    return folder


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("dump"))


@pytest.fixture(scope="module")
def contract() -> Contract:
    (found,) = driver.load_source(Source("c.kc", TEXT)).contracts
    return found


def run(
    contract: Contract, dump: Path, data: str | None = None, executor: str = "serial", **options: Any
) -> dict[str, Any]:
    chosen = MeasureOptions(window=16, executor=executor, **options)
    return driver.measure(contract, str(dump / "ref"), str(dump / "cand"), data, chosen)


def text(result: dict[str, Any]) -> str:
    return json.dumps(result, allow_nan=False)


class Shuffled:
    """Serial in an order of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Answer]:
        order = random.Random(self.seed).sample(range(len(jobs)), len(jobs))
        for index in order:
            yield Answer(index, function(jobs[index]))


@pytest.fixture(scope="module")
def serial(contract: Contract, dump: Path) -> str:
    return text(run(contract, dump))


def through(contract: Contract, dump: Path, executor: Any, **options: Any) -> dict[str, Any]:
    checked, source = driver.check(contract), driver.emit_monitor(contract)
    chosen = MeasureOptions(window=16, **options)
    return measure_shards(checked, source, str(dump / "ref"), str(dump / "cand"), None, chosen, executor)


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
from test_sharded import TEXT
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
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(folder), *map(str, pair)], env=environment, cwd=dump
        )
        for rank, pair in enumerate(sides)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return [(folder / f"{rank}.json").read_text() for rank in (0, 1)]


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)
def test_a_process_group_gives_the_same_on_every_rank(dump: Path, serial: str, tmp_path: Path) -> None:
    assert in_two_ranks(dump, dump / "cand", tmp_path) == [serial, serial]


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
    with pytest.raises(InputError, match="the shards together has 148 rows, the data has 40 positions"):
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


def test_finished_shards_are_not_measured_again(contract: Contract, dump: Path, serial: str, tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "done"
    first = Stopped(2).run(contract, dump, folder)
    assert len(first) == 2
    assert text(run(contract, dump, resume=folder, tell=told.append)) == serial
    assert told[0] == "2 of 5 shards were measured before"
    assert told[1].startswith(f"3 shards, {sum(ROWS[2:])} rows in ")
    told.clear()
    assert text(run(contract, dump, resume=folder, tell=told.append)) == serial
    assert told[0] == "5 of 5 shards were measured before"


class Stopped:
    """Serial that Ctrl-C ends after some shards."""

    def __init__(self, after: int) -> None:
        self.after, self.names = after, list[str]()

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Answer]:
        for index, job in enumerate(jobs):
            if index == self.after:
                raise KeyboardInterrupt
            self.names.append(job.name)
            yield Answer(index, function(job))

    def run(self, contract: Contract, dump: Path, folder: Path) -> list[str]:
        found = through(contract, dump, self, resume=folder)
        assert not found["complete"]
        assert found["exit_code"] in (1, 3)
        assert found["shards"]["measured"] == self.after
        return self.names


def test_a_shard_that_changed_is_measured_again(contract: Contract, tmp_path: Path) -> None:
    dump, folder, told = written(tmp_path / "dump"), tmp_path / "done", list[str]()
    before = run(contract, dump, resume=folder)
    path = dump / "ref" / "part-2.npy"
    os.utime(path)
    assert run(contract, dump, resume=folder, tell=told.append) == before
    assert told[0] == "5 of 5 shards were measured before", "only the time changed, not the content"
    np.save(path, np.load(path)[::-1].copy())
    told.clear()
    assert run(contract, dump, resume=folder, tell=told.append) != before
    assert told[:2] == [f"shard part-2 is measured again: {path} changed since", "4 of 5 shards were measured before"]
    assert text(run(contract, dump)) == text(run(contract, dump, resume=folder))


def test_a_damaged_record_is_measured_again(contract: Contract, dump: Path, serial: str, tmp_path: Path) -> None:
    told: list[str] = []
    run(contract, dump, resume=tmp_path)
    states = sorted(tmp_path.glob("*.state"))
    states[0].write_bytes(states[0].read_bytes()[:1000])
    states[1].write_bytes(states[2].read_bytes())
    assert text(run(contract, dump, resume=tmp_path, tell=told.append)) == serial
    assert sorted(t.rpartition(": ")[2] for t in told[:2]) == [
        "its record is damaged",
        "its record is of another shard",
    ]


@pytest.mark.parametrize("change", ["contract", "window", "run.json"])
def test_a_folder_of_another_run_is_refused(contract: Contract, dump: Path, tmp_path: Path, change: str) -> None:
    run(contract, dump, resume=tmp_path)
    options: dict[str, Any] = {"window": 16, "resume": tmp_path}
    if change == "contract":
        (tmp_path / "x.kc").write_text(TEXT.replace("0.12", "0.13"))
        (contract,) = driver.load(tmp_path / "x.kc")
    elif change == "window":
        options["window"] = 8
    else:
        (tmp_path / "run.json").write_text("[")
    with pytest.raises(InputError) as caught:
        driver.measure(contract, str(dump / "ref"), str(dump / "cand"), None, MeasureOptions(**options))
    assert caught.value.diagnostics[0].code.slug == "resume_mismatch"
    assert change in str(caught.value)


def test_a_folder_that_cannot_be_written_is_said(contract: Contract, dump: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        run(contract, dump, resume=tmp_path / "file" / "x")


@pytest.mark.parametrize(
    ("rows", "width", "told"),
    [((7, WIDTH), None, "part-0.npy has 7 rows, .*part-0.safetensors has 40"), ((40, 5), None, "5 vocabulary entries"), (None, None, "part-0.safetensors")],
)  # fmt: skip
def test_an_unequal_or_missing_shard_is_named(
    contract: Contract, tmp_path: Path, rows: tuple[int, int] | None, width: None, told: str
) -> None:
    dump = written(tmp_path)
    path = dump / "ref" / "part-0.npy"
    if rows is None:
        path.unlink()
    else:
        np.save(path, np.zeros(rows, dtype=np.float32))
    with pytest.raises(InputError, match=told) as caught:
        run(contract, dump)
    assert {d.code.slug for d in caught.value.diagnostics} == {"shard_mismatch"}


def test_token_ids_of_either_side_name_the_tokens(contract: Contract, tmp_path: Path) -> None:
    found = run(contract, written(tmp_path, ids=True))
    assert found["measured"]["rows"]["total"] == sum(ROWS)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"executor": "dask"}, "`dask` is none of process, ray, serial"),
        ({"workers": 0}, "--workers"),
        ({"causes": True}, "--causes"),
        ({"by_layer": True}, "--by-layer"),
        ({"window": 0}, "--window"),
        ({"batch": 0}, "--batch"),
    ],
)
def test_options_that_are_not_usable(contract: Contract, dump: Path, options: dict[str, Any], told: str) -> None:
    chosen = MeasureOptions(**options)
    with pytest.raises(InputError, match=told):
        driver.measure(contract, str(dump / "ref"), str(dump / "cand"), None, chosen)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("demo:int8", "recorded files on both sides"),
        ("module:function", "recorded files on both sides"),
        ("nowhere", "cannot read nowhere"),
        ("a.txt", "recorded files on both sides"),
        ("no.npy", "5 shards, the candidate 1"),
    ],
)
def test_a_side_that_is_no_dump(contract: Contract, dump: Path, spec: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        driver.measure(contract, str(dump / "ref"), spec, None, MeasureOptions())


def test_without_ray_the_extra_is_named(contract: Contract, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "kcverify.executors.cluster", raising=False)
    with pytest.raises(InputError, match="needs ray") as caught:
        run(contract, dump, executor="ray")
    assert "kcverify[ray]" in caught.value.diagnostics[0].hint


def test_a_lost_shard_is_reported_and_the_run_never_passes(contract: Contract, dump: Path) -> None:
    class Losing:
        def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Answer]:
            for index, job in enumerate(jobs):
                yield Answer(index, lost="gone") if job.name == "part-1" else Answer(index, function(job))

    found = through(contract, dump, Losing())
    assert found["shards"]["lost"] == [{"shard": "part-1", "reason": "gone"}]
    assert "shard part-1 is missing: gone" in found["measured"]["notes"]
    assert (found["complete"], found["verdict"] != "pass", found["exit_code"] in (1, 3)) == (False, True, True)
    assert found["measured"]["rows"]["total"] == sum(ROWS) - ROWS[1]


def test_a_fault_in_a_worker_names_the_shard(contract: Contract, dump: Path) -> None:
    class Broken:
        def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Answer]:
            yield Answer(0, fault="KeyError: 1 (x.py:3)")

    with pytest.raises(RuntimeError, match=r"shard part-0: KeyError: 1 \(x.py:3\)"):
        through(contract, dump, Broken())


def test_one_pair_of_files_stays_what_it_was() -> None:
    assert not in_several("a.npy", ["b.npy"], MeasureOptions())
    assert in_several("a.npy", ["b.npy", "c.npy"], MeasureOptions())
    assert in_several("a.npy", "b.npy", MeasureOptions(resume=Path("x")))


def test_a_file_that_changes_while_it_is_read_is_refused(
    contract: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = written(tmp_path)
    import kcverify.measure.shard as module

    whole = module.run_pair

    def touching(*arguments: Any, **options: Any) -> Any:
        found = whole(*arguments, **options)
        with (dump / "ref" / "part-0.npy").open("ab") as handle:
            handle.write(b"x")
        return found

    monkeypatch.setattr(module, "run_pair", touching)
    with pytest.raises(InputError, match="changed while it was read"):
        run(contract, dump)


def test_same_compares_content_only_where_the_time_differs(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    state = path.stat()
    assert FileState(3, state.st_mtime_ns, "F32", "never looked at").same(path)
    assert not FileState(3, state.st_mtime_ns - 1, "F32", "another").same(path)
    assert not FileState(4, state.st_mtime_ns, "F32", "").same(path)
    assert not FileState(3, state.st_mtime_ns, "F32", "").same(tmp_path / "gone")


def test_records_are_of_one_run(tmp_path: Path) -> None:
    Records(tmp_path, {"a": "1"})
    Records(tmp_path, {"a": "1"})
    with pytest.raises(InputError, match="a 1 there, 2 here"):
        Records(tmp_path, {"a": "2"})
