"""A thousand clauses are read and formatted in well under half a second of processor time."""

from __future__ import annotations

import runpy
from pathlib import Path

LANGUAGE = runpy.run_path(str(Path(__file__).resolve().parents[3] / "benchmarks" / "language.py"))


def test_a_thousand_clauses() -> None:
    figures = LANGUAGE["measure"](1000, 3)
    assert figures["parse_and_elaborate"] < 0.5
    assert figures["format"] < 0.5
