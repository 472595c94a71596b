"""A clause about a window in time: one window may certify it, a blend of several never does, a failure needs none."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

from delivery_cases import NOON, contract

from kcverify.delivery import evidence, promotion, records
from kcverify.delivery.gate import Question, evaluate
from kcverify.delivery.records import Record
from kcverify.delivery.windows import gathered, name_at
from kcverify.emit.plan import plan
from kcverify.gateway.cells import Facts
from kcverify.gateway.guard import Guard
from kcverify.routing.health import Where
from kcverify.runtime.sequential import Wealth, log_e_rate, requests_needed

MADE = contract("""contract w version "1"
runtime { errors: failure_rate <= 20% over 10 minutes -> L2; never: failure_rate <= 0% over 10 minutes -> L2 }
escalate { L2 -> guard, recover 10 requests }
promote { shadow { for 0 s }; full { stable 0 s } }
""")
WINDOW = Fraction(600)
LIMIT = float(records.tested_limit(plan(MADE).clauses[0], None) or 0)
NEEDED = requests_needed(LIMIT)


def record(requests: int, bad: int = 0) -> Record:
    wealth = Wealth()
    wealth.add(0.0, LIMIT, requests - bad)
    wealth.add(1.0, LIMIT, bad)
    return Record(LIMIT, wealth, requests, exceeding=bad)


def verdict(*parts: Record, first: int = 100, step: int = 1) -> tuple[str, str]:
    """Of records in windows that follow each other."""
    kept = {f"errors @ {first + i * step}": part for i, part in enumerate(parts)}
    cell = evidence.of_records("s", MADE, 1, kept).cells[0]
    return cell.verdict, cell.reason


def test_one_window_certifies_and_a_blend_does_not() -> None:
    more = NEEDED + 12
    assert verdict(record(more))[0] == "pass"
    assert "one window of 600 s" in verdict(record(more))[1]
    assert verdict(record(NEEDED // 2), record(NEEDED // 2 + 1), record(NEEDED // 2))[0] == "inconclusive"
    assert verdict(record(3), record(more))[0] == "pass"
    assert verdict(record(3), record(NEEDED + 2), step=1000)[0] == "inconclusive", "a late window is one of many"
    assert verdict(record(20, 12), record(20, 12))[0] == "fail"
    bare = evidence.of_records("s", MADE, 1, {"errors": record(200)}).cells[0]
    assert bare.verdict == "unobservable" and "--evidence" in bare.reason


def test_levels_of_all_windows_add_up() -> None:
    """A wrong certificate of any of K windows is as likely as the levels say, whatever K: beta in all."""
    beta, allowed = 0.05, 0.0
    for n in range(1, 1000):
        count = next(m for m in range(1, 500) if log_e_rate(0, m, LIMIT, "below") >= math.log(n * (n + 1) / beta))
        parts = [record(1)] * (n - 1) + [record(count)]
        assert n > 5 or (verdict(*parts)[0], verdict(*parts[:-1], record(count - 1))[0]) == ("pass", "inconclusive")
        allowed += 1.0 / math.exp(log_e_rate(0, count, LIMIT, "below"))
    assert allowed <= beta


def test_a_gateway_keeps_them_and_a_stage_passes(tmp_path: Path) -> None:
    guard, where = Guard(MADE, ()), Where("candidate", "", 0)
    for i in range(240):
        observed = {"failed": False, "latency": 0.1}
        guard.add(Facts(f"r{i}", 1, 1.0, unscored=True, observed=observed, at=NOON + i * 5_000), where)
    with promotion.start(str(tmp_path / "s.db"), MADE, NOON) as store:
        for number, (run, requests, counted) in enumerate(guard.take()[0]):
            assert {name_at("errors", WINDOW, NOON), name_at("never", WINDOW, NOON)} < set(counted)
            assert gathered(counted)[0]["errors"].wealth.requests == requests == 240
            store.add(run, "w", number, requests, counted)
        found = promotion.gate_store(store, MADE, [], NOON + 1)
    assert {c.clause: c.verdict for c in found.cells} == {"errors": "pass", "never": "pass"}, found.reasons


def test_readings_of_all_requests_say_where_they_would_come_from() -> None:
    made = contract(MADE_TEXT)
    found = evaluate(made, Question("shadow", 1, ()))
    assert "give a monitor's state with --evidence" in found.cells[0].reason


MADE_TEXT = """contract t version "1"
runtime { speed: throughput >= 100 tokens/s -> L2 }
escalate { L2 -> guard, recover 10 requests }
promote { shadow { for 0 s }; full { stable 0 s } }
"""
