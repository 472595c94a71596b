"""Our sequential tests beside those of `ville`, an independent package."""

from __future__ import annotations

import math

import pytest

from kcverify.runtime.many import e_bh
from kcverify.runtime.sequential import fold, log_e_rate, mean_upper_limit, rate_upper_limit, share_upper_limit

numpy = pytest.importorskip("numpy")
evalues = pytest.importorskip("ville.evalues")
proportions = pytest.importorskip("ville.proportions")
means = pytest.importorskip("ville.means")


def test_e_bh_rejects_the_same_hypotheses() -> None:
    rng = numpy.random.default_rng(0)
    for size in (1, 2, 7, 50):
        for _ in range(60):
            log_e = rng.normal(2.0, 3.0, size)
            mask = evalues.ebh(numpy.exp(log_e), alpha=0.05)
            assert e_bh(log_e.tolist(), 0.05) == set(numpy.flatnonzero(mask).tolist())


@pytest.mark.parametrize("rate", [0.002, 0.01, 0.05])
def test_upper_limits_of_a_rate_agree_within_their_mixtures(rate: float) -> None:
    """Another mixture of the same likelihood ratios (two-sided, so at half the level): limits within 40 %."""
    rng = numpy.random.default_rng(1)
    stream = (rng.random(4_000) < rate).astype(float)
    other = proportions.BernoulliCS(alpha=0.1, prior=(0.5, 0.5), intersect=False).fit(stream)
    counts = numpy.cumsum(stream)
    for n in (300, 1_000, 4_000):
        ours = rate_upper_limit(int(counts[n - 1]), n, 0.05)
        assert ours == pytest.approx(other.upper_[n - 1], rel=0.4)
        assert ours >= counts[n - 1] / n


def test_alarms_come_at_about_the_same_time() -> None:
    """A rate of five times the limit: its point-null test and our one-sided one stop within a factor of two (median)."""
    rng = numpy.random.default_rng(2)
    ratios = []
    for _ in range(40):
        stream = (rng.random(4_000) < 0.05).astype(float)
        theirs = proportions.BernoulliTest(0.01, alpha=0.05, prior=(1.0, 100.0)).fit(stream).stopping_time()
        counts = numpy.cumsum(stream).tolist()
        ours = next(n for n, s in enumerate(counts, 1) if log_e_rate(int(s), n, 0.01, "above") >= math.log(20))
        ratios.append(ours / theirs)
    assert 0.5 <= float(numpy.median(ratios)) <= 2.0


def test_upper_limits_of_a_small_bounded_mean_are_no_wider() -> None:
    """Means near 0, where divergences live: our constant bets against hedged capital with its priors at one half."""
    rng = numpy.random.default_rng(3)
    values = numpy.round(rng.beta(0.5, 49.5, 1_000), 6)
    other = means.BettingCS(alpha=0.1, grid=2_000).fit(values).upper_[-1]
    record = fold({float(v): int(c) for v, c in zip(*numpy.unique(values, return_counts=True), strict=True)}, 0.02)
    ours = mean_upper_limit(record, 0.02, 0.05)
    assert values.mean() < ours <= other * 1.1
    assert values.mean() < share_upper_limit(record, 0.02, 0.05)
