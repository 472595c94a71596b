"""A contract with clauses of every kind that a detector can follow, and a state of its store."""

from __future__ import annotations

from kcverify import driver
from kcverify.delivery.chain import Event
from kcverify.delivery.machine import plan_of
from kcverify.delivery.state import State, apply, started
from kcverify.source import Source

NOON = 1_700_000_000_000
TEXT = """contract routed version "1"
slice long = prompt_tokens >= 100
numerical {
  drift: tv <= 0.05 except 1%        -> L2
  far:   tv <= 0.5                   -> L3
  part:  tv <= 0.1 except 10% on long -> L2
  soft:  mean tv <= 0.02             -> L1
}
runtime { errors: failure_rate <= 1% -> L3; speed: throughput >= 5 tokens/s -> L1 }
escalate {
  L1 -> log
  L2 -> guard, false_alarm_every 1_000_000 requests, dwell 10 minutes, recover 200 requests
  L3 -> rollback, false_alarm_every 1_000_000 requests, dwell 1 h, recover 1_000 requests
}
promote {
  offline { min 50 requests }
  shadow  { mirror 50%, for 2 h }
  canary  { traffic 1%, 5%, hold 1 h }
  full    { stable 24 h }
}
"""


def _contract():  # type: ignore[no-untyped-def]
    loaded = driver.load_source(Source("routed.kc", TEXT))
    assert not loaded.report.errors, loaded.report.errors
    return loaded.contracts[0]


CONTRACT = _contract()
PLAN = plan_of(CONTRACT)


def state() -> State:
    """The first state of a store."""
    return apply(None, Event(1, "started", NOON, started("routed", "sha256:0", PLAN), "0" * 64, "1" * 64))
