"""The sequential tests give the published test vectors and integer tables."""

from __future__ import annotations

import math

import pytest

from kcverify.runtime.sequential import (
    Wealth,
    alarm_count,
    bets,
    certificate_count,
    certified_rate,
    fold,
    judge_binary,
    judge_clean,
    judge_mean,
    judge_share,
    log_e_mean,
    log_e_rate,
    log_e_share,
    requests_needed,
)


@pytest.mark.parametrize(
    ("limit", "side", "exceeding", "total", "value"),
    [
        (0.01, "above", 3, 100, 0.643560263),
        (0.01, "above", 6, 100, 4.331202468),
        (0.01, "above", 22, 1000, 4.016392305),
        (0.01, "below", 0, 404, 3.002152775),
        (0.01, "below", 2, 1000, 3.844667074),
        (0.001, "above", 12, 2000, 9.550845663),
    ],
)
def test_rate_vectors(limit: float, side: str, exceeding: int, total: int, value: float) -> None:
    assert log_e_rate(exceeding, total, limit, side) == pytest.approx(value, abs=1e-9)


def test_mean_vector() -> None:
    record = fold(dict.fromkeys((0.02, 0.0, 0.05, 0.011, 0.03), 1), 0.01)
    assert log_e_mean(record.above) == pytest.approx(0.637070302, abs=1e-8)


def test_integer_tables() -> None:
    totals = (50, 100, 500, 1000, 5000, 20000)
    assert [alarm_count(n, 0.01) for n in totals] == [4, 6, 13, 21, 72, 251]
    assert [certificate_count(n, 0.01) for n in totals] == [None, None, 0, 2, 31, 157]


def test_alarm_count_can_be_out_of_reach() -> None:
    assert alarm_count(1, 0.5) is None


def test_requests_needed() -> None:
    assert requests_needed(0.01) == 404
    assert requests_needed(0.0002) == 20_250
    assert requests_needed(0.01, kind="mean") == 545
    assert requests_needed(0.0002, kind="share") == 22_787
    assert requests_needed(0.01, 0.99) > 404


def test_bets_keep_every_wealth_positive() -> None:
    for limit in (1e-6, 0.01, 0.5, 0.99):
        assert max(bets(limit, "above")) * limit == pytest.approx(0.999)
        assert max(bets(limit, "below")) * (1 - limit) == pytest.approx(0.999)
        assert len(bets(limit, "above")) == 16
    assert max(bets(0.01, "above")) / min(bets(0.01, "above")) == pytest.approx(256)


def test_binary_verdicts() -> None:
    assert judge_binary(6, 100, 0.01, 0.95).verdict == "fail"
    assert judge_binary(5, 100, 0.01, 0.95).verdict == "inconclusive"
    assert judge_binary(0, 404, 0.01, 0.95).verdict == "pass"
    assert judge_binary(0, 403, 0.01, 0.95).verdict == "inconclusive"
    assert judge_binary(0, 404, 0.01, 0.99).verdict == "inconclusive"


def test_share_verdicts() -> None:
    assert judge_share(fold({0.0: 454}, 0.01), 0.01, 0.95).verdict == "pass"
    assert judge_share(fold({0.0: 453}, 0.01), 0.01, 0.95).verdict == "inconclusive"
    assert judge_share(fold({0.2: 20}, 0.01), 0.01, 0.95).verdict == "fail"
    assert judge_share(fold({0.0: 10, 0.02: 2}, 0.01), 0.01, 0.95).verdict == "inconclusive"


def test_many_small_shares_still_certify() -> None:
    record = fold({0.001: 3_000}, 0.01)
    assert log_e_rate(record.exceeding, record.requests, 0.01, "below") < 0
    assert log_e_share(record, 0.01) > math.log(20)


def test_clean_verdicts() -> None:
    assert judge_clean(1, 10_000, 59, 0.95).verdict == "fail"
    assert judge_clean(0, 58, 59, 0.95).verdict == "inconclusive"
    assert judge_clean(0, 0, 0, 0.95).verdict == "inconclusive"
    passed = judge_clean(0, 1000, 59, 0.95)
    assert passed.verdict == "pass"
    assert passed.reason == "no exceedance in 1000 requests: rate below 0.004"
    assert certified_rate(1000, 0.95) == pytest.approx(0.00404, abs=1e-5)
    assert certified_rate(0, 0.95) == 1.0


def test_unbounded_mean_has_no_pass_side() -> None:
    record = Wealth()
    record.add(0.0, 1e-4, 10_000, bounded=False)
    outcome = judge_mean(record, 1e-4, 0.95, bounded=False)
    assert outcome.verdict == "inconclusive" and outcome.log_e_pass is None
    assert "unbounded" in outcome.reason
    record.add(math.inf, 1e-4, 1, bounded=False)
    assert judge_mean(record, 1e-4, 0.95, bounded=False).verdict == "fail"


def test_mean_at_the_ends_of_the_range() -> None:
    assert judge_mean(fold({0.0: 10}, 0.0), 0.0, 0.95, bounded=True).verdict == "inconclusive"
    assert judge_mean(fold({0.0: 10, 0.1: 1}, 0.0), 0.0, 0.95, bounded=True).verdict == "fail"
    assert judge_mean(fold({1.0: 10}, 1.0), 1.0, 0.95, bounded=True).verdict == "pass"
