"""The guided tour: what it says while its long steps run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kcverify import demo


def test_each_long_step_is_named_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    happened: list[str] = []
    tour = replace(demo.TOURS["tinylm"], formats=("one", "two"))
    monkeypatch.setitem(demo.TOURS, "tinylm", tour)
    monkeypatch.setattr(
        demo, "_measure", lambda contract, tour, fmt, *_: happened.append(fmt) or {"pair": {"candidate": fmt}}
    )
    monkeypatch.setattr(demo, "_streams", lambda *_: happened.append("files") or [])
    monkeypatch.setattr(demo.measure_output, "rows_table", lambda _: [])
    monkeypatch.setattr(demo.measure_output, "sentence", lambda _: "")

    setting = demo.Setting("tinylm", None, tmp_path, "cpu")
    assert demo.run(setting, lambda _: None, lambda *_: None, False, happened.append) == 0
    assert [x.split(":")[0] for x in happened] == ["step 4 of 5", "one", "two", "step 5 of 5", "files"]
