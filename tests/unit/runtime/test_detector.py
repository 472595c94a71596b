"""The restarting detector: what a unit adds, how health falls and returns, what the contract's interval means."""

from __future__ import annotations

import json
import math
import random
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.elaborate.contract import Action
from kcverify.runtime.detector import DAY, KINDS, Detector, units_between_alarms
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.sequential import bets, log_sum, rate_points
from kcverify.source import Source, Span

SPAN = Span(Source("x.kc", "x"), 0, 1)
RULE = Action("L2", "guard", SPAN, false_alarm_every=Fraction(30 * DAY))


def naive(values: list[float], limit: float, side: str) -> tuple[float, float]:
    """Both recursions in their plain form: `M_j <- e_j max(M_j, 1)` and `R_j <- e_j (R_j + 1)`; `ln M`, `ln R`."""
    points = rate_points(limit, side)
    best, summed = [1.0] * len(points), [0.0] * len(points)
    for x in values:
        for j, (_, up, down) in enumerate(points):
            e = math.exp(up if x else down)
            best[j], summed[j] = e * max(best[j], 1.0), e * (summed[j] + 1.0)
    weights = [math.exp(w) for w, _, _ in points]
    means = [math.fsum(w * x for w, x in zip(weights, xs, strict=True)) for xs in (best, summed)]
    return math.log(means[0]), math.log(means[1])


@pytest.mark.parametrize("side", ["above", "below"])
def test_it_is_the_plain_recursion(side: str) -> None:
    draw = random.Random(1)
    values = [float(draw.random() < 0.03) for _ in range(400)]
    detector = Detector("binary", 0.01, 1e9, side)
    detector.extend(values)
    assert (detector.log_e, detector.log_r) == pytest.approx(naive(values, 0.01, side), abs=1e-9)
    assert detector.seen == 400


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.03, 0.5, 1.0]), st.integers(1, 30)), min_size=1, max_size=12),
    st.sampled_from([0.01, 0.3]), st.sampled_from(["above", "below"]),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_shares_against_long_decimals(runs: list[tuple[float, int]], limit: float, side: str) -> None:
    """Both recursions with 50 digits, one unit at a time, beside runs that are taken in at once."""
    detector, one = Detector("share", limit, 1e300, side), Decimal(1)
    with localcontext() as context:
        context.prec = 50
        sizes = [Decimal(b) if side == "above" else -Decimal(b) for b in bets(limit, side)]
        best, summed = [one] * 16, [Decimal(0)] * 16
        for value, count in runs:
            detector.add(value, count)
            factors = [one + size * (Decimal(value) - Decimal(limit)) for size in sizes]
            for _ in range(count):
                best = [f * max(m, one) for f, m in zip(factors, best, strict=True)]
                summed = [f * (r + one) for f, r in zip(factors, summed, strict=True)]
        assert detector.log_e == pytest.approx(float((sum(best) / 16).ln()), abs=1e-9)
        assert detector.log_r == pytest.approx(float((sum(summed) / 16).ln()), abs=1e-9)


@given(
    st.sampled_from(KINDS), st.sampled_from([1e-9, 0.01, 0.5, 0.999]), st.sampled_from([2.0, 100.0, 1e6, 1e300]),
    st.sampled_from(["above", "below"]),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from([1, 2, 7, 10**4, 10**12])), max_size=12),
)  # fmt: skip
@settings(deadline=None)
def test_health_is_0_at_the_alarm_alone_and_no_number_is_lost(
    kind: str, limit: float, units: float, side: str, runs: list[tuple[float, int]]
) -> None:
    detector = Detector(kind, limit, units, side)
    for value, count in runs:
        detector.add(round(value) if kind == "binary" else value, count)
        assert 0.0 <= detector.health <= 1.0
        assert (detector.health == 0.0) == detector.alarm
        if detector.alarm:
            assert detector.log_r >= detector.log_threshold - 1e-9 and detector.log_e >= detector.log_threshold / 2
        assert not any(math.isnan(x) or x == math.inf for x in (*detector.wealth, *detector.summed))
        assert detector.log_r >= detector.log_e - 1e-9, "the sum over all starts is at least the best one"


