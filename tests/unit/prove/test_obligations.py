"""Clauses as facts, claims as obligations: slices, exceptions, bands, limits that move with the temperature."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from written import clause, contract

from kcverify.bounds.graph import Node
from kcverify.catalog.model import Mode
from kcverify.prove.obligations import (
    Piece,
    applies,
    atoms,
    certifiable,
    facts,
    in_graph,
    mode_of,
    narrowed,
    obligations,
    pieces,
    whole_piece,
)


def test_atoms_of_a_two_sided_ratio():
    found = atoms(clause("importance_ratio in [0.9, 1.2] except 1%"))
    assert [(a.node.quantity, a.constant, a.upper, a.node.rho) for a in found] == [
        ("ratio_above", F(1, 5), True, F(1, 100)),
        ("ratio_below", F(1, 10), True, F(1, 100)),
    ]
    (above,) = atoms(clause("importance_ratio <= 1.2"))
    (below,) = atoms(clause("importance_ratio >= 0.9"))
    assert (above.node.quantity, below.node.quantity, below.constant) == ("ratio_above", "ratio_below", F(1, 10))


def test_a_mean_has_no_exception_and_a_maximum_has():
    mean, most = clause("mean tv <= 0.1"), clause("tv <= 0.1 except 2%")
    assert (mode_of(mean), atoms(mean)[0].node) == (Mode.MEAN, Node("tv", Mode.MEAN))
    assert (mode_of(most), atoms(most)[0].node) == (Mode.POINT, Node("tv", Mode.POINT, F(1, 50)))
    assert atoms(clause("p99 tv <= 0.1"))[0].node.rho == F(1, 100)


def test_a_trimmed_span_comes_with_the_mass_outside_its_set():
    trimmed = clause("logit_span(mass = 0.99) <= 0.1 except 1%")
    kept = F(99, 100)
    (atom,) = atoms(trimmed)
    assert atom.node == Node("trimmed_span", Mode.POINT, F(1, 100), kept)
    found = [(f.node, f.value) for f in facts(trimmed, Piece(F(1, 2), F(2), (trimmed,)))]
    assert found == [(atom.node, F(1, 10)), (Node("tail_mass", Mode.POINT, F(0), kept), F(1, 100))]
    assert atoms(clause("logit_span(mass = 1) <= 0.1"))[0].node == Node("logit_span", Mode.POINT)


def statistical(line):
    return contract(more=f"statistical {{ c: {line} -> L1 }}\n").clauses[0]


def test_shares_of_choices_and_perplexities_are_quantities():
    (a,) = atoms(statistical("agreement(top = 1) >= 99%"))
    assert (a.node, a.constant, a.upper) == (Node("disagreement", Mode.MEAN), F(1, 100), True)
    (f,) = atoms(statistical("flip_rate(margin = 0.5) <= 1%"))
    assert (f.node, f.constant, f.upper) == (Node("flips", Mode.MEAN, F(0), F(-1, 2)), F(1, 100), True)
    up, low = atoms(statistical("perplexity_ratio in [0.9, 1.2]"))
    assert (up.node.quantity, up.constant, up.upper) == ("perplexity_factor", F(6, 5), True)
    assert (low.node.quantity, low.constant, low.upper) == ("perplexity_floor", F(9, 10), False)
    for text in ("agreement(top = 2) >= 99%", "ece_drift(bins = own) <= 0.1"):
        assert not in_graph(statistical(text)) and atoms(statistical(text)) == ()


def test_facts_take_the_weakest_limit_of_a_piece():
    sloped = clause("logit_drift <= 0.1 * temperature + 0.01")
    piece = Piece(F(1, 2), F(2), (sloped,))
    drift, span = facts(sloped, piece)
    assert drift.value == F(21, 100)
    assert span.node == Node("effective_span", Mode.POINT)
    assert span.value == 2 * (F(1, 20) + F(1, 100)) / F(1, 2)
    falling = clause("logit_span <= 0.3 - 0.1 * temperature")
    first, second = facts(falling, Piece(F(1, 2), F(2), (falling,)))
    assert (first.value, second.value) == (F(1, 4), F(1, 2))


def test_a_limit_on_the_other_side_is_no_fact():
    floor = clause("mean tv >= 0.01")
    assert facts(floor, Piece(F(1), F(1), (floor,))) == []
    both = clause("mean tv in [0.01, 0.02]")
    assert [f.value for f in facts(both, Piece(F(1), F(1), (both,)))] == [F(1, 50)]


@pytest.mark.parametrize(
    ("line", "here", "elsewhere", "everywhere"),
    [
        ("tv <= 0.1", True, True, True),
        ("tv <= 0.1 except 1%", False, False, True),
        ("mean tv <= 0.1", False, False, True),
        ("tv <= 0.1 on a", True, False, False),
        ("tv <= 0.1 except 1% on a", True, False, False),
        ("mean tv <= 0.1 on a, b", True, True, False),
    ],
)
def test_where_a_clause_applies(line, here, elsewhere, everywhere):
    c = clause(line)
    assert (applies(c, "a"), applies(c, "b"), applies(c, "")) == (here, elsewhere, everywhere)


def test_an_uncertifiable_mean_needs_a_maximum_beside_it():
    mean = "m: mean kl(candidate || reference) <= 0.01 nats -> L1"
    for other, ok in (
        ("x: kl(candidate || reference) <= 1 nats -> L1", True),
        ("x: kl(candidate || reference) <= 1 nats except 1% -> L1", False),
        ("x: kl(reference || candidate) <= 1 nats -> L1", False),
        ("x: kl(candidate || reference) <= 1 nats on a -> L1", False),
        ("x: kl(candidate || reference) <= 1 nats when temperature in [0.6, 0.8) -> L1", False),
        ("x: tv <= 0.1 -> L1", False),
    ):
        c = contract(f"{mean}\n{other}")
        assert certifiable(c.clauses[0], c.clauses) is ok, other
    assert certifiable(clause("mean tv <= 0.1"), ())


def test_pieces_cut_at_the_edges_and_keep_the_closed_upper_end():
    c = contract(
        "x: tv <= 0.1 when temperature in [0.6, 0.8) -> L1\ny: tv <= 0.2 when temperature in [0.7, 1.0] -> L1\n"
        "z: tv <= 0.3 when temperature in [0.9, 1.0) -> L1\nw: tv <= 0.4 -> L1"
    )
    found = [(p.low, p.high, "".join(k.name for k in p.clauses)) for p in pieces(c, "")]
    assert found == [
        (F(3, 5), F(7, 10), "xw"),
        (F(7, 10), F(4, 5), "xyw"),
        (F(4, 5), F(9, 10), "yw"),
        (F(9, 10), F(1), "yzw"),
        (F(1), F(1), "yw"),
    ]


def test_bands_over_the_horizon_are_used_by_no_proof():
    c = contract("x: tv <= 0.1 when horizon in [1, 1] tokens -> L1")
    assert {p.clauses for p in pieces(c, "")} == {()}


def test_without_a_temperature_there_is_one_piece():
    c = contract("x: tv <= 0.1 -> L1", assume="horizon <= 4 tokens")
    assert [(p.low, p.high) for p in pieces(c, "")] == [(1, 1)]
    assert whole_piece(c, "").low == 1


@pytest.mark.parametrize(
    ("band", "low", "high"),
    [("[0.7, 0.8)", F(7, 10), F(4, 5)), ("[0.1, 0.6]", F(3, 5), F(3, 5)), ("[0.9, 2.0]", F(9, 10), F(1))],
)
def test_a_claim_on_a_band_is_asked_there(band, low, high):
    c = contract("", f"g: tv <= 0.1 when temperature in {band}")
    inside = narrowed(c, c.guarantees[0])
    assert (inside.assumptions.temperature.low, inside.assumptions.temperature.high) == (low, high)


def test_a_claim_on_a_band_outside_the_range():
    for band in ("[1.1, 1.2]", "[0.1, 0.6)"):
        c = contract("", f"g: tv <= 0.1 when temperature in {band}")
        assert narrowed(c, c.guarantees[0]) is None


def test_a_claim_on_a_band_of_horizons():
    many = "temperature = 1; sampler = full_softmax; horizon <= 64 tokens; reward in [0, 1]"
    for band, longest in (("[1, 8)", 7), ("[1, 8]", 8), ("[2, 1000]", 64)):
        c = contract("", f"g: reward_drift <= 0.1 when horizon in {band} tokens", assume=many)
        assert narrowed(c, c.guarantees[0]).assumptions.horizon == longest
    c = contract("", "g: reward_drift <= 0.1 when horizon in [65, 70] tokens", assume=many)
    assert narrowed(c, c.guarantees[0]) is None


def test_parameters_come_from_the_assumptions():
    c = contract(
        "",
        "g: clip_share(clip = 0.2) <= 50% on a, b",
        assume="temperature in [0.5, 1.0]; reward in [-1, 2]; sampler = top_p(0.9)",
    )
    one, two = obligations(c)
    assert (one.scope, two.scope) == ("a", "b")
    assert one.parameters.box == {"temperature": (F(1, 2), 1), "reward_range": (3, 3), "clip": (F(1, 5), F(1, 5))}
    assert one.parameters.conditions == frozenset()
