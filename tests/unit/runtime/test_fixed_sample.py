"""One look: exact binomial tails rounded up, Clopper-Pearson limits, Hoeffding for shares."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from kcverify.runtime import fixed_sample
from kcverify.runtime.sequential import fold


def exact(exceeding: int, total: int, rate: float, down: bool) -> Fraction:
    p = Fraction(rate)
    counts = range(exceeding + 1) if down else range(exceeding, total + 1)
    return sum((math.comb(total, k) * p**k * (1 - p) ** (total - k) for k in counts), Fraction(0))


def test_tails_are_rounded_up_and_tight() -> None:
    draw = random.Random(0)
    for _ in range(150):
        total = draw.choice([1, 2, 10, 60])
        exceeding, rate = draw.randint(0, total), draw.choice([draw.random(), 0.01, 1e-4, 0.5])
        for down, tail in ((True, fixed_sample.tail_at_most), (False, fixed_sample.tail_at_least)):
            true, found = exact(exceeding, total, rate, down), tail(exceeding, total, rate)
            assert true <= Fraction(found) <= min(Fraction(1), true * (1 + Fraction(1, 10**9)) + Fraction(1, 10**10))


@pytest.mark.parametrize(
    ("exceeding", "total"), [(0, 299), (3, 1000), (17, 2000), (500, 1000), (999, 1000), (40_000, 100_000), (5, 10**6)]
)
@pytest.mark.parametrize("level", [0.05, 0.001])
def test_clopper_pearson_as_in_scipy(exceeding: int, total: int, level: float) -> None:
    special = pytest.importorskip("scipy.special")
    upper = fixed_sample.upper_limit(exceeding, total, level)
    want = special.betaincinv(exceeding + 1, total - exceeding, 1 - level)
    assert want * (1 - 1e-13) <= upper <= want * (1 + 2e-7)
    if exceeding:
        lower = fixed_sample.lower_limit(exceeding, total, level)
        want = special.betaincinv(exceeding, total - exceeding + 1, level)
        assert want * (1 - 2e-7) <= lower <= want * (1 + 1e-13)


def test_ends() -> None:
    assert fixed_sample.upper_limit(7, 7, 0.05) == 1.0
    assert fixed_sample.lower_limit(0, 7, 0.05) == 0.0
    assert fixed_sample.tail_at_most(3, 3, 0.2) == fixed_sample.tail_at_least(0, 3, 0.2) == 1.0
    assert fixed_sample.mean_upper_limit(fold({1.0: 5}, 0.1), 0.05) == 1.0


def test_verdicts_of_one_look() -> None:
    assert fixed_sample.judge_binary(0, 299, 0.01, 0.95).verdict == "pass"
    assert fixed_sample.judge_binary(0, 298, 0.01, 0.95).verdict == "inconclusive"
    assert fixed_sample.judge_binary(20, 1000, 0.01, 0.95).verdict == "fail"
    assert fixed_sample.judge_binary(15, 1000, 0.01, 0.95).verdict == "inconclusive"
    assert fixed_sample.judge_mean(fold({0.0: 299}, 0.01), 0.01, 0.95).verdict == "pass"
    assert fixed_sample.judge_mean(fold({0.0: 298}, 0.01), 0.01, 0.95).verdict == "inconclusive"
    assert fixed_sample.judge_mean(fold({0.3: 30}, 0.01), 0.01, 0.95).verdict == "fail"
    assert "one look" in fixed_sample.judge_mean(fold({0.3: 3}, 0.2), 0.2, 0.95).reason


def test_requests_needed_is_the_first_that_passes() -> None:
    assert fixed_sample.requests_needed(0.01) == 299
    for limit in (0.5, 0.05, 0.001, 1e-5):
        needed = fixed_sample.requests_needed(limit, 0.99)
        assert fixed_sample.judge_binary(0, needed, limit, 0.99).verdict == "pass"
        assert needed == 1 or fixed_sample.judge_binary(0, needed - 1, limit, 0.99).verdict == "inconclusive"


def test_false_verdicts_of_a_share_at_one_look() -> None:
    """Clustered shares of mean exactly the limit: neither verdict in more than 5 % of 400 samples, far fewer in fact."""
    draw, wrong = random.Random(1), {"pass": 0, "fail": 0, "inconclusive": 0}
    for _ in range(400):
        clustered = sum(draw.random() < 0.2 for _ in range(200))
        record = fold({0.25: clustered, 0.0: 200 - clustered}, 0.05)
        wrong[fixed_sample.judge_mean(record, 0.05, 0.95).verdict] += 1
    assert max(wrong["pass"], wrong["fail"]) <= 20
