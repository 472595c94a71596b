"""Minimal sets of clauses, by enumeration and by brute force."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import Contract
from kcverify.output import explain_proof
from kcverify.prove.check import check
from kcverify.prove.cores import CoreLimits, contradictory_sets, explain, minimal_sets, proving_sets, shrink
from kcverify.prove.verdict import Limits
from kcverify.source import Source
from kcverify.syntax.parser import parse

NAMES = "abcdef"
ASSUME = "assume { temperature = 1; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }"


def contract(*lines: str) -> Contract:
    report = Report()
    tree = parse(Source("x.kc", "\n".join(("contract c", *lines)) + "\n"), report)
    assert tree is not None
    [found] = elaborate(tree, report, parameters={})
    assert not report.errors, report.errors
    return found


families = st.lists(st.sets(st.sampled_from(NAMES), min_size=1), max_size=5)


@given(families)
def test_all_minimal_sets_are_found(family: list[set[str]]) -> None:
    def holds(chosen: frozenset[str]) -> bool:
        return any(s <= chosen for s in family)

    expected = {frozenset(s) for s in family if not any(t < s for t in family)}
    found = minimal_sets(NAMES, holds)
    assert found.complete
    assert {frozenset(s) for s in found.found} == expected
    assert len(found.found) == len(expected)


@given(families)
def test_a_shrunk_set_is_minimal(family: list[set[str]]) -> None:
    def holds(chosen: frozenset[str]) -> bool:
        return any(s <= chosen for s in family)

    if family:
        least = frozenset(shrink(holds, NAMES))
        assert holds(least)
        assert not any(holds(least - {n}) for n in least)


@pytest.mark.parametrize("limits", [CoreLimits(sets=2), CoreLimits(questions=3)])
def test_a_search_that_stopped_says_so(limits: CoreLimits) -> None:
    found = minimal_sets(NAMES, lambda chosen: bool(chosen), limits)
    assert not found.complete
    assert len(found.found) <= 2


def test_all_contradictory_sets() -> None:
    found = contradictory_sets(
        contract(
            "statistical {",
            "same: agreement(top = 1) >= 99.9% -> L1; flips: flip_rate in [1%, 5%] -> L1",
            "near: agreement(top = 1) >= 99.5% -> L1; parses: parse_rate >= 99% -> L1",
            "}",
            "numerical { low: tv <= 0.1 -> L1; high: affinity >= 0.9 -> L1 }",
        ),
        Limits(),
    )
    assert found.complete
    assert found.found == (("same", "flips"), ("flips", "near"))


def test_all_proving_sets_and_one_explained() -> None:
    given_ = contract(
        ASSUME,
        "numerical { span: logit_span <= 0.1 -> L1; ratio: log_ratio <= 0.1 -> L1; loose: tv <= 0.9 -> L1 }",
        "guarantee { safe: reward_drift <= 0.06 }",
    )
    [verdict] = check(given_).verdicts
    every = proving_sets(given_, verdict, Limits())
    assert every.found == (("span",), ("ratio",))
    found = explain(given_, verdict, Limits(), every=True)
    assert found is not None
    assert found.core == ("span",)
    assert found.alternatives == every
    [(name, room)] = found.room
    assert name == "span"
    assert 0.24 < room < 0.2403  # tanh(s/4) = 0.06


def test_a_proof_that_needs_two_clauses() -> None:
    given_ = contract(
        "assume { temperature in [0.5, 1]; sampler = full_softmax; horizon <= 1 tokens; reward in [0, 1] }",
        "numerical {",
        "cool: logit_span <= 0.1 when temperature in [0.5, 0.7) -> L1",
        "warm: logit_span <= 0.1 when temperature in [0.7, 1] -> L1",
        "rest: logit_span <= 0.2 -> L1",
        "}",
        "guarantee { safe: reward_drift <= 0.06 }",
    )
    [verdict] = check(given_).verdicts
    assert verdict.status == "PROVED"
    sets = proving_sets(given_, verdict, Limits()).found
    assert sets
    for names in sets:
        for k in range(len(names)):
            assert not any(set(s) <= set(part) for part in combinations(names, k) for s in sets)
    text = explain_proof.explain_text(check(given_), False, every=True)
    assert "why safe holds" in text


def test_nothing_is_explained_where_nothing_is_proved() -> None:
    given_ = contract(ASSUME, "numerical { a: tv <= 0.9 -> L1 }", "guarantee { safe: reward_drift <= 0.06 }")
    answer = check(given_)
    assert explain(given_, answer.verdicts[0], Limits()) is None
    assert explain_proof.explain_text(answer, False) == ""
    assert explain_proof.explain_data(answer, every=True) == {
        "proofs": [],
        "contradictory": {"sets": [], "complete": True},
    }


def test_the_chain_is_numbered_from_the_clause_to_the_claim() -> None:
    given_ = contract(ASSUME, "numerical { span: logit_span <= 0.1 -> L1 }", "guarantee { safe: reward_drift <= 0.06 }")
    text = explain_proof.explain_text(check(given_), False)
    assert "clause `span`, x.kc:3:13" in text
    assert "slack" in text
    [proof] = explain_proof.explain_data(check(given_))["proofs"]
    links = proof["routes"][0]["chain"]
    assert links[0]["from"] == []
    assert all(0 < n <= i for i, link in enumerate(links) for n in link["from"])
    assert proof["core"] == ["span"]
