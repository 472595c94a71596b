"""The corner step and the prover around it: what is proved, refuted, and left open, and why."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from written import ASSUME, contract, statuses, verdicts

from kcverify.exact import decimal_up
from kcverify.prove.corner import best_routes, clause_routes, weakest_limit
from kcverify.prove.obligations import Piece, atoms, obligations


def test_the_claim_is_hardest_at_one_end():
    c = contract("", "g: tv <= 0.2 * temperature\nh: ess >= 0.5", assume=ASSUME)
    piece = Piece(F(1, 2), F(1), ())
    assert weakest_limit(atoms(c.guarantees[0])[0], piece) == F(1, 10)
    assert weakest_limit(atoms(c.guarantees[1])[0], piece) == F(1, 2)


def test_the_smallest_temperature_counts():
    found = statuses("c: logit_span <= 0.1 -> L1", "t: tv <= 0.04164258\nf: tv <= 0.04164257")
    assert found == {"t": "PROVED", "f": "REFUTED"}


def test_exceptions_of_several_clauses_add_up():
    two = "c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1"
    found = verdicts(
        two,
        "f: tv <= 0.0251 except 1%\nt: tv <= 0.0251 except 2%\nk: importance_ratio in [0.95, 1.05] except 1%\nm: importance_ratio in [0.95, 1.05] except 2%",
    )
    assert [v.status.value for v in found.values()] == ["UNKNOWN", "PROVED", "UNKNOWN", "PROVED"]
    assert "whose exceptions add up to 2%" in found["k"].reason
    mixed = "c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 -> L1"
    assert statuses(
        mixed, "t: tv <= 0.0251 except 1%\nk: importance_ratio in [0.95, 1.05] except 1%\nf: tv <= 0.0251"
    ) == {"t": "PROVED", "k": "PROVED", "f": "UNKNOWN"}


def test_a_two_sided_clause_fails_on_one_set_of_contexts():
    beside = "\nd: importance_ratio <= 1.04 except 1% -> L1\ne: importance_ratio >= 0.96 except 1% -> L1"
    for more in ("", beside):
        found = statuses(
            "c: importance_ratio in [0.95, 1.05] except 1% -> L1" + more,
            "t: tv <= 0.0251 except 1%\nk: importance_ratio in [0.95, 1.05] except 1%",
        )
        assert found == {"t": "PROVED", "k": "PROVED"}


def test_three_clauses_are_never_taken_for_two():
    three = "c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1\ne: log_ratio <= 0.2 except 2% -> L1"
    assert statuses(three, "f: tv <= 0.0251 except 1.5%\nk: tv <= 0.1 except 2%\nn: tv <= 0.05 except 1%") == {
        "f": "UNKNOWN",
        "k": "PROVED",
        "n": "UNKNOWN",
    }


def test_slices_inherit_only_what_holds_everywhere():
    text = "c: tv <= 0.02 -> L1\nd: tv <= 0.01 except 1% -> L1\ne: mean tv <= 0.005 -> L1\nf: tv <= 0.001 on a -> L1"
    found = statuses(
        text,
        "t: tv <= 0.02 on b\nu: tv <= 0.01 except 1% on b\nv: mean tv <= 0.005 on b\nw: tv <= 0.001 on a\nx: tv <= 0.001 on a, b",
    )
    assert found == {
        "t@b": "PROVED",
        "u@b": "UNKNOWN",
        "v@b": "UNKNOWN",
        "w@a": "PROVED",
        "x@a": "PROVED",
        "x@b": "UNKNOWN",
    }


@pytest.mark.parametrize("sampler", ["greedy", "top_p(0.9)", "top_k(40)"])
@pytest.mark.parametrize(
    "line", ["logit_span <= 0.1", "logit_span <= 0.1 * temperature", "log_ratio <= 0.1", "tv <= 0.1"]
)
def test_a_sampler_that_truncates_proves_and_refutes_nothing_from_logits(sampler, line):
    assume = ASSUME.replace("full_softmax", sampler)
    found = statuses(f"c: {line} -> L1", "g: tv <= 0.09\nh: tv <= 0.0001", assume=assume)
    if line.startswith("logit"):
        assert set(found.values()) == {"UNKNOWN"}
    assert "REFUTED" not in found.values()


def test_what_is_missing_is_named():
    found = verdicts(
        "c: logit_span <= 0.1 -> L1", "g: reward_drift <= 0.5\nh: tv <= 0.5", assume="sampler = full_softmax"
    )
    assert "horizon" in found["g"].reason and "reward" in found["g"].reason
    assert all(v.status.value == "UNKNOWN" for v in found.values())
    without = verdicts("c: tv <= 0.1 -> L1", "g: tv <= 0.1", assume="horizon <= 4 tokens")["g"]
    assert (without.status.value, without.assumed) == ("PROVED", ("sampler = full_softmax",))


def test_an_uncertifiable_mean_is_shown_and_not_counted():
    text, claim = "m: mean kl(candidate || reference) <= 1e-4 nats -> L1", "g: mean tv <= 0.1"
    found = verdicts(text, claim)["g"]
    assert found.status.value == "UNKNOWN"
    (route,) = clause_routes(contract(text, claim), obligations(contract(text, claim))[0])
    assert route.holds and not route.counted
    assert statuses(text + "\nx: kl(candidate || reference) <= 9 nats -> L1", claim) == {"g": "PROVED"}


def test_a_claim_on_a_band_is_judged_on_the_band():
    found = statuses(
        "c: logit_span <= 0.1 -> L1",
        "t: tv <= 0.032 when temperature in [0.8, 1.0]\nf: tv <= 0.032\nk: tv <= 0.031 when temperature in [0.8, 1.0]\nm: tv <= 0.5 when temperature in [2, 3]",
    )
    assert found == {"t": "PROVED", "f": "REFUTED", "k": "REFUTED", "m": "UNKNOWN"}


def test_limits_that_fall_with_the_temperature():
    found = statuses(
        "c: logit_span <= 0.3 - 0.2 * temperature -> L1",
        "t: tv <= 0.075\nf: tv <= 0.0748\nk: logit_span <= 0.18\nn: logit_span <= 0.17",
    )
    assert found == {"t": "PROVED", "f": "REFUTED", "k": "PROVED", "n": "REFUTED"}


def test_lower_bounded_quantities():
    many = ASSUME.replace("horizon <= 1", "horizon <= 8")
    found = statuses("c: logit_span <= 0.1 -> L1", "t: ess >= 0.94\nf: ess >= 0.97", assume=many)
    assert found == {"t": "PROVED", "f": "REFUTED"}
    assert statuses("c: logit_span <= 0.1 except 0.1% -> L1", "f: ess >= 0.1", assume=many) == {"f": "REFUTED"}


def test_an_exception_bounds_no_mean_of_an_unbounded_metric():
    found = statuses(
        "c: kl(candidate || reference) <= 0.001 nats except 1% -> L1",
        "f: mean kl(candidate || reference) <= 100 nats\nt: mean tv <= 0.04",
    )
    assert found["t"] == "PROVED" and found["f"] != "PROVED"


def test_a_gap_is_the_bound_itself():
    v = verdicts("c: logit_span <= 0.1 -> L1", "f: tv <= 0.04")["f"]
    assert abs(v.gap - F("0.0416425707")) < F(1, 10**9)
    assert statuses("c: logit_span <= 0.1 -> L1", "t: tv <= 0.0416425708") == {"t": "PROVED"}


def test_routes_are_one_per_atom_and_the_tightest():
    c = contract("c: tv <= 0.02 -> L1\nd: tv <= 0.01 -> L1\ne: logit_span <= 0.1 -> L1", "g: tv <= 0.015")
    (route,) = best_routes(c, obligations(c)[0])
    assert (route.fact.label, route.slack) == ("d", F(1, 200))
    assert [r.fact.sources() for r in clause_routes(c, obligations(c)[0])] == [("d",), ("c",), ("e",)]


def test_an_unknown_prints_the_bound_that_was_run_and_no_other():
    long = "temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 64 tokens; reward in [0, 1]"
    text = "d: logit_span <= 0.02 -> L1\nx: sequence_ratio <= 1.5 -> L1"  # no instance decides x, so nothing is refuted
    (v,) = verdicts(text, "g: reward_drift <= 0.05", assume=long).values()
    assert v.status.value == "UNKNOWN"
    (route,) = (r for r in v.routes if r.fact.sources() == ("d",))
    assert route.fact.value == v.best[0].fact.value == v.gap
    assert f"the best bound is {decimal_up(v.gap, 6)}, above" in v.reason
    assert f"a tolerance of {decimal_up(v.gap, 6)}" in v.remedies


def test_a_gap_is_a_limit_as_the_claim_is_written():
    found = verdicts(
        "c: log_ratio <= 0.1 -> L1\nx: sequence_ratio <= 1.5 -> L1",
        "g: importance_ratio >= 0.95\nh: affinity >= 0.9999",
    )
    assert [(v.status.value, v.gap_upper) for v in found.values()] == [("UNKNOWN", False), ("UNKNOWN", False)]
    low = found["g"].gap
    assert F(9048, 10000) < low < F(9049, 10000) and "below 0.95" in found["g"].reason
