"""The compiled integer table of a rate clause decides exactly as its e-values do."""

from __future__ import annotations

import pytest

from kcverify.runtime.sequential import alarm_count, certificate_count, judge_binary
from kcverify.runtime.table import rate_table

TOTALS = (50, 100, 500, 1000, 5000, 20000)


def test_published_table() -> None:
    table = rate_table(0.01, 0.05, 20_000)
    assert [table.alarm(n) for n in TOTALS] == [4, 6, 13, 21, 72, 251]
    assert [table.certificate(n) for n in TOTALS] == [None, None, 0, 2, 31, 157]


@pytest.mark.parametrize(("limit", "level", "units"), [(0.3, 0.01, 300), (0.01, 0.05, 900), (0.9, 0.05, 200)])
def test_every_entry_is_that_of_the_e_values(limit: float, level: float, units: int) -> None:
    table = rate_table(limit, level, units)
    for n in range(units + 1):
        assert table.alarm(n) == alarm_count(n, limit, level)
        assert table.certificate(n) == certificate_count(n, limit, level)


def test_verdicts_are_those_of_the_test() -> None:
    table = rate_table(0.1, 1.0 - 0.95, 120)
    for n in range(121):
        for s in range(n + 1):
            assert table.verdict(s, n) == judge_binary(s, n, 0.1, 0.95).verdict


def test_a_table_of_one_unit_and_its_end() -> None:
    table = rate_table(0.5, 0.05, 1)
    assert table.verdict(1, 1) == table.verdict(0, 1) == "inconclusive"
    with pytest.raises(ValueError, match="ends at 1"):
        table.alarm(2)
