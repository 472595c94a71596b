"""A dump in several files is compared as the one file that it was cut from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcverify.cli import main
from kcverify.diagnostics import InputError
from kcverify.executors.pool import Answer, Processes, Serial
from kcverify.executors.runs import Reports
from kcverify.streams.observing import Options
from kcverify.streams.shard_runs import Spread
from kcverify.streams.sharded import compare_sides

DATA = Path(__file__).parents[2] / "data" / "streams"
DECLARE = ("temperature=1", "logprobs_mode=raw")
SERIAL = Serial()
SOUND = ("q00", "q02", "q04", "q06", "q08", "q10")


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


def answer(a: Path, b: Path, executor: Any = SERIAL) -> dict[str, Any]:
    return compare_sides(str(a), str(b), DECLARE, DECLARE, spread=Spread(executor))


def test_shards_give_the_numbers_of_the_whole(folder: Path) -> None:
    whole = answer(folder / "a.jsonl", folder / "b.jsonl")
    assert whole["requests"]["pairs"] == 12
    shards = answer(folder / "a", folder / "b")
    assert numbers(shards) == numbers(whole)
    assert shards["reference"]["notes"][0] == "3 files; requests are paired within shards of one name"
    assert shards["shards"] == {"total": 3, "compared": 3, "matched_by": "name", "across": 0, "unclear": 0, "lost": []}
    assert numbers(answer(folder / "a", folder / "b.jsonl")) == numbers(whole)
    assert numbers(answer(folder / "a" / "part-*.jsonl", folder / "b")) == numbers(whole)


class Backwards:
    """Answers the last job first."""

    def map(self, function: Any, jobs: Any) -> Any:
        for index in reversed(range(len(jobs))):
            yield Answer(index, function(jobs[index]))


class Losing:
    """Loses one job."""

    def map(self, function: Any, jobs: Any) -> Any:
        for index in range(len(jobs)):
            yield Answer(index, lost="gone") if index == 1 else Answer(index, function(jobs[index]))


@pytest.mark.parametrize("executor", [Processes(2), Backwards()], ids=["processes", "backwards"])
def test_an_executor_changes_nothing(folder: Path, executor: Any) -> None:
    assert json.dumps(answer(folder / "a", folder / "b", executor)) == json.dumps(answer(folder / "a", folder / "b"))
    one = answer(folder / "a", folder / "b.jsonl", executor)
    assert json.dumps(one) == json.dumps(answer(folder / "a", folder / "b.jsonl"))


@pytest.mark.needs("ray")
def test_ray_changes_nothing(folder: Path) -> None:
    from kcverify.executors.cluster import Ray

    assert json.dumps(answer(folder / "a", folder / "b", Ray(2))) == json.dumps(answer(folder / "a", folder / "b"))


def test_a_lost_shard_is_said_and_nothing_passes(folder: Path) -> None:
    for path in folder.glob("[ab]/*.jsonl"):  # records without a placeholder, which would decide by itself
        write(path, [r for r in map(json.loads, path.read_text().splitlines()) if r["custom_id"] in SOUND])
    found = answer(folder / "a", folder / "b", Losing())
    assert found["shards"]["lost"] == [{"shard": "part-1", "reason": "gone"}]
    assert (found["verdict"], found["exit_code"], found["requests"]["pairs"]) == ("incomplete", 3, 4)
    assert answer(folder / "a", folder / "b")["verdict"] == "comparable"


def test_a_damaged_shard_is_said_by_an_executor_too(folder: Path) -> None:
    path = folder / "a" / "part-2.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    for executor in (Serial(), Processes(1)):
        with pytest.raises(InputError, match=r"part-2\.jsonl"):
            answer(folder / "a", folder / "b", executor)


def test_requests_in_other_shards_are_paired_across_them(folder: Path) -> None:
    whole = answer(folder / "a.jsonl", folder / "b.jsonl")
    records = [drifted(record) for record in lines()]
    for i in range(3):
        write(folder / "c" / f"part-{i}.jsonl", records[i::3])
    found = answer(folder / "a", folder / "c")
    assert (found["requests"]["pairs"], found["shards"]["across"]) == (12, 6)
    assert found["findings"][0]["evidence"]["count"] == whole["findings"][0]["evidence"]["count"]
    rows = ("value", "lower", "upper")
    assert [[r[k] for k in rows] for r in found["estimators"]] == [[r[k] for k in rows] for r in whole["estimators"]]
    assert json.dumps(answer(folder / "a", folder / "c", Processes(2))) == json.dumps(found)


def test_ids_that_several_shards_use_are_not_paired_across_them(folder: Path) -> None:
    for path in sorted(folder.glob("[ab]/*.jsonl")):
        records = [json.loads(raw) for raw in path.read_text().splitlines()]
        gone = {"a": "part-1", "b": "part-2"}[path.parent.name] == path.stem
        write(path, [{**record, "custom_id": f"q{i}"} for i, record in enumerate(records[: 3 if gone else 4])])
    found = answer(folder / "a", folder / "b")
    assert (found["requests"]["pairs"], found["shards"]["across"], found["shards"]["unclear"]) == (10, 0, 1)
    assert "requests_unmatched" in [f["slug"] for f in found["findings"]]
    assert any("ids that several shards use" in line for line in found["assumptions"])


def test_a_finished_shard_is_not_compared_again(folder: Path) -> None:
    told: list[str] = []
    spread = Spread(Serial(), folder / "r", Reports("compared", told.append))

    def again() -> str:
        told.clear()
        return json.dumps(compare_sides(str(folder / "a"), str(folder / "b"), DECLARE, DECLARE, spread=spread))

    before = again()
    assert told[-1].startswith("3 shards, 54 rows in ") and told[-1].endswith(" rows/s")
    sorted((folder / "r").glob("*.state"))[0].unlink()
    assert again() == before and told[0] == "2 of 3 shards were compared before"
    damaged = sorted((folder / "r").glob("*.state"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-3])
    assert again() == before and "its record is damaged" in told[0]
    path = folder / "b" / "part-1.jsonl"
    path.write_text(path.read_text().replace("-0.0", "-0.1", 1) + "\n")
    assert again() and told[0].startswith("shard part-1 is compared again: ") and "changed since" in told[0]
    with pytest.raises(InputError, match="options"):
        compare_sides(str(folder / "a"), str(folder / "b"), DECLARE, DECLARE, Options(project="trl"), spread)


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
        compare_sides(str(folder / "a"), str(folder / "b"), DECLARE[1:], DECLARE)


def test_an_empty_folder_is_said(folder: Path) -> None:
    (folder / "none").mkdir()
    with pytest.raises(InputError, match="it holds no file"):
        answer(folder / "a", folder / "none")


def rows(folder: Path, side: str, names: str, keep: tuple[int, int] = (0, 64)) -> Path:
    """Rows of logits without ids, a shard a name; the candidate's a little off."""
    (folder / side).mkdir(parents=True)
    for name in names:
        draw = np.random.default_rng(ord(name))
        logits = draw.normal(0, 2, (64, 300)).astype(np.float32)
        off = draw.normal(0, 0.01, logits.shape).astype(np.float32) if side == "cand" else np.float32(0)
        np.save(folder / side / f"s{name}.npy", (logits + off)[slice(*keep)])
    return folder / side


