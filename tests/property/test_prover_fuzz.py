"""The prover on random near-tight questions and contracts: never wrong at any precision, the same however it is asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction as F
from random import Random

import pytest
import random_questions as rq
from random_contracts import Draft, contract_of, near_tight
from worlds import broken

from kcverify.exact import decimal_up
from kcverify.prove import corner, linear
from kcverify.prove.encoding import encode
from kcverify.prove.obligations import applies, atoms, certifiable, in_graph, obligations, whole_piece
from kcverify.prove.prover import prove
from kcverify.prove.question import corner as question_corner
from kcverify.prove.question import decide
from kcverify.prove.question import linear as question_linear
from kcverify.prove.question import paving as question_paving
from kcverify.prove.smtlib import smtlib
from kcverify.prove.verdict import Limits, Status

TRUTH = {Status.PROVED: True, Status.REFUTED: False}


def questions(seed: int, n: int):
    rng = Random(seed)
    out = []
    while len(out) < n:
        found = rq.near_tight(rng)
        if found is not None:
            out.append(found)
    return out


@pytest.mark.parametrize("seed", range(6))
def test_300_questions_at_few_bits_are_never_wrong(seed):
    decided = 0
    for i, (question, truth) in enumerate(questions(seed, 50)):
        effort = Limits(constant_bits=6 + i % 7, doublings=0)
        answer = question_linear.linear(question, effort)
        if answer is not None:
            decided += 1
            assert TRUTH[answer.status] is truth, (question, answer)
    assert decided >= 10


@pytest.mark.parametrize("seed", range(100, 103))
def test_questions_at_full_precision_are_all_decided(seed):
    for question, truth in questions(seed, 50):
        answer = decide(question)
        assert TRUTH[answer.status] is truth, (question, answer)


def test_steps_never_disagree():
    for question, truth in questions(200, 40):
        answers = [
            question_corner.corner(question, Limits()),
            question_linear.linear(question, Limits()),
            question_paving.paving(question, Limits(boxes=40)),
        ]
        found = {TRUTH[a.status] for a in answers if a is not None and a.status in TRUTH}
        assert found <= {truth}


@pytest.mark.parametrize("name", rq.REWRITINGS)
def test_a_rewritten_question_has_the_same_answer(name):
    for question, _ in questions(300, 25):
        assert decide(rq.REWRITINGS[name](question)).status is decide(question).status


def test_a_refined_question_stays_proved_and_halves_make_a_whole():
    rng = Random(5)
    for question, truth in questions(400, 40):
        if truth:
            assert decide(rq.refined(question, rng)).status is Status.PROVED
        halves = [decide(half).status for half in rq.split(question)]
        assert (set(halves) == {Status.PROVED}) is truth


@pytest.mark.needs("cvc5")
def test_cvc5_agrees_on_questions():
    from kcverify.prove.second_solver import second_opinion

    for question, truth in questions(500, 12):
        found = second_opinion(question_linear.smtlib(question, Limits()))
        assert found == ("unsat" if truth else "sat"), question


SEEDS = range(56)


@pytest.mark.parametrize("chunk", range(8))
def test_no_world_breaks_a_proved_claim(chunk):
    seen: Counter[str] = Counter()
    for seed in list(SEEDS)[chunk::8]:
        rng = Random(seed)
        draft = near_tight(rng)
        if not draft.claims:
            continue
        contract = contract_of(draft.text())
        verdicts = prove(contract)
        seen.update(v.status.value for v in verdicts)
        assert broken(contract, verdicts, rng, 10) == [], draft.text()
    assert seen["PROVED"]


def statuses(draft: Draft) -> dict[tuple[str, str], str]:
    return {(v.claim.name, v.scope): v.status.value for v in prove(contract_of(draft.text()))}


def drafts(start: int, n: int) -> list[Draft]:
    found = (near_tight(Random(seed)) for seed in range(start, start + 3 * n))
    return [x for x in found if x.claims][:n]


def _times(limit: str, factor: F) -> str:
    number, *rest = limit.removeprefix("<= ").split(" ", 1)
    return " ".join(["<=", decimal_up(F(number) * factor, 30), *rest])


def unbanded(draft: Draft) -> Draft:
    """The same without its bands."""

    def whole(lines):
        return tuple(replace(x, modifiers=x.modifiers.split(" when")[0]) for x in lines)

    return replace(draft, clauses=whole(draft.clauses), claims=whole(draft.claims))


def _scaled(draft: Draft, factor: F) -> Draft:
    """Logit limits and temperatures times a factor, for drafts without bands."""
    moved = tuple(
        replace(c, limit=_times(c.limit, factor))
        if c.metric.startswith("logit") and "temperature" not in c.limit
        else c
        for c in draft.clauses
    )
    return replace(draft, low=draft.low * factor, high=draft.high * factor, clauses=moved)


def test_logits_and_temperature_have_no_scale_of_their_own():
    for draft in map(unbanded, drafts(600, 6)):
        assert statuses(_scaled(draft, F(5, 2))) == statuses(draft), draft.text()


def test_order_and_redundant_clauses_change_nothing():
    for draft in drafts(700, 5):
        known = statuses(draft)
        assert statuses(replace(draft, clauses=tuple(reversed(draft.clauses)))) == known, draft.text()
        twice = tuple(replace(c, name=f"{c.name}_again") for c in draft.clauses)
        assert statuses(replace(draft, clauses=(*draft.clauses, *twice))) == known, draft.text()


def test_a_narrower_range_of_temperatures_keeps_what_is_proved():
    for draft in drafts(800, 5):
        known = statuses(draft)
        narrow = statuses(replace(draft, low=F(7, 10), high=F(19, 20)))
        assert all(narrow[k] == "PROVED" for k, v in known.items() if v == "PROVED"), draft.text()


def test_a_clause_and_its_two_bands_say_the_same():
    for draft in drafts(900, 6):
        if any("when" in c.modifiers for c in draft.clauses):
            continue
        known = statuses(draft)
        bands = (" when temperature in [0.6, 0.8)", " when temperature in [0.8, 1.0]")
        cut = tuple(
            replace(c, name=f"{c.name}{i}", modifiers=c.modifiers + band)
            for c in draft.clauses
            for i, band in enumerate(bands)
        )
        found = statuses(replace(draft, clauses=cut))
        assert all(found[k] == "PROVED" for k, v in known.items() if v == "PROVED"), draft.text()
        assert all(known[k] == "PROVED" for k, v in found.items() if v == "PROVED"), draft.text()


def _linear_answers(contract):
    for o in obligations(contract):
        usable = [c for c in contract.clauses if in_graph(c) and applies(c, o.scope) and not c.limit.hole]
        counted = [c for c in usable if certifiable(c, usable)]
        whole = whole_piece(contract, o.scope)
        boxes = corner.piece_parameters(contract, o, whole)
        encoding = encode(whole, boxes, [a for c in counted for a in atoms(c)], o.atoms)
        yield o, encoding, counted, linear.entails(encoding, counted, o.atoms, Limits())


def test_corner_and_linear_agree_where_nothing_is_coupled():
    """A proof by one of them is one by the other, but for a claim within a hair of its bound."""
    for draft in drafts(1000, 5):
        plain = replace(draft, claims=tuple(replace(c, modifiers=c.modifiers.split(" when")[0]) for c in draft.claims))
        contract = contract_of(plain.text())
        verdicts = {(v.claim.name, v.scope): v for v in prove(contract)}
        for o, _, _, answer in _linear_answers(contract):
            verdict = verdicts[o.claim.name, o.scope]
            if answer.proved:
                assert verdict.status is not Status.REFUTED, plain.text()
            coupled = any(linear.coupled(c) for c in contract.clauses)
            if (
                not coupled
                and len(o.atoms) == 1
                and verdict.status is Status.PROVED
                and not any(r.fact.lemma for r in verdict.best)
            ):
                assert answer.proved, plain.text()


@pytest.mark.needs("cvc5")
def test_cvc5_agrees_on_contracts():
    from kcverify.prove.second_solver import second_opinion

    for draft in drafts(1100, 3):
        for o, encoding, counted, answer in list(_linear_answers(contract_of(draft.text())))[:3]:
            opinion = second_opinion(smtlib(encoding, counted, o.atoms))
            assert opinion in ("sat", "unsat")
            if answer.proved or not answer.reason:
                assert (opinion == "unsat") is answer.proved
