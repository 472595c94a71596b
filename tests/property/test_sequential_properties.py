"""Properties of the sequential tests: merging, safety under peeking, certificates that are true."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.runtime.sequential import (
    Wealth,
    certified_rate,
    fold,
    judge_binary,
    judge_mean,
    judge_share,
    log_e_mean,
    log_e_rate,
    log_e_share,
    requests_needed,
)

SHARES = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.02, 0.125, 1 / 3, 1.0]), max_size=40)
LIMITS = st.sampled_from([0.0002, 0.01, 0.3, 0.9])


@given(SHARES, SHARES, LIMITS, st.randoms())
@settings(max_examples=80, deadline=None)
def test_records_add_up_in_any_order(a: list[float], b: list[float], limit: float, shuffle: random.Random) -> None:
    whole, left, right = Wealth(), Wealth(), Wealth()
    mixed = [*a, *b]
    shuffle.shuffle(mixed)
    for value in mixed:
        whole.add(value, limit)
    for value in a:
        left.add(value, limit)
    right.merge(fold({v: b.count(v) for v in set(b)}, limit))
    right.merge(left)
    assert right == whole


@given(st.integers(0, 60), st.integers(1, 4000), LIMITS)
@settings(max_examples=100, deadline=None)
def test_more_exceedances_never_help(exceeding: int, total: int, limit: float) -> None:
    exceeding = min(exceeding, total - 1)
    assert log_e_rate(exceeding + 1, total, limit, "above") >= log_e_rate(exceeding, total, limit, "above")
    assert log_e_rate(exceeding + 1, total, limit, "below") <= log_e_rate(exceeding, total, limit, "below")
    outcome = judge_binary(exceeding, total, limit, 0.95)
    if outcome.verdict == "pass":
        assert exceeding / total < limit
    if outcome.verdict == "fail":
        assert exceeding / total > limit


@given(st.sampled_from([0.3, 0.05, 0.01, 0.0002]), st.sampled_from([0.9, 0.95, 0.99]))
@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize("kind", ["binary", "share", "mean"])
def test_requests_needed_is_the_first_that_passes(kind: str, limit: float, confidence: float) -> None:
    needed = requests_needed(limit, confidence, kind)

    def verdict(n: int) -> str:
        if kind == "binary":
            return judge_binary(0, n, limit, confidence).verdict
        record = fold({0.0: n}, limit)
        judged = (
            judge_share(record, limit, confidence)
            if kind == "share"
            else judge_mean(record, limit, confidence, bounded=True)
        )
        return judged.verdict

    assert verdict(needed) == "pass"
    assert needed == 1 or verdict(needed - 1) == "inconclusive"


@given(st.integers(10, 20_000))
@settings(max_examples=30, deadline=None)
def test_certified_rate_is_certified(requests: int) -> None:
    rate = certified_rate(requests, 0.95)
    assert log_e_rate(0, requests, rate, "below") >= math.log(20) - 1e-12
    assert log_e_rate(0, requests, rate * 0.999, "below") < math.log(20)


@pytest.mark.parametrize(("limit", "rate"), [(0.01, 0.01), (0.1, 0.1), (0.1, 0.05)])
def test_false_alarms_of_a_rate_under_peeking(limit: float, rate: float) -> None:
    """150 good streams, a look after each of 600 requests: far fewer than 5 % + noise may ever fail."""
    draw = random.Random(1)
    alarms = 0
    for _ in range(150):
        seen = 0
        for n in range(1, 601):
            seen += draw.random() < rate
            if seen > n * limit and log_e_rate(seen, n, limit, "above") >= math.log(20):
                alarms += 1
                break
    assert alarms <= 15


@pytest.mark.parametrize("value", ["rare and total", "clustered", "spread"])
def test_false_alarms_and_false_certificates_of_a_share_under_peeking(value: str) -> None:
    """Streams whose mean share is exactly the limit: neither verdict may come in more than 5 % + noise of them."""
    draw, limit = random.Random(2), 0.05
    shares = {
        "rare and total": lambda: float(draw.random() < limit),
        "clustered": lambda: 0.25 if draw.random() < 0.2 else 0.0,
        "spread": lambda: draw.choice([0.0, 0.025, 0.075, 0.1]),
    }[value]
    wrong = {"pass": 0, "fail": 0}
    for _ in range(120):
        record, decided = Wealth(), set()
        for _ in range(250):
            record.add(shares(), limit)
            if log_e_mean(record.above) >= math.log(20):
                decided.add("fail")
            if log_e_share(record, limit) >= math.log(20):
                decided.add("pass")
        for verdict in decided:
            wrong[verdict] += 1
    assert max(wrong.values()) <= 14


@pytest.mark.parametrize("limit", [1e-4, 0.5, 3.0])
def test_unbounded_mean_fails_soundly_and_never_passes(limit: float) -> None:
    """An exponential mean at the limit: few alarms; at three times the limit: an alarm; no verdict `pass` at all."""
    draw, alarms = random.Random(3), 0
    for _ in range(100):
        record = Wealth()
        for _ in range(150):
            record.add(draw.expovariate(1 / limit), limit, bounded=False)
            if judge_mean(record, limit, 0.95, bounded=False).verdict == "fail":
                alarms += 1
                break
    assert alarms <= 11
    record = Wealth()
    for _ in range(150):
        record.add(draw.expovariate(1 / (3 * limit)), limit, bounded=False)
    assert judge_mean(record, limit, 0.95, bounded=False).verdict == "fail"
    clean = fold({0.0: 100_000}, limit, bounded=False)
    assert judge_mean(clean, limit, 0.95, bounded=False).verdict == "inconclusive"
