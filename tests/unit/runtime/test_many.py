"""One clause on many slices: e-BH, and alpha/K for L3."""

from __future__ import annotations

import math
import random

import pytest

from kcverify.runtime.many import e_bh, judge_slices, rule_of
from kcverify.runtime.sequential import Outcome, judge_binary, log_e_rate

LEVEL = 1.0 - 0.95


def outcomes(counts: list[tuple[int, int]]) -> list[Outcome]:
    return [judge_binary(s, n, 0.01, 0.95) for s, n in counts]


def test_e_bh_by_hand() -> None:
    assert e_bh([], 0.05) == frozenset()
    assert e_bh([math.log(79.9), 0.0, 0.0, 0.0], 0.05) == frozenset()
    assert e_bh([math.log(80.1), 0.0, 0.0, 0.0], 0.05) == {0}
    assert e_bh([math.log(40.1), 0.0, math.log(41.0), 0.0], 0.05) == {0, 2}
    assert e_bh([math.inf, math.log(40.1), -math.inf, 0.0], 0.05) == {0, 1}
    assert e_bh([math.log(20.1)] * 4, 0.05) == {0, 1, 2, 3}


def test_one_slice_keeps_its_own_test() -> None:
    (judged,) = judge_slices(outcomes([(6, 100)]), 0.95, "L1")
    assert (judged.outcome.verdict, judged.rule) == ("fail", "")
    assert judged.log_threshold_fail == pytest.approx(math.log(20))


def test_a_slice_that_would_fail_alone_waits_for_more_evidence_among_many() -> None:
    counts = [(6, 100)] + [(1, 100)] * 9
    judged = judge_slices(outcomes(counts), 0.95, "L2")
    assert judged[0].outcome.verdict == "inconclusive"
    assert "e-BH over 10 slices" in judged[0].outcome.reason
    assert judged[0].log_threshold_fail == pytest.approx(math.log(10 / LEVEL))
    more = judge_slices(outcomes([(10, 100)] + [(1, 100)] * 9), 0.95, "L2")
    assert more[0].outcome.verdict == "fail" and more[0].outcome.reason.endswith("(e-BH over 10 slices)")
    assert {j.outcome.verdict for j in more[1:]} == {"inconclusive"}


def test_e_bh_gives_more_than_alpha_over_k_and_l3_gets_the_stricter_one() -> None:
    counts = [(6, 100)] * 6 + [(1, 100)] * 4
    assert log_e_rate(6, 100, 0.01, "above") < math.log(10 / LEVEL)
    assert [j.outcome.verdict for j in judge_slices(outcomes(counts), 0.95, "L2")][:6] == ["fail"] * 6
    strict = judge_slices(outcomes(counts), 0.95, "L3")
    assert [j.outcome.verdict for j in strict] == ["inconclusive"] * 10
    assert {j.rule for j in strict} == {"alpha/K over 10 slices"}


def test_passing_is_not_corrected() -> None:
    judged = judge_slices(outcomes([(0, 404)] * 8), 0.95, "L1")
    assert {j.outcome.verdict for j in judged} == {"pass"}


def test_outcomes_without_an_e_value_stay() -> None:
    given = [Outcome("fail", "the limit was exceeded"), Outcome("inconclusive", "few")]
    assert [j.outcome for j in judge_slices(given, 0.95, "L2")] == given


def test_one_look_uses_alpha_over_k() -> None:
    assert rule_of(4, "L1", one_look=True) == "alpha/K over 4 slices"
    assert rule_of(1, "L3") == ""


def test_verdicts_do_not_depend_on_the_order_of_the_slices() -> None:
    counts = [(7, 100), (9, 120), (0, 500), (12, 100), (3, 90)]
    forward = judge_slices(outcomes(counts), 0.95, "L2")
    backward = judge_slices(outcomes(counts[::-1]), 0.95, "L2")
    assert forward == backward[::-1]


def test_false_discoveries_and_power_of_50_slices_of_which_5_are_bad() -> None:
    """300 requests a slice, bad slices at five times the limit: FDR far below alpha, power about 0.8."""
    draw, false, found, families = random.Random(4), 0.0, 0.0, 150
    evidence = [log_e_rate(s, 300, 0.01, "above") for s in range(60)]

    def exceeding(rate: float) -> int:
        return sum(draw.random() < rate for _ in range(300))

    for _ in range(families):
        counts = [exceeding(0.05 if i < 5 else 0.01) for i in range(50)]
        rejected = e_bh([evidence[s] for s in counts], 0.05)
        false += sum(i >= 5 for i in rejected) / max(1, len(rejected))
        found += sum(i < 5 for i in rejected) / 5
    assert false / families <= 0.02
    assert found / families >= 0.7