@pytest.mark.parametrize(
    ("side", "values", "log_e", "log_r"),
    [
        ("above", [0.0] * 1000, -0.058156817, 4.648868470),
        ("above", [0.0] * 100 + [1.0] * 3, 8.140363410, 9.465964778),
        ("above", ([1.0] + [0.0] * 32) * 20, 7.172235332, 11.092374216),
        ("below", [0.0] * 500, 3.825819405, 8.599575193),
        ("below", ([0.0] * 300 + [1.0]) * 5, 3.535051153, 9.103241550),
    ],
)
def test_vectors(side: str, values: list[float], log_e: float, log_r: float) -> None:
    detector = Detector("binary", 0.01, 1e6, side)
    detector.extend(values)
    assert (detector.log_e, detector.log_r) == pytest.approx((log_e, log_r), abs=1e-8)
    assert naive(values, 0.01, side) == pytest.approx((log_e, log_r), abs=1e-8)


def test_a_flawless_stream_never_alarms_however_small_the_interval() -> None:
    """`R` counts the starts, and passes a small threshold by their number alone."""
    for units in (2.0, 20.0, 100.0):
        detector = Detector("binary", 0.01, units)
        detector.add(0.0, 100_000)
        assert detector.health == 1.0 and not detector.alarm
    assert detector.log_r > detector.log_threshold


@pytest.mark.parametrize("kind", ["binary", "share"])
@pytest.mark.parametrize("side", ["above", "below"])
def test_a_run_of_equal_units_is_taken_in_at_once(kind: str, side: str) -> None:
    draw = random.Random(2)
    for _ in range(30):
        runs = [(float(draw.random() < 0.3), draw.randint(0, 40)) for _ in range(12)]
        one, many = Detector(kind, 0.1, 1e4, side), Detector(kind, 0.1, 1e4, side)
        for value, count in runs:
            one.extend([value] * count)
            many.add(value, count)
        assert many.wealth == pytest.approx(one.wealth, abs=1e-9)
        assert many.summed == pytest.approx(one.summed, abs=1e-9)
        assert many.seen == one.seen


def test_a_share_adds_the_bets_of_its_clause() -> None:
    detector = Detector("share", 0.01, 1e6)
    detector.add(0.2)
    steps = [math.log1p(b * 0.19) for b in bets(0.01, "above")]
    assert detector.log_e == pytest.approx(log_sum(steps) - math.log(16))


def test_no_debt_after_a_long_good_past() -> None:
    """The alarm comes as soon after a million good units as after none."""

    def delay(past: int) -> int:
        detector = Detector("binary", 0.01, 1e5)
        detector.add(0.0, past)
        for n in range(1, 200):
            detector.add(1.0)
            if detector.alarm:
                return n
        return 200

    assert delay(1_000_000) <= delay(0) + 1 <= 6


def test_health_falls_to_zero_at_the_alarm_and_returns() -> None:
    detector = Detector("binary", 0.01, 1e6)
    assert detector.health == 1.0
    seen = []
    for _ in range(8):
        detector.add(1.0)
        seen.append(detector.health)
    assert seen == sorted(seen, reverse=True) and seen[-1] == 0.0
    assert detector.alarm
    detector.add(1.0, 10_000)
    detector.add(0.0, 20_000)
    assert detector.health > 0.75, "wealth is capped, so that health returns once the drift has ended"
    detector.reset()
    assert (detector.health, detector.seen) == (1.0, 0)


def test_the_mirror_image_returns_on_good_shadow_traffic_only() -> None:
    good, bad = Detector("binary", 0.01, 1e4, "below"), Detector("binary", 0.01, 1e4, "below")
    good.add(0.0, 1_200)
    assert good.alarm
    draw = random.Random(3)
    for _ in range(3_000):
        bad.add(float(draw.random() < 0.03))
        assert not bad.alarm
    bad.add(0.0, 1_200)
    assert bad.alarm, "a bad past is no debt either"


