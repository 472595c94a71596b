"""A contract with every stage, and reports about it, for the tests of promotion through the command line."""

from __future__ import annotations

import json
from typing import Any

from kcverify import driver
from kcverify.elaborate.form import digest
from kcverify.runtime.sequential import Wealth, log_e_mean, log_e_share
from kcverify.source import Source

TEXT = """contract lift version "1"
assume { temperature in [1, 1] }
numerical {
  drift: logit_span <= 40 except 20% -> L2
  far:   tv <= 0.99                  -> L3
}
escalate { L2 -> guard, dwell 10 minutes, recover 200 requests; L3 -> rollback }
promote { offline { min 5 requests }; shadow { for 0 s }; canary { traffic 1%, 5% }; full { stable 24 h } }
"""


def result(requests: int, *, bad: bool = False, text: str = TEXT) -> str:
    """A monitor's report of clean requests; `bad`: one of them is far off."""
    made = driver.load_source(Source("lift.kc", text)).contracts[0]
    wealth = Wealth()
    wealth.add(0.0, 0.2, requests)
    certify = log_e_share(wealth, 0.2)
    none: dict[str, Any] = {"p_fail": None, "p_pass": None, "requests": requests}
    drift = {
        "kind": "share",
        "log_e_fail": log_e_mean(wealth.above),
        "log_e_pass": certify,
        "requests_needed": 20,
        **none,
    }
    far = {"kind": "maximum", "log_e_fail": None, "log_e_pass": None, "requests_needed": 5, **none}
    rows = [
        {
            "name": "drift",
            "slice": None,
            "verdict": "pass" if certify > 3 else "inconclusive",
            "reason": "seen",
            "evidence": drift,
        },
        {"name": "far", "slice": None, "verdict": "fail" if bad else "pass", "reason": "seen", "evidence": far},
    ]
    head = {"contract": made.name, "digest": digest(made), "looks": "any number of looks", "requests": requests}
    return json.dumps({**head, "clauses": rows})
