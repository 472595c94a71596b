"""The commands of the language as a user runs them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import jsonschema
import pytest

from kcverify.cli import main
from kcverify.output.init import QUESTIONS

ROOT = Path(__file__).resolve().parents[2]
UGLY = "contract c\nnumerical{a:tv<=0.01->L1 # note\n}\n"
TIDY = "contract c\n\nnumerical {\n  a: tv <= 0.01 -> L1  # note\n}\n"


class Run:
    """Runs a command and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: object) -> int:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        self.out, self.err = self.capsys.readouterr()
        assert "Traceback" not in self.err
        assert "internal error" not in self.err
        return int(stop.value.code or 0)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def ugly(tmp_path: Path) -> Path:
    path = tmp_path / "ugly.kc"
    path.write_text(UGLY, encoding="utf-8")
    return path


def test_fmt_in_place(run: Run, ugly: Path) -> None:
    assert run("fmt", ugly) == 0
    assert ugly.read_text(encoding="utf-8") == TIDY
    assert "formatted" in run.out
    assert run("fmt", ugly) == 0
    assert run.out == ""


def test_fmt_check_and_diff_write_nothing(run: Run, ugly: Path) -> None:
    assert run("fmt", "--check", ugly) == 1
    assert run("fmt", "--diff", ugly) == 0
    assert "+  a: tv <= 0.01 -> L1  # note" in run.out
    assert run("fmt", "--diff", "--check", ugly) == 1
    assert ugly.read_text(encoding="utf-8") == UGLY


def _stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_fmt_of_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _stdin(monkeypatch, UGLY)
    assert run("fmt", "-") == 0
    assert run.out == TIDY


def test_fmt_refuses_a_broken_file(run: Run, ugly: Path) -> None:
    ugly.write_text("contract c\nnumerical { a: tv <= -> L1 }\n", encoding="utf-8")
    assert run("fmt", ugly) == 2
    assert "KC001" in run.err
    assert ugly.read_text(encoding="utf-8").startswith("contract c\nnumerical {")
    assert run("fmt", ugly.with_suffix(".yaml")) == 2


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_convert_there_and_back(run: Run, tmp_path: Path, form: str) -> None:
    there = tmp_path / f"c.{form}"
    assert run("convert", ROOT / "tests/data/rl_rollout.kc", "--to", form, "-o", there) == 0
    if form == "yaml":
        assert there.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=kcverify.schema.json\n")
    back = tmp_path / "back.kc"
    assert run("convert", there, "--to", "kc", "-o", back) == 0
    assert run("diff", ROOT / "tests/data/rl_rollout.kc", back) == 0
    assert "the same contract" in run.out
    assert run("convert", back, "--to", "xml") == 2


def test_convert_refuses_a_faulty_contract(run: Run, ugly: Path) -> None:
    ugly.write_text("contract c\nnumerical { a: tvv <= 0.1 -> L1 }\n", encoding="utf-8")
    assert run("convert", ugly, "--to", "json") == 2
    assert "KC101" in run.err


def test_schema(run: Run) -> None:
    assert run("schema") == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(run.out))


