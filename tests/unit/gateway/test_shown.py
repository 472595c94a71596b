"""The dashboard of a large contract: what is in trouble comes first, and the page stays small enough to be drawn anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from large_status import large

from kcverify.gateway.shown import sections

CLAUSES = 16


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made, status = large(CLAUSES, tmp_path_factory.mktemp("large") / "s.db")
    assert len(status["witnesses"]) == CLAUSES * 5
    assert sum(len(w) for w in status["witnesses"].values()) > 500
    return sections(made, status)


def test_witnesses_are_those_of_the_cells_in_trouble(drawn: dict[str, str]) -> None:
    text = drawn["witnesses"]
    assert text.count("<article") == 12 and text.count('class="witness"') == 48
    assert f">{CLAUSES * 5 - 12}</data> more clauses and slices" in text
    assert "of choice" in text
    assert len(text) < 300_000


def test_what_is_in_trouble_is_named_and_the_text_of_a_clause_stands_once(drawn: dict[str, str]) -> None:
    text = drawn["cells"]
    assert "In trouble: <a href=" in text and text.count('<a href="#cell-') == 12
    assert text.count('<tr role="row" id="cell-') == CLAUSES * 5
    assert text.count("<code") == CLAUSES


def test_a_small_contract_shows_all_of_its_witnesses(tmp_path: Path) -> None:
    made, status = large(1, tmp_path / "s.db")
    text = sections(made, status)["witnesses"]
    assert text.count("<article") == 5 and "more clauses" not in text
    assert text.count('class="witness"') == sum(len(w) for w in status["witnesses"].values()) > 30
