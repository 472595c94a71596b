"""A contract with every stage, and evidence of its clauses, for the tests of promotion."""

from __future__ import annotations

from kcverify import driver
from kcverify.delivery.records import Record, tested_limit
from kcverify.delivery.store import Store
from kcverify.elaborate.contract import Contract
from kcverify.emit.plan import plan
from kcverify.runtime.sequential import Wealth
from kcverify.source import Source

HOUR = 3_600_000
NOON = 1_700_000_000_000
TEXT = """contract lift version "1"
slice long = prompt_tokens >= 100
numerical {
  drift: logit_span <= 0.05 except 5%              -> L2
  far:   tv <= 0.5                                 -> L3
  part:  tv <= 0.1 except 10% on long              -> L2
  soft:  mean kl(candidate || reference) <= 1 nats -> L1
}
runtime { errors: failure_rate <= 5% -> L2 }
escalate {
  L1 -> log
  L2 -> guard, dwell 10 minutes, recover 200 requests
  L3 -> rollback, dwell 1 h, recover 1_000 requests
}
promote {
  offline { min 50 requests }
  shadow  { mirror 100%, for 2 h, min 300 requests }
  canary  { traffic 1%, 5%, hold 1 h }
  full    { stable 24 h }
}
"""


def contract(text: str = TEXT) -> Contract:
    """The only contract of a text."""
    loaded = driver.load_source(Source("lift.kc", text))
    assert not loaded.report.errors, loaded.report.errors
    return loaded.contracts[0]


def records(made: Contract, requests: int, **bad: int) -> dict[str, Record]:
    """Evidence of so many requests of one row each for every clause; `bad` of them exceed, by clause."""
    out = {}
    for planned in plan(made).clauses:
        limit = tested_limit(planned, None)
        assert limit is not None and planned.reading is not None
        count = bad.get(planned.clause.name, 0)
        bounded = planned.evidence != "mean" or planned.reading.bounded
        wealth = Wealth()
        wealth.add(0.0, limit, requests - count, bounded=bounded)
        wealth.add(1.0, limit, count, bounded=bounded)
        for name in planned.clause.slices or (None,):
            cell = planned.clause.name if name is None else f"{planned.clause.name} on {name}"
            out[cell] = Record(limit, wealth, rows=requests, exceeding=count)
    return out


def feed(store: Store, made: Contract, requests: int, *, writer: str = "w", **bad: int) -> None:
    """One more report of a writer to the current run."""
    state = store.state()
    known = store.evidence(state.run)[0]
    store.add(state.run, writer, known + 1, requests, records(made, requests, **bad))
