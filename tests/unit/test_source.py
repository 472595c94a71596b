"""Places in source text, and the files that ship with the package."""

from __future__ import annotations

import pytest

from kcverify import resources
from kcverify.source import Source, Span


def test_positions_count_lines_and_columns_from_one() -> None:
    source = Source("a.kc", "ab\ncd\r\n\nx")
    assert source.position(0) == (1, 1)
    assert source.position(4) == (2, 2)
    assert source.position(len(source.text)) == (4, 2)
    assert [source.line(number) for number in (1, 2, 3, 4)] == ["ab", "cd", "", "x"]


def test_a_span_knows_its_place_and_text() -> None:
    span = Span(Source("a.kc", "ab\ncd"), 3, 5)
    assert (span.place, span.text) == ("a.kc:2:1", "cd")


def test_an_empty_source_has_one_empty_line() -> None:
    source = Source("a.kc", "")
    assert source.position(0) == (1, 1)
    assert source.line(1) == ""


def test_shipped_folders_are_found() -> None:
    assert "start:" in resources.grammar_text()
    assert resources.template_dir().is_dir()
    assert resources.contracts_dir().is_dir()
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        resources.data_path("no-such-file")