@pytest.mark.parametrize("spread", [Spread(SERIAL), Spread()], ids=["asked", "default"])
def test_a_shard_that_one_side_lacks_is_named_and_nothing_passes(tmp_path: Path, spread: Spread) -> None:
    ref, cand = rows(tmp_path, "ref", "0123"), rows(tmp_path, "cand", "012")
    for a, b, side in ((ref, cand, "candidate"), (cand, ref, "reference")):
        found = compare_sides(str(a), str(b), DECLARE, DECLARE, spread=spread)
        assert (found["verdict"], found["exit_code"], found["requests"]["pairs"]) == ("incomplete", 3, 3)
        assert found["requests"]["repeated"] == 0 and found["drift"]["table"][0]["rows"] == 192
        lost = [{"shard": "s3", "reason": f"the {side} has no shard of this name"}]
        assert found["shards"] == {
            "total": 4, "compared": 3, "matched_by": "name", "across": 0, "unclear": 0, "lost": lost,
        }  # fmt: skip
    np.save(cand / "s3.npy", np.load(ref / "s3.npy"))
    assert compare_sides(str(ref), str(cand), DECLARE, DECLARE, spread=spread)["verdict"] == "comparable"


def test_a_shard_that_comes_later_is_compared_on_resuming(tmp_path: Path) -> None:
    ref, cand = rows(tmp_path, "ref", "01"), rows(tmp_path, "cand", "0")
    spread = Spread(SERIAL, tmp_path / "records")
    assert compare_sides(str(ref), str(cand), DECLARE, DECLARE, spread=spread)["exit_code"] == 3
    np.save(cand / "s1.npy", np.load(ref / "s1.npy"))
    found = compare_sides(str(ref), str(cand), DECLARE, DECLARE, spread=spread)
    assert (found["verdict"], found["requests"]["pairs"], found["shards"]["compared"]) == ("comparable", 2, 2)


def test_counted_rows_of_different_shards_are_never_paired(tmp_path: Path) -> None:
    """`rows-0` of shard 1 and of shard 2 would each be alone, and once, in their side."""
    ref, cand = rows(tmp_path, "ref", "01"), rows(tmp_path, "cand", "02")
    for name, at in (("0", ref), ("0", cand)):
        np.save(at / f"s{name}.npy", np.load(at / f"s{name}.npy")[:0].reshape(0, 300))
    assert compare_sides(str(ref), str(cand), DECLARE, DECLARE)["requests"]["pairs"] == 0
    whole = rows(tmp_path / "x", "cand", "ab")
    found = compare_sides(str(ref), str(whole), DECLARE, DECLARE)  # no name or number in common
    assert (found["requests"]["repeated"], found["verdict"] == "comparable") == (0, False)


def test_requests_of_a_lonely_shard_may_lie_in_others(folder: Path) -> None:
    records = [drifted(record) for record in lines()]
    for i in range(2):
        write(folder / "c" / f"part-{i}.jsonl", records[6 * i : 6 * i + 6])
    found = answer(folder / "a", folder / "c")
    assert (found["requests"]["pairs"], found["shards"]["across"], found["shards"]["lost"]) == (12, 6, [])
    assert (found["shards"]["compared"], found["shards"]["total"]) == (3, 3)
