"""Remedies: each number that is offered would do, and a little more would not."""

from __future__ import annotations

import re
from fractions import Fraction as F

from written import ASSUME, statuses, verdicts

from kcverify.prove.remedy import _largest, _largest_integer, percent
from kcverify.prove.verdict import Limits

MANY = ASSUME.replace("horizon <= 1", "horizon <= 256")
GIVEN = "c: logit_span <= 0.05 except 0.2% -> L1"


def test_the_search_finds_the_edge():
    assert F(999, 1000) * F(1, 3) <= _largest(lambda x: x <= F(1, 3), F(1), Limits()) <= F(1, 3)
    assert _largest(lambda x: False, F(1), Limits()) is None
    assert [_largest_integer(lambda n, k=k: n <= k, 100) for k in (0, 1, 57, 99)] == [0, 1, 57, 99]
    assert percent(F(1, 3)) == "33.3%" and percent(F(1, 3), up=True) == "33.4%"


def test_each_remedy_alone_proves_the_claim():
    """The bound is 0.67, and the worst instance that is known reaches less than 0.65."""
    claim = "g: reward_drift <= 0.6"
    found = {
        x: verdicts(GIVEN, f"g: reward_drift <= {x}", assume=MANY)["g"] for x in ("0.6", "0.62", "0.64", "0.65", "0.66")
    }
    undecided = [(x, v) for x, v in found.items() if v.status.value == "UNKNOWN"]
    assert undecided, {x: (v.status.value, float(v.gap or 0)) for x, v in found.items()}
    number, v = undecided[0]
    claim, text = f"g: reward_drift <= {number}", " | ".join(v.remedies)
    rate, limit = re.search(r"except ([0-9.]+%)", text), re.search(r"at ([0-9.e-]+) instead", text)
    horizon, tolerance = re.search(r"horizon of (\d+) tokens", text), re.search(r"tolerance of ([0-9.e-]+)", text)
    assert rate and horizon and tolerance, text
    changed = [
        (GIVEN.replace("0.2%", rate[1]), claim, MANY),
        (GIVEN, claim, MANY.replace("256", horizon[1])),
        (GIVEN, f"g: reward_drift <= {tolerance[1]}", MANY),
        *([(GIVEN.replace("0.05", limit[1]), claim, MANY)] if limit else []),
    ]
    for given, asked, assume in changed:
        assert statuses(given, asked, assume=assume) == {"g": "PROVED"}, (given, asked, assume)


def test_a_bound_of_one_is_no_tolerance():
    v = verdicts("c: logit_span <= 0.05 except 1% -> L1", "g: reward_drift <= 0.9", assume=MANY)["g"]
    assert not any("tolerance" in r for r in v.remedies)
    assert v.status.value != "PROVED"


def test_the_exceedances_of_a_response_are_named():
    v = verdicts("c: log_ratio <= 0.06 except 1% -> L1", "g: reward_drift <= 0.4", assume=MANY)["g"]
    assert "256 tokens at a rate of 1% expect 2.56 exceedances a response" in v.reason or v.status.value == "REFUTED"
