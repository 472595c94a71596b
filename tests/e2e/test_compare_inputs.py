"""What a command reads it does not overwrite, and what it is told must mean something."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kcverify.cli import main

DATA = Path(__file__).resolve().parents[1] / "data" / "streams" / "vllm_completions.jsonl"


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(w) for w in words])
    return int(stop.value.code or 0)


def test_a_report_never_replaces_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    shutil.copy(DATA, path)
    for given in (path, tmp_path / "*.jsonl"):
        assert run("compare", given, path, "--html", path) == 2
    assert "this command reads it" in capsys.readouterr().err
    assert path.read_bytes() == DATA.read_bytes()


def test_a_code_may_be_named_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", DATA, DATA, "--fail-on", "KC506") == 1
    assert run("compare", DATA, DATA, "--fail-on", "file_empty") == 2
    assert "a comparison reports" in capsys.readouterr().err


def test_an_empty_name_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "") == 2 and run("compare", DATA, "") == 2
    assert capsys.readouterr().err.count("the name is empty") == 2
