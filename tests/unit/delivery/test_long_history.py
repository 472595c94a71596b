"""A history as it is printed: in portions, each event after its hash was checked, never all of them at once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from delivery_cases import NOON, contract

from kcverify.cli import main
from kcverify.delivery import promotion
from kcverify.output import delivery as output

EVENTS = 7


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(output, "ROWS", 3)
    with promotion.start(str(tmp_path / "s.db"), contract(), NOON) as store:
        for number in range(2, EVENTS + 1):
            promotion.noted(store, "seen", NOON, reason=f"event {number}\nof several")
    return tmp_path / "s.db"


def printed(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["history", "--store", str(path)])
    return int(stop.value.code or 0), *capsys.readouterr()


def test_every_event_has_its_line_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(path, capsys)
    *rows, end = out.splitlines()
    assert code == 0 and [row.split()[0] for row in rows] == [str(n) for n in range(1, EVENTS + 1)]
    assert end.startswith(f"every hash holds; head {EVENTS}:")


def test_what_stands_before_a_changed_event_is_shown_and_the_change_named(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("UPDATE events SET body = '{}' WHERE seq = 5")
    raw.close()
    code, out, error = printed(path, capsys)
    assert code == 2 and "event 5" in error and "every hash holds" not in out
    assert [row.split()[0] for row in out.splitlines()] == ["1", "2", "3"]
