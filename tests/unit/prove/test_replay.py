"""Counterexamples: every one computed again from its logits, in mpmath at 60 digits, apart from the prover's own code."""

from __future__ import annotations

from fractions import Fraction as F

import mpmath
import pytest
from written import ASSUME, contract, verdicts

from kcverify.catalog.model import Mode
from kcverify.prove.obligations import Atom, atoms
from kcverify.prove.replay import Setting, _beyond, _within, meets, reading
from kcverify.reference.instance import Instance, two_point

SETTING = Setting(F(1), None, None)


def again(counterexample) -> dict[str, mpmath.mpf]:
    """Every token metric of the printed instance."""
    with mpmath.workdps(60):
        t = mpmath.mpf(counterexample.temperature.numerator) / counterexample.temperature.denominator
        sides = []
        for logits in (counterexample.reference_logits, counterexample.candidate_logits):
            e = [mpmath.exp(mpmath.mpf(z.numerator) / z.denominator / t) for z in logits]
            sides.append([x / sum(e) for x in e])
        p, q = sides
        errors = [b - a for a, b in zip(counterexample.reference_logits, counterexample.candidate_logits, strict=True)]
        w = [a / b for a, b in zip(p, q, strict=True)]
        span = max(errors) - min(errors)
        return {
            "tv": sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
            "kl_reference_candidate": sum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True)),
            "kl_candidate_reference": sum(b * mpmath.log(b / a) for a, b in zip(p, q, strict=True)),
            "log_ratio": max(abs(mpmath.log(x)) for x in w),
            "ratio_above": max(w) - 1,
            "ratio_below": 1 - min(w),
            "chi2": sum((a - b) ** 2 / b for a, b in zip(p, q, strict=True)),
            "logit_span": mpmath.mpf(span.numerator) / span.denominator,
            "logit_drift": mpmath.mpf(max(map(abs, errors)).numerator) / max(map(abs, errors)).denominator,
        }


CASES = [
    ("logit_span <= 0.1", "tv <= 0.0416"),
    ("logit_span <= 0.1", "log_ratio <= 0.16"),
    ("logit_span <= 0.1", "kl(reference || candidate) <= 0.0034 nats"),
    ("logit_span <= 0.1", "kl(candidate || reference) <= 0.0034 nats"),
    ("logit_span <= 0.1 * temperature", "tv <= 0.0249"),
    ("logit_drift <= 0.05", "tv <= 0.0416"),
    ("log_ratio <= 0.1", "tv <= 0.0499"),
    ("tv <= 0.05", "log_ratio <= 0.1"),
    ("kl(reference || candidate) <= 0.01 nats", "tv <= 0.07"),
    ("importance_ratio in [0.9, 1.1]", "tv <= 0.04"),
    ("logit_span <= 0.1", "reward_drift <= 0.0416"),
    ("logit_span <= 0.1", "clip_share(clip = 0.2) <= 80%"),
]


@pytest.mark.parametrize(("given", "claim"), CASES)
def test_every_witness_meets_the_clause_and_breaks_the_claim(given, claim):
    v = verdicts(f"c: {given} -> L1", f"g: {claim}")["g"]
    assert v.status.value == "REFUTED"
    c = v.counterexample
    assert F(3, 5) <= c.temperature <= 1
    if c.exceeding_share:
        return
    values = again(c)
    both = contract(f"c: {given} -> L1", f"g: {claim}")
    for a in atoms(both.clauses[0]):
        limit = a.at(c.temperature)
        with mpmath.workdps(60):
            assert values[a.node.quantity] <= mpmath.mpf(limit.numerator) / limit.denominator + mpmath.mpf(10) ** -40
    (goal,) = atoms(both.guarantees[0])
    value = {"reward_drift": values["tv"], "clip_share": max(values["ratio_above"], values["ratio_below"]) * 5}.get(
        goal.node.quantity, values.get(goal.node.quantity)
    )
    assert value > mpmath.mpf(goal.constant.numerator) / goal.constant.denominator


@pytest.mark.parametrize(
    "more",
    [
        "d: tv <= 0.03 -> L1",
        "d: log_ratio <= 0.05 -> L1",
        "d: mean tv <= 0.03 -> L1",
        "d: logit_drift <= 0.02 -> L1",
        "d: tv <= 0.03 on a -> L1",
        "d: tv <= 0.03 when temperature in [0.6, 0.7) -> L1",
    ],
)
def test_no_instance_leaves_out_a_clause(more):
    v = verdicts(f"c: logit_span <= 0.1 -> L1\n{more}", "g: tv <= 0.0416")["g"]
    assert v.status.value != "REFUTED"


