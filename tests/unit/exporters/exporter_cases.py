"""A contract with every kind of evidence, records near their boundaries, and a contract of hostile words."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from typing import Any

from kcverify import driver
from kcverify.delivery.chain import Event, follow
from kcverify.delivery.records import Record
from kcverify.delivery.state import key
from kcverify.elaborate.contract import Contract
from kcverify.elaborate.form import digest
from kcverify.emit.plan import PlannedClause, plan
from kcverify.exporters import evidence
from kcverify.exporters.names import EXCEEDANCES, INVALID, LOG_WEALTH, MISSING, OBSERVATIONS
from kcverify.exporters.text import promql, whole
from kcverify.runtime.sequential import SCALE, Wealth, alarm_count
from kcverify.source import Source

TEXT = """contract every_kind version "1"
"a contract with each kind of evidence"
assume { temperature in [1, 1]; independent tokens }
slice long = prompt_tokens >= 1000
slice code = tag("code")
slice other = prompt_tokens < 1000
numerical {
  drift:  logit_span <= 0.6 except 1%                         -> L2
  far:    tv <= 0.9                                           -> L3
  gap:    mean tv <= 0.02                                     -> L1
  open:   mean kl(candidate || reference) <= 0.01 nats        -> L1
  tokens: tv <= 0.3 except 0.5% unit token                    -> L1
}
statistical {
  parses: parse_rate >= 99% on long, code, other              -> L2
  strict: parse_rate >= 98% on long, code                     -> L3
  ece:    ece_drift(bins = reference) <= 0.01                 -> L1
}
runtime {
  slow:   p99 latency <= 120 ms                               -> L1
  coarse: failure_rate <= 20%                                 -> L1
  recent: failure_rate <= 5% over 10 minutes                  -> L1
}
escalate { L1 -> log; L2 -> guard, dwell 10 minutes, recover 200 requests; L3 -> rollback }
promote { offline { min 5 requests }; shadow { for 1 h }; canary { traffic 0.5%, 5%, 12.5%, hold 2 h }; full { stable 24 h } }
"""

SMALL = """contract small version "1"
slice long = prompt_tokens >= 1000
slice code = tag("code")
numerical { drift: logit_span <= 0.6 except 1% -> L2; far: tv <= 0.9 -> L3 }
statistical { parses: parse_rate >= 90% on long, code -> L2; ece: ece_drift(bins = reference) <= 0.01 -> L1 }
escalate { L1 -> log; L2 -> guard, dwell 10 minutes, recover 200 requests; L3 -> rollback }
promote { offline { min 500 requests }; shadow { for 1 h }; canary { traffic 0.5%, 5%, hold 2 h }; full { stable 24 h } }
"""
"""The contract of the golden files."""


def contract(text: str = TEXT) -> Contract:
    """The contract of a text."""
    loaded = driver.load_source(Source("every.kc", text))
    assert not loaded.report.errors, loaded.report.errors
    return loaded.contracts[0]


HOSTILE = (
    'a"b',
    "a'b: c # d",
    "a\nb:\n  - c",
    "{{ printf `%s` .Values }}}}{{{",
    "}} or vector(1) # \\",
    "*x &y !!python/object:a <b> | > % @ `",
    "--- \r\n...\u2028\u2029\x85\x00\x1b[31m",
    "::error file=x::%0A,\t",
    "yes",
    "\ud800 \U0001f600 ünï",
    ']]> <script>alert(1)</script> "/>',
    "1e400",
    "",
)


def hostile(words: tuple[str, str, str, str]) -> Contract:
    """The contract with words of others as its name, text, clauses and slices; no contract has halves of surrogates."""
    words = tuple(whole(word) for word in words)  # type: ignore[assignment]
    made = contract()
    names = {s.name: f"{i}{words[1]}" for i, s in enumerate(made.slices)}
    clauses = tuple(
        dataclasses.replace(c, name=f"{i}{words[2]}", text=words[3], slices=tuple(names[s] for s in c.slices))
        for i, c in enumerate(made.clauses)
    )
    slices = tuple(dataclasses.replace(s, name=names[s.name]) for s in made.slices)
    return dataclasses.replace(
        made, name=words[0], version=words[1], description=words[2], clauses=clauses, slices=slices
    )


def records(made: Contract, seed: int) -> dict[str, Record]:
    """A record for each cell that counters decide, many of them at the boundary where the verdict turns."""
    draw = random.Random(seed)
    out = {}
    for planned in plan(made).clauses:
        if planned.enforced and planned.evidence in ("binary", "share", "mean", "maximum"):
            for name in planned.clause.slices or (None,):
                out[key(planned.clause.name, name)] = _record(planned, draw)
    return out


def _record(planned: PlannedClause, draw: random.Random) -> Record:
    limit = planned.limit if planned.limit is not None else float(planned.upper.value)  # type: ignore[union-attr,arg-type]
    n = int(math.exp(draw.uniform(0, 9)))
    wealth = Wealth()
    if planned.evidence in ("binary", "maximum"):
        turn = alarm_count(n, limit) if limit > 0 else None
        bad = draw.choice((0, 0, 1, 2, turn or 0, (turn or 1) - 1, (turn or 0) + 1))
        bad = min(max(bad, 0), n)
        wealth.requests, wealth.exceeding = n, bad
        rows, exceeding = (n, bad) if planned.clause.unit == "token" else (4 * n, bad)
    else:
        bounded = planned.reading is None or planned.reading.bounded
        for value in (0.0, draw.choice((0.0, limit / 2, limit, 2 * limit, 0.5))):
            wealth.add(value, limit, max(1, n // 2), bounded=bounded)
        rows, exceeding = 4 * wealth.requests, wealth.exceeding
    spoilt = draw.choice((0, 0, 0, 0, 0, 0, 0, 1))
    missing = draw.choice((0, 0, 0, 0, 0, 1))
    return Record(limit, wealth, rows, spoilt, 0, missing, exceeding)


def samples(made: Contract, given: dict[str, Record]) -> dict[str, float]:
    """What the gateway's metrics would say of these records: series -> value."""
    out: dict[str, float] = {}
    for planned in plan(made).clauses:
        clause = planned.clause
        for name in clause.slices or (None,):
            record = given.get(key(clause.name, name))
            if record is None:
                continue
            labels = f"contract={promql(made.name)}, clause={promql(clause.name)}, slice={promql(name or '')}"
            tokens = clause.unit == "token"
            seen = record.rows if tokens else record.wealth.requests
            bad = record.exceeding if tokens else record.wealth.exceeding
            counts = {OBSERVATIONS: seen, EXCEEDANCES: bad, INVALID: record.invalid, MISSING: record.missing}
            out |= {
                f"{metric}{{{labels}}}": float(value)
                for metric, value in counts.items()
                if value or metric == OBSERVATIONS
            }
            if planned.evidence in ("share", "mean"):
                for side, bets in (("above", record.wealth.above), ("below", record.wealth.below)):
                    out |= {
                        f'{LOG_WEALTH}{{{labels}, side="{side}", bet="{bet}"}}': value / SCALE
                        for bet, value in enumerate(bets)
                    }
    return out


