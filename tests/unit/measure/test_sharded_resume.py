"""Sharded runs that stop and go on: records, changed and damaged shards, wrong input, lost workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded_dumps import ROWS, TEXT, WIDTH, run, text, through, written

from kcverify import driver
from kcverify.diagnostics import InputError
from kcverify.elaborate.contract import Contract
from kcverify.executors.pool import Answer
from kcverify.executors.records import FileState, Records
from kcverify.measure.options import MeasureOptions
from kcverify.measure.shard import in_several


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


def test_a_run_that_is_resumed_keeps_its_mark(contract: Contract, dump: Path, tmp_path: Path) -> None:
    cut = through(contract, dump, Stopped(2), resume=tmp_path / "a")
    whole = run(contract, dump, resume=tmp_path / "a")
    assert cut["run"] == whole["run"] and len(whole["run"]) == 32
    assert cut["data"]["digest"] != whole["data"]["digest"], "it has more data"
    others = [run(contract, dump, resume=tmp_path / "b"), run(contract, dump), run(contract, dump)]
    assert len({found["run"] for found in (whole, *others)}) == 4
    assert {found["data"]["digest"] for found in others} == {whole["data"]["digest"]}


def test_a_folder_of_a_run_without_a_mark_is_resumed(
    contract: Contract, dump: Path, serial: str, tmp_path: Path
) -> None:
    run(contract, dump, resume=tmp_path)
    known = json.loads((tmp_path / "run.json").read_text())
    del known["run"]
    (tmp_path / "run.json").write_text(json.dumps(known))
    first = run(contract, dump, resume=tmp_path)
    assert text(first) == serial and first == run(contract, dump, resume=tmp_path)


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