def test_a_clause_that_no_pair_decides_blocks_a_refutation_or_is_free():
    free = "runtime { l: p99 latency <= 100 ms -> L1 }\n"
    assert verdicts("c: logit_span <= 0.1 -> L1", "g: tv <= 0.0416", more=free)["g"].status.value == "REFUTED"
    strict = "statistical { s: agreement(top = 1) >= 100% -> L1 }\n"
    v = verdicts("c: logit_span <= 0.1 -> L1", "g: tv <= 0.0416", more=strict)["g"]
    assert v.status.value == "REFUTED"
    logits = v.counterexample
    tops = [max(range(len(z)), key=lambda i, z=z: z[i]) for z in (logits.reference_logits, logits.candidate_logits)]
    assert tops[0] == tops[1]


def test_overlapping_balls_are_neither_within_nor_beyond():
    from flint import arb

    atom = Atom(atoms(contract("c: tv <= 0.1 -> L1").clauses[0])[0].node, F(1, 10))
    unsure = arb("0.1", "0.01")
    assert not _within(unsure, atom, F(1)) and not _beyond(unsure, atom, F(1))
    assert _within(F(1, 10), atom, F(1)) and not _beyond(F(1, 10), atom, F(1))


def test_an_exceeding_share_counts_as_an_exception_and_in_the_mean():
    instance = Instance(two_point(F(1, 10), F(1)), F(1), 1, F(1, 100))
    c = contract(
        "c: tv <= 0.05 except 1% -> L1\nd: tv <= 0.05 except 0.9% -> L1\ne: mean tv <= 0.03 -> L1\nf: mean tv <= 0.04 -> L1"
    )
    assert [meets(instance, k, SETTING, False) for k in c.clauses] == [True, False, False, True]
    assert reading(instance, "tv", Mode.POINT, F(1, 100), SETTING) < F(1, 20).numerator / 20
    assert reading(instance, "pg_bias", Mode.SEQUENCE, F(0), SETTING) is None


def test_exceptions_make_the_worst_response():
    many = ASSUME.replace("horizon <= 1", "horizon <= 8")
    v = verdicts("c: logit_span <= 0.01 except 1% -> L1", "g: reward_drift <= 0.07", assume=many)["g"]
    assert v.status.value == "REFUTED"
    assert v.counterexample.exceeding_share == F(8, 100)
    assert F(7, 100) < v.counterexample.claim_value <= F(9, 100)


def test_the_claim_value_is_reached():
    v = verdicts("c: logit_span <= 0.1 -> L1", "g: tv <= 0.04")["g"]
    value = again(v.counterexample)["tv"]
    assert (
        abs(value - mpmath.mpf(v.counterexample.claim_value.numerator) / v.counterexample.claim_value.denominator)
        < 1e-9
    )
    assert v.counterexample.claim_value <= v.gap


@pytest.mark.parametrize(
    ("given", "claim", "temperature"),
    [
        ("c: logit_span <= 0.05 * temperature -> L1", "logit_span <= 0.025", F(3, 5)),
        ("c: logit_span <= 0.05 * temperature -> L1", "logit_span <= 0.0499", F(1)),
        ("c: tv <= 0.1 - 0.05 * temperature -> L1", "tv <= 0.06", F(3, 5)),
        ("c: logit_span <= 0.05 when temperature in [0.6, 0.8) -> L1\nd: logit_span <= 0.1 when temperature in [0.8, 1.0] -> L1", "tv <= 0.03", F(4, 5)),
        ("c: logit_span <= 0.05 when temperature in [0.6, 0.8) -> L1", "tv <= 0.9", F(1)),
    ],
)  # fmt: skip
def test_a_witness_at_the_temperature_where_the_claim_is_weakest(given, claim, temperature):
    v = verdicts(given, f"g: {claim}")["g"]
    assert (v.status.value, v.counterexample.temperature) == ("REFUTED", temperature)


@pytest.mark.parametrize(
    ("given", "claim"),
    [
        ("c: mean tv <= 0.02 -> L1", "tv <= 0.5"),
        ("c: mean tv <= 0.02 -> L1", "mean kl(reference || candidate) <= 0.1 nats"),
        ("c: mean tv <= 0.02 -> L1\nd: log_ratio <= 0.05 except 5% -> L1", "mean log_ratio <= 1"),
        ("c: tv <= 0.02 except 1% -> L1\nd: mean tv <= 0.005 -> L1", "tv <= 0.5"),
    ],
)
def test_a_mean_leaves_room_for_a_few_exceeding_responses(given, claim):
    v = verdicts(given, f"g: {claim}")["g"]
    assert v.status.value == "REFUTED" and 0 < v.counterexample.exceeding_share < 1


def test_agreement_leaves_room_for_a_few_exceeding_responses():
    few = "statistical { s: agreement(top = 1) >= 99% -> L1 }\n"
    v = verdicts("", "g: agreement(top = 1) >= 99.5%", more=few)["g"]
    assert v.status.value == "REFUTED" and v.counterexample.exceeding_share == F(1, 100)
