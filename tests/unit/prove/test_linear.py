"""The linear step: bands, coupled temperatures, its cores, and what it must not prove."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
import z3
from written import contract

from kcverify.bounds.invert import weakest_premise
from kcverify.catalog.quantities import HORIZON
from kcverify.prove import linear
from kcverify.prove.corner import piece_parameters
from kcverify.prove.encoding import encode
from kcverify.prove.obligations import atoms, obligations, whole_piece
from kcverify.prove.smtlib import smtlib
from kcverify.prove.verdict import Limits

BANDS = "c: logit_drift <= 0.02 when temperature in [0.6, 0.8) -> L1\nd: logit_drift <= 0.03 when temperature in [0.8, 1.0] -> L1"


def answers(numerical: str, guarantee: str, limits: Limits | None = None):
    c = contract(numerical, guarantee)
    out = {}
    for o in obligations(c):
        whole = whole_piece(c, o.scope)
        encoding = encode(whole, piece_parameters(c, o, whole), [a for k in c.clauses for a in atoms(k)], o.atoms)
        out[o.claim.name] = linear.entails(encoding, c.clauses, o.atoms, limits or Limits())
    return out


def proofs(numerical: str, guarantee: str) -> str:
    return "".join(k for k, v in answers(numerical, guarantee).items() if v.proved)


def test_bands_together_prove_what_neither_does():
    assert (
        proofs(BANDS, "t: tv <= 0.018749\nf: tv <= 0.018747\nk: logit_drift <= 0.03\nn: logit_drift <= 0.0299") == "tk"
    )
    core = answers(BANDS, "t: tv <= 0.018749")["t"].core
    assert {"c", "d"} <= set(core) and "tv_of_span" in core


@pytest.mark.parametrize("second", ["[0.81, 1.0]", "[0.8, 0.99]", "[0.8, 1.0)"])
def test_a_hole_in_the_bands_proves_nothing(second):
    assert proofs(BANDS.replace("[0.8, 1.0]", second), "f: tv <= 0.5") == ""


def test_a_core_is_minimal():
    text = "c: tv <= 0.02 -> L1\nd: tv <= 0.03 -> L1\ne: logit_span <= 0.2 -> L1\nx: log_ratio <= 0.5 -> L1"
    assert answers(text, "g: tv <= 0.025")["g"].core == ("c",)


def test_limits_in_the_temperature():
    assert (
        proofs(
            "c: logit_span <= 0.1 * temperature -> L1",
            "t: tv <= 0.0249948\nf: tv <= 0.0249947\nk: logit_span <= 0.1 * temperature\nn: logit_span <= 0.099 * temperature",
        )
        == "tk"
    )
    assert (
        proofs("c: tv <= 0.1 * temperature -> L1", "t: tv <= 0.1\nk: tv <= 0.06 + 0.04 * temperature\nf: tv <= 0.06")
        == "tk"
    )


def test_floors_on_single_values_are_never_claimed():
    found = answers("c: tv >= 0.02 except 40% -> L1\nd: tv <= 0.5 -> L1", "f: tv >= 0.01\ng: tv >= 0.02 except 40%")
    assert not any(a.proved for a in found.values())
    assert "no lemma bounds single values from that side" in found["f"].reason
    assert proofs("c: mean tv >= 0.02 -> L1", "t: mean tv >= 0.02\nk: mean tv >= 0.01\nf: mean tv >= 0.03") == "tk"


def test_exceptions_add_up_here_too():
    two = "c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1"
    found = answers(two, "f: importance_ratio in [0.95, 1.05] except 1%\nk: log_ratio <= 0.06 except 1%")
    assert not any(a.proved for a in found.values())
    one = "c: importance_ratio in [0.95, 1.05] except 1% -> L1"
    assert (
        proofs(
            one,
            "t: importance_ratio in [0.94, 1.06] except 1%\nk: log_ratio <= 0.06 except 1%\nf: log_ratio <= 0.05 except 1%",
        )
        == "tk"
    )


def test_a_larger_exception_allows_less():
    assert (
        proofs(
            "c: tv <= 0.02 except 1% -> L1",
            "t: tv <= 0.02 except 2%\nf: tv <= 0.02 except 0.5%\nk: mean tv <= 0.0299\nn: mean tv <= 0.0297",
        )
        == "tk"
    )


def test_a_solver_that_gives_up_proves_nothing():
    found = answers(BANDS, "g: tv <= 0.018749", Limits(solver_ms=0))["g"]
    assert found.proved or "gave up" in found.reason or found.reason == ""


@pytest.mark.parametrize("target", [F(1, 10**9), F(1, 100), F(1, 3)])
def test_the_weakest_premise_holds_and_is_the_weakest(target):
    from kcverify.catalog.lemmas import BY_NAME
    from kcverify.catalog.quantities import BY_NAME as QUANTITIES
    from kcverify.enclosure import value_up

    for name, corner in (
        ("tv_of_span", ()),
        ("kl_of_span_forward", ()),
        ("pinsker_forward", ()),
        ("seq_tv_union", ((HORIZON, F(64)),)),
    ):
        row = BY_NAME[name]
        symbol = QUANTITIES[row.premises[0]].symbol
        rho = next((s for s in row.bound.free_symbols if s.name == "rho"), None)
        env = dict(corner) | ({rho: F(0)} if rho else {})
        x = weakest_premise(name, target, corner, F(0))
        assert value_up(row.bound, {**env, symbol: x}) <= target
        assert value_up(row.bound, {**env, symbol: x * F(10**12 + 1, 10**12)}) > target


def test_a_target_out_of_reach_has_no_premise():
    assert weakest_premise("tv_of_span", F(-1, 10), (), F(0)) is None
    assert weakest_premise("exceedance_mix_tv", F(1, 200), (), F(1, 100)) is None


def test_the_smtlib_form_says_the_same():
    c = contract(BANDS, "t: tv <= 0.018749\nf: tv <= 0.018747")
    for o, result in zip(obligations(c), (z3.unsat, z3.sat), strict=True):
        whole = whole_piece(c, "")
        encoding = encode(whole, piece_parameters(c, o, whole), [a for k in c.clauses for a in atoms(k)], o.atoms)
        solver = z3.SolverFor("QF_LRA")
        solver.from_string(smtlib(encoding, c.clauses, o.atoms))
        assert solver.check() == result


def test_essential_clauses_leave_out_only_what_others_imply():
    text = (
        BANDS
        + "\ne: tv <= 0.02 -> L1\nf: tv <= 0.03 -> L1\ng: mean tv >= 0.001 -> L1\nh: importance_ratio in [0.9, 1.1] except 1% -> L1\nk: importance_ratio in [0.8, 1.2] except 1% -> L1"
    )
    c = contract(text, "t: tv <= 0.5")
    whole = whole_piece(c, "")
    kept = linear.essential(c.clauses, whole, piece_parameters(c, obligations(c)[0], whole))
    assert [k.name for k in kept] == ["c", "d", "e", "g", "h"]


def test_equality_through_a_mean_is_not_missed():
    assert proofs("c: tv <= 0.02 except 1% -> L1", "t: mean tv <= 0.0298\nf: mean tv <= 0.02979999") == "t"
    assert proofs("c: tv <= 0 except 1% -> L1", "t: mean tv <= 0.01") == "t"
    assert proofs("c: log_ratio <= 0.3 -> L1", "t: mean log_ratio <= 0.3") == "t"


def test_an_entailment_asks_only_for_links_that_some_clause_reaches():
    c = contract("c: tv <= 0.02 except 1% -> L1\nd: tv <= 0.03 except 0.1% -> L1", "g: reward_drift <= 0.5")
    (o,) = obligations(c)
    whole = whole_piece(c, "")
    encoding = encode(whole, piece_parameters(c, o, whole), [a for k in c.clauses for a in atoms(k)], o.atoms)
    assert {link.source.quantity for link in encoding.links} <= {"tv", "bc", "bc_seq", "tv_seq"}
    assert {link.source.rho for link in encoding.links if link.source.quantity == "tv"} <= {F(0), F(1, 100), F(1, 1000)}
    assert not any(link.source.rho == 0 and link.source.mode.value == "point" for link in encoding.links)
