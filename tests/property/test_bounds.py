"""Random and adversarial pairs of distributions never exceed a bound."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.bounds.graph import Fact, Node, Parameters, propagate
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.enclosure import ball, precision, rational
from kcverify.reference import metrics
from kcverify.reference.instance import Instance, Step, two_point

logit = st.fractions(min_value=-8, max_value=8, max_denominator=1000)
error = st.fractions(min_value=-3, max_value=3, max_denominator=1000)
temperature = st.fractions(min_value=F(1, 4), max_value=2, max_denominator=64)


@st.composite
def steps(draw):
    size = draw(st.integers(2, 7))
    z = [draw(logit) for _ in range(size)]
    if draw(st.booleans()):  # errors at the two extremes only: where the bounds are attained
        ends = sorted((draw(error), draw(error)))
        e = [ends[draw(st.integers(0, 1))] for _ in range(size)]
    else:
        e = [draw(error) for _ in range(size)]
    return Step(tuple(z), tuple(a + b for a, b in zip(z, e, strict=True)), (0,))


@settings(max_examples=120, deadline=None)
@given(
    steps(), temperature, st.sampled_from(["logit_drift", "logit_span", "log_ratio", "tv", "kl", "chi2", "bc", "ratio"])
)
def test_token_bounds_hold(step, t, start):
    instance = Instance(step, t, 1)
    with precision(256):
        reached = {name: f(instance.p, instance.q) for name, f in metrics.TOKEN.items()}
        span = max(step.errors) - min(step.errors)
        reached |= {
            "logit_span": ball(span),
            "logit_drift": ball(max(abs(e) for e in step.errors)),
            "effective_span": ball(span / t),
        }
        names = {
            "kl": ("kl_reference_candidate", "kl_candidate_reference"),
            "ratio": ("ratio_above", "ratio_below"),
        }.get(start, (start,))
        premises = [
            Fact(Node(n, Mode.POINT), max(rational(reached[n], up=BY_NAME[n].upper), BY_NAME[n].low), label="given")
            for n in names
        ]
        best = propagate(premises, Parameters({"temperature": (t, t), "horizon": (F(1), F(1))}))
        checked = 0
        for node, fact in best.items():
            if node.quantity in reached and node.mode is Mode.POINT:
                wrong = (
                    reached[node.quantity] > ball(fact.value)
                    if fact.quantity.upper
                    else reached[node.quantity] < ball(fact.value)
                )
                assert not wrong, (node, fact.lemma)
                checked += 1
            if node.quantity == "tv_seq":
                assert not reached["tv"] > ball(fact.value), fact.lemma
        assert checked >= 1


@settings(max_examples=40, deadline=None)
@given(
    st.fractions(min_value=F(1, 1000), max_value=2, max_denominator=1000),
    st.integers(1, 40),
    st.fractions(min_value=0, max_value=F(1, 50), max_denominator=5000),
)
def test_sequence_bounds_hold_with_exceptions(span, horizon, rho):
    instance = Instance(two_point(span, F(1), copies=1), F(1), horizon, min(F(1), horizon * rho))
    box = {"temperature": (F(1), F(1)), "horizon": (F(1), F(horizon)), "reward_range": (F(1), F(1))}
    with precision(256):
        best = propagate([Fact(Node("logit_span", Mode.POINT, rho), span, label="drift")], Parameters(box))
        assert not instance.tv_seq.lower() > ball(best[Node("tv_seq", Mode.SEQUENCE)].value)
        assert not instance.token_value("tv", Mode.MEAN, F(0)) > ball(best[Node("tv", Mode.MEAN)].value)


@pytest.mark.parametrize("horizon", [2, 5, 9])
def test_adaptive_worst_case_by_enumeration(horizon):
    """A plain dynamic programme over two-point steps (a lower bound of the optimum) stays below every sequence bound."""
    span = 0.8
    ratios = [span * i / 24 for i in range(25)]

    def value(h, a, b):
        if h == 0:
            return abs(a - b) / 2
        return max(_split(h, a, b, t) for t in ratios[1:-1])

    import math
    from functools import lru_cache

    def _split(h, a, b, t):
        up, down = math.exp(span - t), math.exp(-t)
        theta = (1 - down) / (up - down)
        return value_cached(h - 1, round(a * theta * up, 12), round(b * theta, 12)) + value_cached(
            h - 1, round(a * (1 - theta) * down, 12), round(b * (1 - theta), 12)
        )

    value_cached = lru_cache(maxsize=None)(value)
    depth = min(horizon, 3)
    reached = value_cached(depth, 1.0, 1.0)
    best = propagate(
        [Fact(Node("effective_span", Mode.POINT), F(8, 10), label="drift")], Parameters({"horizon": (F(1), F(depth))})
    )
    assert reached <= float(best[Node("tv_seq", Mode.SEQUENCE)].value) + 1e-9
