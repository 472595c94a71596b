"""`check --explain` and `--all-cores` through the command line, and the published thresholds at a glance."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from kcverify.cli import main

ROOT = Path(__file__).parents[2]
PUBLISHED = [
    path
    for path in sorted((ROOT / "contracts" / "published").glob("*.kc"))
    if "\nkernel contract " not in path.read_text(encoding="utf-8")  # p9 and p10 run: tests/unit/conformance
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0), capsys.readouterr().out


def test_a_proof_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "check", "--explain", str(ROOT / "contracts" / "reward_only.kc"))
    assert code == 1
    assert "why reward_safe holds: `drift` proves it" in text
    assert "`drift` proves it up to" in text
    assert "other minimal sets" not in text


def test_all_cores(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "check", "--all-cores", str(ROOT / "contracts" / "inconsistent.kc"))
    assert code == 1
    assert "1 minimal set of clauses that exclude each other:\n    `same`, `flips`" in text


def test_explained_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "contracts" / "reward_only.kc")
    _, text = run(capsys, "check", "--all-cores", "--format", "json", path)
    [contract] = json.loads(text)["files"][0]["contracts"]
    [proof] = contract["explained"]["proofs"]
    assert proof["core"] == ["drift"]
    assert proof["proving"] == {"sets": [["drift"]], "complete": True}
    assert contract["verdicts"][1]["slug"] == "refuted"
    _, plain = run(capsys, "check", "--format", "json", path)
    assert "explained" not in json.loads(plain)["files"][0]["contracts"][0]


def test_the_published_thresholds_are_checked_in_a_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert [p.stem.partition("_")[0] for p in PUBLISHED] == [f"p{i}" for i in range(1, 9)]
    start = time.perf_counter()
    code, text = run(capsys, "check", *map(str, PUBLISHED))
    assert time.perf_counter() - start < 10
    assert code == 1
    for number in ("0.00184", "[0.94176, 1.06184]", "5.01e-11", "0.0000126", "0.0447", "0.998751", "0.29 at 1,000", "4.5e-5",
                   "[0.2, 2]", "0.0223607", "0.158114", "0.525855", "0.0625 on one side and 0.125 on both"):  # fmt: skip
        assert number in text, number