def test_diff_is_a_gate(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.kc", tmp_path / "new.kc"
    old.write_text("contract c\nnumerical { a: tv <= 0.01 -> L1; b: tv <= 0.5 -> L1 }\n", encoding="utf-8")
    new.write_text("contract c\nnumerical { a: tv <= 0.02 -> L2; c: tv <= 0.3 -> L1 }\n", encoding="utf-8")
    assert run("diff", old, new) == 1
    assert "- loosened clause `a`: at most 0.02 instead of 0.01" in run.out
    assert "- removed clause `b`" in run.out
    assert "+ added clause `c`" in run.out
    assert run("diff", old, new, "--format", "json") == 1
    answer = json.loads(run.out)
    assert answer["exit_code"] == 1
    assert {c["kind"] for c in answer["contracts"][0]["changes"]} == {"loosened", "removed", "added"}
    assert run("diff", new, new) == 0
    assert run("diff", old, tmp_path / "none.kc") == 2
    assert run("diff", old, new, "--contract", "d") == 2


def test_diff_asks_the_solver_about_slices(run: Run, tmp_path: Path) -> None:
    line = "numerical { a: tv <= 0.01 on s -> L1 }\n"
    paths = []
    for index, predicate in enumerate(
        ["prompt_tokens > 9", "prompt_tokens >= 10", "prompt_tokens >= 5", "prompt_tokens >= 50"]
    ):
        paths.append(tmp_path / f"{index}.kc")
        paths[-1].write_text(f"contract c\nslice s = {predicate}\n{line}", encoding="utf-8")
    assert run("diff", paths[0], paths[1]) == 0
    assert "the same requests in other words" in run.out
    assert run("diff", paths[0], paths[2]) == 0
    assert run("diff", paths[0], paths[3]) == 1


def test_diff_of_kernel_contracts(run: Run, tmp_path: Path) -> None:
    text = (ROOT / "tests/data/fp8_gemm.kc").read_text(encoding="utf-8")
    other = tmp_path / "other.kc"
    other.write_text(text.replace("finite(b); k % 16 == 0", "finite(b); k % 32 == 0"), encoding="utf-8")
    assert run("diff", ROOT / "tests/data/fp8_gemm.kc", other) == 1
    assert "needs `k % 32 == 0` too" in run.out


def test_init_writes_a_contract_that_is_proved(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "first.kc"
    assert run("init", "--defaults", "-o", path) == 0
    assert run("check", path) == 0
    assert "PROVED" in run.out
    assert run("fmt", "--check", path) == 0
    words = ["--name", "mine", "--horizon", "64", "--tolerance", "0.05", "--exception", "0.001%"]
    assert run("init", *words, "--temperature", "1", "-o", path) == 0
    assert run("check", path) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--tolerance", "0.0000001"],
        ["--tolerance", "some"],
        ["--name", "my contract"],
        ["--reference", 'a"b'],
        ["--horizon", "2.5"],
        ["--reward", "1..0"],
    ],
)
def test_init_says_what_is_wrong(run: Run, words: list[str]) -> None:
    assert run("init", "--defaults", *words) == 2
    assert "error[" in run.err


def test_the_questions_are_those_of_the_answers() -> None:
    from dataclasses import fields

    from kcverify.output.init import Answers, ask

    assert list(QUESTIONS) == [field.name for field in fields(Answers)]
    asked: list[str] = []

    def question(words: str, default: str) -> str:
        asked.append(words)
        return default

    assert ask({"name": "x"}, question) == Answers(name="x")
    assert asked == [words for name, words in QUESTIONS.items() if name != "name"]


def test_catalogue(run: Run, tmp_path: Path) -> None:
    assert run("catalogue", "metrics", "lemmas") == 0
    assert "logit_span" in run.out
    assert "tv_of_span" in run.out
    assert run("catalogue", "--format", "json") == 0
    assert set(json.loads(run.out)) == {"kcverify", "metrics", "lemmas", "codes", "units", "assumptions"}
    assert run("catalogue", "metric") == 2
    assert run("catalogue", "--pages", tmp_path) == 0
    assert (tmp_path / "codes.md").is_file()


def test_the_answers_fit_their_schema(run: Run, tmp_path: Path) -> None:
    check = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/answers.schema.json").read_text(encoding="utf-8")))
    broken = tmp_path / "broken.kc"
    broken.write_text("contract c\nnumerical { a: tv <= nan -> L1 }\n", encoding="utf-8")
    worked = sorted((ROOT / "contracts").glob("*.kc"))[:4]
    run("check", "--format", "json", *worked, broken, ROOT / "tests/data/fp8_gemm.kc")
    check.validate(json.loads(run.out))
    run("diff", "--format", "json", worked[0], worked[1])
    check.validate(json.loads(run.out))
