"""A dump in several files is compared as the one file that it was cut from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcverify.cli import main
from kcverify.diagnostics import InputError
from kcverify.executors.pool import Answer, Processes, Serial
from kcverify.streams.compare import compare
from kcverify.streams.sharded import open_sides

DATA = Path(__file__).parents[2] / "data" / "streams"
DECLARE = ("temperature=1", "logprobs_mode=raw")


def drifted(line: dict[str, Any]) -> dict[str, Any]:
    """The record with every sampled log-probability a little lower."""
    text = json.dumps(line)
    found: dict[str, Any] = json.loads(text)
    for choice in found["response"]["body"]["choices"]:
        logprobs = choice["logprobs"]
        logprobs["token_logprobs"] = [v if v is None else v - 0.01 for v in logprobs["token_logprobs"]]
    return found


def lines() -> list[dict[str, Any]]:
    """Records of a real answer under ids of their own."""
    real = [json.loads(raw) for raw in (DATA / "vllm_completions.jsonl").read_text().splitlines() if raw.strip()]
    return [{**real[i % len(real)], "id": f"cmpl-{i}", "custom_id": f"q{i:02}"} for i in range(12)]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def numbers(found: dict[str, Any]) -> str:
    """The answer without paths, notes and the names of requests."""
    kept = {key: found[key] for key in ("verdict", "requests", "estimators", "drift", "explained", "findings")}
    text = json.dumps(kept)
    for i in range(3):
        text = text.replace(f'"part-{i}/', '"')
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = lines()
    write(tmp_path / "a.jsonl", records)
    write(tmp_path / "b.jsonl", [drifted(record) for record in records])
    for i in range(3):
        part = records[4 * i : 4 * i + 4]
        write(tmp_path / "a" / f"part-{i}.jsonl", part)
        write(tmp_path / "b" / f"part-{i}.jsonl", [drifted(record) for record in part])
    return tmp_path


def answer(a: Path, b: Path) -> dict[str, Any]:
    return compare(*open_sides(str(a), str(b), DECLARE, DECLARE))


def test_shards_give_the_numbers_of_the_whole(folder: Path) -> None:
    whole = answer(folder / "a.jsonl", folder / "b.jsonl")
    assert whole["requests"]["pairs"] == 12
    shards = answer(folder / "a", folder / "b")
    assert numbers(shards) == numbers(whole)
    assert shards["reference"]["notes"][0] == "3 files; requests are paired within shards of one name"
    assert numbers(answer(folder / "a", folder / "b.jsonl")) == numbers(whole)
    assert numbers(answer(folder / "a" / "part-*.jsonl", folder / "b")) == numbers(whole)


class Backwards:
    """Answers the last job first, and loses one."""

    def map(self, function: Any, jobs: Any) -> Any:
        for index in reversed(range(len(jobs))):
            yield Answer(index, lost="gone") if index == 1 else Answer(index, function(jobs[index]))


@pytest.mark.parametrize("executor", [Serial(), Processes(2), Backwards()], ids=["serial", "processes", "backwards"])
def test_an_executor_changes_nothing(folder: Path, executor: Any) -> None:
    whole = answer(folder / "a", folder / "b")
    sides = open_sides(str(folder / "a"), str(folder / "b"), DECLARE, DECLARE, executor)
    assert json.dumps(compare(*sides)) == json.dumps(whole)
    again = open_sides(str(folder / "a"), str(folder / "b.jsonl"), DECLARE, DECLARE, executor)
    assert json.dumps(compare(*again)) == json.dumps(answer(folder / "a", folder / "b.jsonl"))


@pytest.mark.needs("ray")
def test_ray_changes_nothing(folder: Path) -> None:
    from kcverify.executors.cluster import Ray

    whole = answer(folder / "a", folder / "b")
    sides = open_sides(str(folder / "a"), str(folder / "b"), DECLARE, DECLARE, Ray(2))
    assert json.dumps(compare(*sides)) == json.dumps(whole)


def test_a_damaged_shard_is_said_by_an_executor_too(folder: Path) -> None:
    path = folder / "a" / "part-2.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    for executor in (None, Processes(1)):
        with pytest.raises(InputError, match=r"part-2\.jsonl"):
            compare(*open_sides(str(folder / "a"), str(folder / "b"), DECLARE, DECLARE, executor))


def test_the_command_takes_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--declare-a", "temperature=1", "--declare-b", "temperature=1", "--format", "json"]
    codes, texts = [], []
    for more in ([], ["--workers", "2"]):
        with pytest.raises(SystemExit) as caught:
            main(["compare", str(folder / "a"), str(folder / "b"), *told, *more])
        codes.append(caught.value.code)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert codes[0] == codes[1] == json.loads(texts[0])["exit_code"]


def test_shards_that_do_not_correspond_are_paired_by_ids(folder: Path) -> None:
    whole = answer(folder / "a.jsonl", folder / "b.jsonl")
    records = [drifted(record) for record in lines()]
    write(folder / "c" / "x.jsonl", records[:7])
    write(folder / "c" / "y.jsonl", records[7:])
    found = answer(folder / "a", folder / "c")
    assert numbers(found) == numbers(whole)
    assert found["reference"]["notes"][0] == "3 files; requests are paired by their ids alone"


def test_ids_that_count_in_every_file_stay_apart(folder: Path) -> None:
    for path in sorted(folder.glob("[ab]/*.jsonl")):
        records = [json.loads(raw) for raw in path.read_text().splitlines()]
        write(path, [{**record, "custom_id": f"q{i}"} for i, record in enumerate(records)])
    found = answer(folder / "a", folder / "b")
    assert (found["requests"]["pairs"], found["requests"]["repeated"]) == (12, 0)


def test_shards_of_two_kinds_are_refused(folder: Path) -> None:
    (folder / "a" / "part-1.jsonl").write_bytes((DATA / "sglang_triples.jsonl").read_bytes())
    with pytest.raises(InputError, match=r"part-0\.jsonl is completions.*part-1\.jsonl is sglang"):
        answer(folder / "a", folder / "b")


def test_shards_of_two_declarations_are_refused(folder: Path) -> None:
    for i, heat in enumerate((1.0, 0.7, 1.0)):
        side = folder / "a" / f"part-{i}.jsonl.kcverify.json"
        side.write_text(json.dumps({"temperature": heat}), encoding="utf-8")
    with pytest.raises(InputError, match=r"temperature is 1\.0 in .*part-0\.jsonl and 0\.7 in .*part-1\.jsonl"):
        compare(*open_sides(str(folder / "a"), str(folder / "b"), DECLARE[1:], DECLARE))


def test_an_empty_folder_is_said(folder: Path) -> None:
    (folder / "none").mkdir()
    with pytest.raises(InputError, match="it holds no file"):
        answer(folder / "a", folder / "none")
