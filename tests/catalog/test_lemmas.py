"""Every lemma row against its own declaration: one loop over the whole table."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest

from kcverify.bounds.graph import Fact, Node, Parameters, apply, lifts
from kcverify.bounds.shape import lemma_shape
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.lemmas import ROWS
from kcverify.catalog.lemmas.attained import ROWS as WORST_CASES
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import BY_NAME, HORIZON, PARAMETERS, RHO
from kcverify.enclosure import ball, precision, value_down, value_up
from kcverify.reference.witness import WITNESSES

VALUES = {
    "temperature": F(7, 10),
    "horizon": F(37),
    "reward_range": F(2),
    "advantage": F(5),
    "score_norm": F(3, 2),
    "token_score_norm": F(1, 10),
    "clip": F(1, 5),
    "cap": F(3, 2),
    "confidence": F(9, 10),
    "vocabulary": F(50),
}
PARAMETERS_AT = Parameters({k: (v, v) for k, v in VALUES.items()})
IDS = [row.name for row in ROWS]


def samples(row, seed=0):
    rng = random.Random(seed)
    for _ in range(12):
        out = {}
        for name in row.premises:
            q = BY_NAME[name]
            if q.name in ("bc", "bc_seq"):
                out[name] = 1 - F(rng.randint(1, 400), 1000) * F(1, rng.choice((1, 10, 1000)))
            elif q.high is not None:
                out[name] = F(rng.randint(1, 950), 1000) * F(1, rng.choice((1, 1, 40, 10_000)))
            else:
                out[name] = F(rng.randint(1, 900), 1000) * F(1, rng.choice((1, 1, 20, 10_000)))
            if row.name == "seq_tv_expected":
                out[name] /= VALUES["horizon"]
        yield out


def conclude(row, values, parameters=PARAMETERS_AT, rho=F(0)):
    source, target = lifts(row.name)[0]
    facts = tuple(Fact(Node(n, source, rho), v) for n, v in values.items())
    return apply(row, facts, target, parameters)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_declaration_is_complete(row):
    known = {BY_NAME[p].symbol for p in row.premises} | {PARAMETERS[p] for p in row.parameters} | {RHO}
    assert row.bound.free_symbols <= known
    assert row.statement and row.argument and row.source
    assert BY_NAME[row.conclusion]
    if row.attained:
        assert row.attained.witness in WITNESSES


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_monotone_in_every_premise_and_parameter(row):
    signs = lemma_shape(row).signs
    assert all(sign is not None for sign in signs.values()), signs
    wanted = 1 if BY_NAME[row.conclusion].upper else -1
    for p in row.premises:
        assert signs[BY_NAME[p].symbol] == (wanted if BY_NAME[p].upper else -wanted)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_declared_signs_hold_at_samples(row):
    for values in samples(row, seed=1):
        for name in row.premises:
            more = {**values, name: values[name] * F(101, 100) if BY_NAME[name].upper else values[name] * F(99, 100)}
            a, b = conclude(row, values), conclude(row, more)
            assert a is not None and b is not None
            assert b.value >= a.value if BY_NAME[row.conclusion].upper else b.value <= a.value


@pytest.mark.parametrize("row", [r for r in ROWS if r.inverse is not None], ids=lambda r: r.name)
def test_inverse_round_trip(row):
    (premise,) = row.premises
    corner = {**PARAMETERS_AT.corner(row), RHO: F(0)}
    for values in samples(row, seed=2):
        y = value_up(row.bound, {**corner, BY_NAME[premise].symbol: values[premise]})
        if y >= 1 and "Min" in str(row.bound):
            continue
        back = value_up(row.inverse, {**corner, BY_NAME[row.conclusion].symbol: y})
        assert abs(back - values[premise]) <= values[premise] * F(1, 10**18)


@pytest.mark.parametrize("row", [r for r in ROWS if r.attained], ids=lambda r: r.name)
def test_attained_bound_breaks_when_shrunk_by_one_percent(row):
    met = 0
    for values in samples(row, seed=3):
        if row.attained.witness == "chi2_halves" and next(iter(values.values())) > 1:
            continue
        with precision(512):
            found = WITNESSES[row.attained.witness](values, {k: v for k, v in VALUES.items() if k in row.parameters})
            bound = conclude(row, values)
            reached = found.conclusions[row.conclusion]
            for name, value in values.items():
                assert not (
                    found.premises[name] > ball(value) if BY_NAME[name].upper else found.premises[name] < ball(value)
                ), name
            tiny = ball(F(1, 10**30))
            if BY_NAME[row.conclusion].upper:
                assert not reached > ball(bound.value) * (1 + tiny)
                assert reached > ball(bound.value) * 99 / 100
            else:
                assert not reached < ball(bound.value) * (1 - tiny)
                if BY_NAME[row.conclusion].high == 1:
                    assert 1 - reached > ball(1 - bound.value) * 99 / 100
                else:
                    assert reached < ball(bound.value) * 101 / 100 or bound.value == 0
            met += 1
    assert met >= 3


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_zero_drift_gives_zero_bound(row):
    if any(not BY_NAME[p].upper for p in row.premises):
        return
    fact = conclude(row, {p: F(0) for p in row.premises})
    assert fact is not None
    neutral = {
        "perplexity_factor": F(1),
        "mean_perplexity_factor": F(1),
        "clip_room_above": VALUES["clip"],
        "clip_room_below": VALUES["clip"],
    }
    start = neutral.get(row.conclusion, F(0) if BY_NAME[row.conclusion].upper else F(1))
    assert start <= fact.value + F(1, 10**20) and abs(fact.value - start) <= F(1, 10**20)


def test_lifts_follow_jensen():
    by = {row.name: lifts(row.name) for row in ROWS}
    assert (Mode.MEAN, Mode.MEAN) in by["tv_of_span"]
    assert (Mode.MEAN, Mode.MEAN) in by["pinsker_forward"]
    assert (Mode.MEAN, Mode.MEAN) not in by["kl_of_span_forward"]
    assert (Mode.MEAN, Mode.MEAN) not in by["chi2_of_span"]


@pytest.mark.parametrize("row", [r for r in ROWS if r.published is not None], ids=lambda r: r.name)
def test_the_published_form_is_never_below_ours(row):
    assert row.published_as
    assert row.published.free_symbols <= row.bound.free_symbols
    corner = PARAMETERS_AT.corner(row)
    for values in samples(row, seed=4):
        (premise,) = row.premises
        mine = conclude(row, values)
        at = {**corner, RHO: F(0), BY_NAME[premise].symbol: values[premise]}
        high = BY_NAME[row.conclusion].high
        theirs = value_up(row.published, at)
        assert mine.value <= theirs * (1 + F(1, 10**30)) or mine.value == high <= theirs


def test_the_forms_that_the_literature_has_are_named():
    named = {r.name for r in ROWS if r.published is not None}
    wanted = ("pinsker_forward", "tv_of_span", "seq_tv_union", "seq_tv_optimal", "reward_of_tv", "pg_bias_of_tv")
    assert named >= set(wanted)


@pytest.mark.parametrize("row", WORST_CASES, ids=lambda r: r.name)
def test_no_bound_lies_below_an_attained_worst_case(row):
    assert row.statement and row.argument and row.source and row.value.free_symbols
    for x, h in ((F(1, 50), 64), (F(1, 5), 64), (F(1), 8), (F(1, 10), 1)):
        box = Parameters({"horizon": (F(h), F(h))})
        reached = value_down(row.value, {BY_NAME[row.premise].symbol: x, HORIZON: F(h)})
        for name in row.bounds:
            fact = apply(LEMMAS[name], (Fact(Node(row.premise, Mode.POINT), x),), Mode.SEQUENCE, box)
            assert reached <= fact.value <= max(2 * reached, reached + F(1, 10)), (name, x, h)
