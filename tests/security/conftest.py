"""A command in a folder of its own, whose output was looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_output import obeyed

from kcverify.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; what it printed had nothing that a terminal or a CI runner obeys, but for `--format github`."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str, codes: tuple[int, ...] = (0, 1, 3)) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        told = capsys.readouterr()
        code = int(stop.value.code or 0)
        assert code in codes, (words, told.err)
        wrong = obeyed(told.err) + [w for w in obeyed(told.out) if not ("github" in words and w.startswith("::"))]
        assert not wrong, (words, wrong[:3])
        return code, told.out, told.err

    return command
