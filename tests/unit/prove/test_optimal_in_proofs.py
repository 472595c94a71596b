"""The sequence recursion inside proofs and budgets: run, shown beside the affinity product, never above it."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from kcverify.bounds.graph import Fact, Node, Parameters, again, propagate
from kcverify.bounds.invert import weakest_premise
from kcverify.bounds.special import SPECIALS, TABLE, Effort
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import HORIZON
from kcverify.driver import derive, load_source
from kcverify.prove.check import check
from kcverify.source import Source

TEXT = """contract c
assume {{ temperature = 1; sampler = full_softmax; horizon <= {horizon} tokens; reward in [0, 1] }}
numerical {{ drift: logit_span <= {limit} -> L2 }}
guarantee {{ safe: reward_drift <= {tolerance} }}
"""


def contract(horizon, limit, tolerance):
    loaded = load_source(Source("t", TEXT.format(horizon=horizon, limit=limit, tolerance=tolerance)))
    assert not loaded.report.errors
    return loaded.contracts[0]


@pytest.mark.parametrize(
    ("span", "horizon", "low", "high"),
    [("0.02", 1024, 0.1273, 0.1274), ("0.2", 64, 0.3127, 0.3131), ("1", 8, 0.5350, 0.5356)],
)
def test_reference_points_in_a_proof(span, horizon, low, high):
    (verdict,) = check(contract(horizon, span, 1)).verdicts
    (route,) = verdict.best
    assert low <= float(route.fact.value) <= high
    assert route.formula is not None
    assert route.formula.value > route.fact.value
    assert "seq_tv_optimal" in verdict.core


def test_a_claim_between_recursion_and_affinity_is_proved():
    assert check(contract(1024, "0.02", "0.128")).verdicts[0].status == "PROVED"
    assert check(contract(1024, "0.02", "0.1271")).verdicts[0].status != "PROVED"


def test_budget_is_about_a_quarter_larger_than_the_affinity_budget():
    derived = derive(contract(1024, "?", "0.05"))
    (budget,) = derived.budgets
    affinity = weakest_premise("seq_affinity", F(5, 100), ((HORIZON, F(1024)),), F(0))
    assert F(120, 100) < budget.value / affinity < F(128, 100)
    assert derived.checked.verdicts[0].status == "PROVED"


@pytest.mark.parametrize("name", SPECIALS)
@pytest.mark.parametrize("effort", [TABLE, Effort(run=True)], ids=["table", "run"])
def test_inverse_is_on_the_safe_side(name, effort):
    corner = ((HORIZON, F(100)),)
    for target in (F(2, 100), F(3, 10), F(9, 10)):
        span = weakest_premise(name, target, corner, F(1, 10_000), effort)
        env = {HORIZON: F(100), **{s: F(1, 10_000) for s in _rho()}}
        assert SPECIALS[name].value(span, env, effort) <= target
    assert weakest_premise(name, F(1, 100), corner, F(1, 1000), effort) is None


def _rho():
    from kcverify.catalog.quantities import RHO

    return (RHO,)


def test_chain_is_evaluated_anew_with_rows_exchanged():
    boxes = Parameters({"horizon": (F(1), F(64)), "reward_range": (F(1), F(1))})
    best = propagate([Fact(Node("effective_span", Mode.POINT), F(2, 10), label="drift")], boxes)
    fact = best[Node("reward_drift", Mode.SEQUENCE)]
    plain = again(fact, boxes, dict.fromkeys(SPECIALS, "seq_affinity"))
    assert float(plain.value) == pytest.approx(0.3844, abs=1e-4)
    assert [f.lemma.name for f in plain.chain() if f.lemma] == ["seq_affinity", "reward_of_tv"]
