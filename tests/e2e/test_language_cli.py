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


def test_fmt_goes_on_after_a_broken_file(run: Run, ugly: Path) -> None:
    broken = ugly.with_name("broken.kc")
    broken.write_text("contract c\nnumerical { a: tv <= -> L1 }\n", encoding="utf-8")
    assert run("fmt", broken, ugly) == 2
    assert "KC001" in run.err
    assert ugly.read_text(encoding="utf-8") == TIDY


def test_fmt_keeps_links_and_modes(run: Run, ugly: Path) -> None:
    link = ugly.with_name("link.kc")
    link.symlink_to(ugly)
    ugly.chmod(0o640)
    assert run("fmt", link) == 0
    assert link.is_symlink() and ugly.read_text(encoding="utf-8") == TIDY
    assert ugly.stat().st_mode & 0o777 == 0o640
    assert run("schema", "-o", "/dev/null") == 0
    assert not list(ugly.parent.glob("*.partial"))


def test_convert_says_which_comments_stay_behind(run: Run, ugly: Path) -> None:
    assert run("convert", ugly, "--to", "yaml", "-o", ugly.with_name("c.yaml")) == 0
    assert "1 comment stays behind" in run.err
    assert run("convert", ugly, "--to", "kc") == 0
    assert run.err == "" and "# note" in run.out
    path = ugly.with_name("c.yaml")
    assert run("convert", path, "--to", "json") == 0
    assert run.err == ""
    path.write_text(path.read_text(encoding="utf-8") + "# one\n  # two\n", encoding="utf-8")
    assert run("convert", path, "--to", "kc") == 0
    assert "2 comments stay behind" in run.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "1..0.5"], "--temperature: the range 1..0.5 is reversed"),
        (["--temperature", "0..1"], "--temperature: a temperature must be above 0"),
        (["--reward", "0..0"], "--reward: `0..0` is not a range with two ends"),
        (["--horizon", "0"], "--horizon: `0` is not a whole number of at least 1"),
        (["--tolerance", "-1"], "--tolerance: a tolerance must be above 0"),
        (["--tolerance", "1"], "--tolerance: a reward in [0, 1] never moves by more than 1"),
        (["--exception", "100%"], "--exception: `100%` is not a share"),
    ],
)
def test_init_names_the_option_that_is_wrong(run: Run, words: list[str], said: str) -> None:
    assert run("init", "--defaults", *words) == 2
    assert said in run.err
    assert "contract.kc:" not in run.err


def test_init_asks_again_after_an_answer_that_is_not_usable() -> None:
    from kcverify.output.init import ask

    answers = iter(["0", "64"])
    asked: list[str] = []

    def question(words: str, default: str) -> str:
        asked.append(words)
        return next(answers) if QUESTIONS["horizon"] in words else default

    assert ask({}, question).horizon == "64"
    again = asked[list(QUESTIONS).index("horizon") + 1]
    assert again == f"`0` is not a whole number of at least 1; {QUESTIONS['horizon']}"


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of this kind is not there")
def test_init_asks_on_a_terminal(tmp_path: Path) -> None:
    import os
    import subprocess

    ours, theirs = os.openpty()
    path = tmp_path / "asked.kc"
    command = [sys.executable, "-m", "kcverify", "init", "-o", str(path)]
    os.write(ours, b"asked\n\n\n\n0\n64\n\n\n\n")
    done = subprocess.run(command, stdin=theirs, capture_output=True, timeout=120, cwd=ROOT, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert b"is not a whole number of at least 1" in done.stderr
    text = path.read_text(encoding="utf-8")
    assert text.startswith("contract asked") and "64 tokens" in text


@pytest.mark.parametrize("option", ["--explain", "--all-cores", "--second-solver"])
def test_what_a_format_has_no_place_for_is_refused(run: Run, option: str) -> None:
    assert run("check", ROOT / "contracts" / "rl_rollout.kc", "--format", "sarif", option) == 2
    assert f"{option}: `--format sarif` has no place for it" in run.err


def test_a_band_over_tokens_points_at_slices(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.kc"
    path.write_text("contract c\nnumerical { a: tv <= 0.1 when prompt_tokens in [0, 8192) -> L1 }\n", encoding="utf-8")
    assert run("check", path) == 2
    assert "write `slice NAME = prompt_tokens in [0, 8192)`, and `on NAME` in the clause" in run.out


def test_every_code_is_explained(run: Run) -> None:
    from kcverify.codes import ROWS

    for row in ROWS:
        assert run("explain", row.id) == 0
        by_id = run.out
        assert run("explain", row.slug) == 0
        assert run.out == by_id and row.why in by_id


def test_an_interrupt_anywhere_ends_with_its_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Interrupted())))
    assert run("check", "-") == 130
    assert run.err == "interrupted\n"
