"""The restarting detector: what a unit adds, how health falls and returns, what the contract's interval means."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction

import pytest

from kcverify.elaborate.contract import Action
from kcverify.runtime.detector import DAY, Detector, units_between_alarms
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.sequential import bets, log_sum, rate_points
from kcverify.source import Source, Span

SPAN = Span(Source("x.kc", "x"), 0, 1)
RULE = Action("L2", "guard", SPAN, false_alarm_every=Fraction(30 * DAY))


def naive(values: list[float], limit: float, side: str) -> float:
    """The recursion in its plain form: `M_j <- e_j max(M_j, 1)`."""
    points, wealth = rate_points(limit, side), [1.0] * len(rate_points(limit, side))
    for x in values:
        for j, (_, up, down) in enumerate(points):
            wealth[j] = math.exp(up if x else down) * max(wealth[j], 1.0)
    return math.log(math.fsum(math.exp(w) * m for (w, _, _), m in zip(points, wealth, strict=True)))


@pytest.mark.parametrize("side", ["above", "below"])
def test_it_is_the_plain_recursion(side: str) -> None:
    draw = random.Random(1)
    values = [float(draw.random() < 0.03) for _ in range(400)]
    detector = Detector("binary", 0.01, 1e9, side)
    detector.extend(values)
    assert detector.log_e == pytest.approx(naive(values, 0.01, side), abs=1e-9)
    assert detector.seen == 400


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


def test_false_alarms_come_no_more_often_than_stated() -> None:
    """At the limit itself, the worst good stream: mean units to an alarm at least the threshold."""
    draw, alarms, total = random.Random(5), 0, 60_000
    detector = Detector("binary", 0.05, 200.0)
    for _ in range(total):
        detector.add(float(draw.random() < 0.05))
        if detector.alarm:
            alarms += 1
            detector.reset()
    assert total / max(alarms, 1) >= 200


def test_state_is_saved_and_restored_whole() -> None:
    detector = Detector("binary", 0.01, 1e5, "below")
    detector.extend([0.0, 0.0, 1.0, 0.0])
    detector.add(1.0)
    saved = json.loads(json.dumps(detector.state_dict(), allow_nan=True))
    other = Detector("binary", 0.01, 1e5, "below")
    other.load_state_dict(saved)
    assert other.state_dict() == detector.state_dict()
    with pytest.raises(MonitorInputError, match="state"):
        Detector("binary", 0.01, 1e6, "below").load_state_dict(saved)


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