def verdict_series(made: Contract, clause: str, slice: str | None) -> str:
    """The series of a cell's verdict."""
    return evidence.VERDICT + evidence.selector(made.name, clause, (slice or "",))


def result(made: Contract, words: dict[str, str] | None = None, **more: Any) -> bytes:
    """A result of `measure` with these verdicts by clause; the others pass."""
    rows = []
    for c in made.clauses:
        verdict = (words or {}).get(c.name, "pass")
        for name in c.slices or (None,):
            logs = {
                "log_e_fail": "inf" if verdict == "fail" else -1.5,
                "log_e_pass": None if verdict == "fail" else 3.5,
            }
            rows.append(
                {
                    "name": c.name, "slice": name, "severity": c.severity, "text": c.text, "verdict": verdict,
                    "reason": f"because it is {verdict}", "evidence": {"kind": "binary", "requests": 120, **logs},
                }
            )  # fmt: skip
    found = set(words.values()) if words else {"pass"}
    whole = "fail" if "fail" in found else "inconclusive" if found - {"pass"} else "pass"
    report = {"contract": made.name, "digest": digest(made), "requests": 120, "clauses": rows}
    return json.dumps({"verdict": whole, "complete": True, "measured": report} | more).encode()


def events() -> list[Event]:
    """Three events of a store."""
    first = follow(None, "started", 1_700_000_000_000, {"contract": "every_kind", "digest": "sha256:0", "plan": {}})
    second = follow(first, "decided", 1_700_000_060_000, {"cells": {"drift": "pass"}})
    return [first, second, follow(second, "failed", 1_700_000_061_500, {"severity": "L3", "reason": 'a "b"\n{{c}}'})]
