"""A clause on several slices is judged over all that it names, whatever was seen of them."""

from __future__ import annotations

import math

from delivery_cases import contract

from kcverify.delivery import records as kept
from kcverify.delivery.evidence import merged, of_records
from kcverify.delivery.records import Record
from kcverify.emit.plan import plan
from kcverify.runtime.sequential import Wealth

TEXT = """contract sliced version "1"
slice a = tag("a")
slice b = tag("b")
slice c = tag("c")
slice d = tag("d")
numerical { drift: tv <= 0.1 except 5% on a, b, c, d -> L3 }
escalate { L3 -> rollback }
promote { offline { min 1 requests } }
"""
SLICED = contract(TEXT)


def one(bad: int) -> Record:
    planned = plan(SLICED).clauses[0]
    limit = kept.tested_limit(planned, None)
    assert limit is not None
    wealth = Wealth()
    wealth.add(0.0, limit, 40, bounded=True)
    wealth.add(1.0, limit, bad, bounded=True)
    return Record(limit, wealth, rows=40 + bad, exceeding=bad)


def test_a_slice_seen_alone_fails_at_its_share_of_the_level() -> None:
    level = math.log(1 / 0.05)
    records = (of_records("s", SLICED, 40 + n, {"drift on a": one(n)}).cells[0] for n in range(1, 40))
    cells = [c for c in records if c.log_e_fail is not None]
    between = [c for c in cells if level <= (c.log_e_fail or 0.0) < level + math.log(4)]
    assert between and all(c.verdict == "inconclusive" for c in between)
    assert cells[-1].verdict == "fail"


def test_slices_of_several_sources_are_judged_over_all_of_the_clause() -> None:
    level = math.log(1 / 0.05)
    for bad in range(1, 40):
        sources = [of_records(str(i), SLICED, 40 + bad, {"drift on a": one(bad)}) for i in range(2)]
        (cell,) = merged(sources, SLICED)
        total = cell.log_e_fail or 0.0
        if sources[0].cells[0].verdict != "fail" and level <= total < level + math.log(4):
            assert cell.verdict == "inconclusive"
            return
    raise AssertionError("nothing between the levels")