def test_what_is_not_in_the_range_counts_as_the_worst() -> None:
    one, other = Detector("share", 0.1, 1e4), Detector("share", 0.1, 1e4)
    one.extend([math.nan, math.inf, -1.0])
    other.extend([1.0, 1.0, 1.0])
    assert one.wealth == other.wealth


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["above", "below"])
def test_false_alarms_come_no_more_often_than_stated(kind: str, side: str) -> None:
    """At the limit itself, the worst good stream: mean units to an alarm at least the threshold.

    Values of 0 and 1 come near it, so that a threshold that was too low would show.
    """
    draw, alarms, total, limit = random.Random(5), 0, 8_000, 0.2
    detector = Detector(kind, limit, 100.0, side)
    for _ in range(total):
        detector.add(draw.betavariate(4.0, 16.0) if kind == "mean" else float(draw.random() < limit))
        if detector.alarm:
            alarms += 1
            detector.reset()
    assert total / max(alarms, 1) >= 100
    assert kind == "mean" or total / alarms <= 500


def test_state_is_saved_and_restored_whole() -> None:
    detector = Detector("binary", 0.01, 1e5, "below")
    detector.extend([0.0, 0.0, 1.0, 0.0])
    detector.add(1.0)
    saved = json.loads(json.dumps(detector.state_dict(), allow_nan=False))
    assert None in saved["wealth"], "a bet on the rate 0 has lost all"
    other = Detector("binary", 0.01, 1e5, "below")
    other.load_state_dict(saved)
    assert other.state_dict() == detector.state_dict()
    short, no_number = {"summed": [0.0]}, {"summed": [math.nan, *saved["summed"][1:]]}
    for wrong in (saved | {"wealth": [0.0]}, saved | short, saved | no_number):
        with pytest.raises(MonitorInputError, match="state"):
            other.load_state_dict(wrong)
    with pytest.raises(MonitorInputError, match="state"):
        Detector("binary", 0.01, 1e6, "below").load_state_dict(saved)
    other.load_state_dict({k: v for k, v in saved.items() if k != "summed"})
    assert other.summed == other.wealth == detector.wealth, "of a version without sums: never more than they were"


def test_order_matters() -> None:
    late, early = Detector("binary", 0.01, 1e6), Detector("binary", 0.01, 1e6)
    late.extend([0.0] * 500 + [1.0] * 4)
    early.extend([1.0] * 4 + [0.0] * 500)
    assert late.health < 0.5 < early.health


def test_the_interval_of_the_contract_in_units() -> None:
    assert units_between_alarms(RULE, Fraction(20)) == 30 * DAY * 20
    counted = Action("L2", "guard", SPAN, false_alarm_every=Fraction(5000), false_alarm_unit="requests")
    assert units_between_alarms(counted, None) == 5000
    detector = Detector.of_rule(RULE, "share", 0.01, traffic=Fraction(20))
    assert detector.log_threshold == pytest.approx(math.log(51_840_000))
    assert Detector.of_rule(RULE, "share", 0.01, traffic=Fraction(2), side="below").side == "below"


@pytest.mark.parametrize(
    ("rule", "traffic", "what"),
    [
        (Action("L2", "guard", SPAN), Fraction(20), "no interval"),
        (RULE, None, "units a second"),
        (RULE, Fraction(0), "at least 2"),
    ],
)
def test_a_rule_without_enough_is_refused(rule: Action, traffic: Fraction | None, what: str) -> None:
    with pytest.raises(MonitorInputError, match=what):
        units_between_alarms(rule, traffic)


@pytest.mark.parametrize(
    "wrong", [("none", 0.1, 1e4, "above"), ("share", 0.0, 1e4, "above"), ("share", 0.1, 1.0, "above"),
              ("share", 0.1, math.nan, "above"), ("share", 0.1, 1e4, "left")],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: tuple[str, float, float, str]) -> None:
    with pytest.raises(MonitorInputError):
        Detector(*wrong)
