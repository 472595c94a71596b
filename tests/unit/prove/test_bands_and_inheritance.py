"""Half-open bands of claims, and clauses of a slice inherited by the slices inside it, up to the certificate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcverify import driver
from kcverify.diagnostics import Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import Contract
from kcverify.prove import kernel
from kcverify.prove.certificate import certificate, differences, statement
from kcverify.prove.check import check
from kcverify.prove.cores import explain
from kcverify.prove.obligations import narrowed, pieces
from kcverify.prove.prover import prove
from kcverify.prove.verdict import Limits, Status
from kcverify.source import Source
from kcverify.syntax.parser import parse

ASSUME = "assume { temperature in [0.6, 1.0]; sampler = full_softmax; horizon <= 64 tokens; reward in [0, 1] }\n"
BANDS = f"""contract bands
{ASSUME}
numerical {{
  cool: logit_span <= 0.01 when temperature in [0.6, 0.8) -> L2
  warm: logit_span <= 0.5 when temperature in [0.8, 1.0]  -> L2
}}
guarantee {{
  token:    tv <= 0.01 when temperature in [0.6, 0.8)
  response: reward_drift <= 0.2 when temperature in [0.6, 0.8)
}}
"""
SLOPED = BANDS.replace("logit_span <= 0.01 when", "logit_span <= 0.01 * temperature when")
CLOSED = BANDS.replace(
    "<= 0.01 when temperature in [0.6, 0.8)\n  resp", "<= 0.01 when temperature in [0.6, 0.8]\n  resp"
)
SLICES = f"""contract slices
{ASSUME}
slice wide   = prompt_tokens >= 100
slice narrow = prompt_tokens >= 1000
numerical {{ drift: logit_span <= 0.01 on wide -> L2 }}
guarantee {{
  token:    tv <= 0.01 on narrow
  response: reward_drift <= 0.2 on narrow
}}
"""


def _contract(text: str) -> Contract:
    report = Report()
    (found,) = elaborate(parse(Source("c.kc", text), report), report, parameters={})
    assert not report.errors
    return found


@pytest.mark.parametrize("text", [BANDS, SLOPED])
def test_a_half_open_claim_is_proved_by_the_clause_of_its_band(text: str) -> None:
    checked = check(_contract(text))
    assert [v.status for v in checked.verdicts] == [Status.PROVED, Status.PROVED]
    doc = certificate(checked)
    said = statement(doc)
    assert [line.split()[0] for line in said[1:]] == ["PROVED", "PROVED"]
    assert all("temperature_end open" in line for line in said[1:])
    assert differences(doc, checked.contract) == []


def test_a_closed_claim_needs_the_clause_that_binds_at_its_end() -> None:
    verdicts = {v.claim.name: v.status for v in check(_contract(CLOSED)).verdicts}
    assert verdicts == {"token": Status.REFUTED, "response": Status.PROVED}


def test_the_pieces_of_a_half_open_claim_leave_its_end_out() -> None:
    contract = _contract(BANDS)
    within = narrowed(contract, contract.guarantees[0])
    assert within is not None and within.assumptions.temperature is not None
    assert within.assumptions.temperature.open_high
    assert [(p.low, p.high, [c.name for c in p.clauses]) for p in pieces(within, "")][-1][2] == ["cool"]
    whole = replace(contract.guarantees[0], band=None)
    assert narrowed(contract, whole) is contract


def test_a_half_open_claim_beyond_the_assumed_range_keeps_its_end() -> None:
    contract = _contract(
        BANDS.replace("when temperature in [0.6, 0.8)\n  resp", "when temperature in [0.6, 1.2)\n  resp")
    )
    within = narrowed(contract, contract.guarantees[0])
    assert within is not None and within.assumptions.temperature is not None
    assert not within.assumptions.temperature.open_high


def test_the_kernel_refuses_a_proof_that_closes_the_end() -> None:
    doc = certificate(check(_contract(BANDS)))
    for claim in doc["claims"]:
        del claim["temperature_end"]
    doc["seal"] = kernel.seal(doc)
    with pytest.raises(ValueError, match="at other temperatures"):
        statement(doc)


def test_a_certificate_without_the_open_end_is_about_another_claim() -> None:
    contract = _contract(SLOPED)
    doc = certificate(check(contract))
    doc["claims"][0].pop("temperature_end")
    assert differences(doc, contract)


def test_a_claim_inside_a_slice_is_proved_and_certified() -> None:
    checked = check(_contract(SLICES))
    assert [v.status for v in checked.verdicts] == [Status.PROVED, Status.PROVED]
    doc = certificate(checked)
    assert [line.split()[0] for line in statement(doc)[1:]] == ["PROVED", "PROVED"]
    assert doc["clauses"][0]["on"] == ["wide", "narrow"]
    assert differences(doc, checked.contract) == []


def test_a_certificate_does_not_fit_a_contract_without_the_inclusion() -> None:
    doc = certificate(check(_contract(SLICES)))
    other = _contract(SLICES.replace(">= 1000", ">= 10"))
    assert "the contract has no such clause: drift" in differences(doc, other)


def test_a_proof_inside_a_slice_is_explained() -> None:
    checked = check(_contract(SLICES))
    found = explain(checked.contract, checked.verdicts[1], Limits())
    assert found is not None and found.core == ("drift",)


def test_a_hole_of_a_slice_is_filled_for_a_claim_inside_it() -> None:
    checked = check(_contract(SLICES.replace("logit_span <= 0.01", "logit_span <= ?")))
    assert [b.clause.name for b in checked.budgets] == ["drift"]
    assert [v.status for v in checked.verdicts] == [Status.PROVED, Status.PROVED]


@pytest.mark.needs("cvc5")
@pytest.mark.parametrize("text", [BANDS, SLOPED, SLICES])
def test_the_second_solver_agrees(text: str) -> None:
    from kcverify.prove.second_solver import opinions

    found = opinions(check(_contract(text)))
    assert found and all(o.word == "agrees" for o in found if o.guarantee == "token")
    assert not any(o.word == "disagrees" and o.guarantee == "token" for o in found)


@pytest.mark.parametrize(
    "more",
    [
        "s: token_log_ratio <= 0.001 -> L1",
        "s: tv <= 0.01 when horizon in [1 tokens, 4 tokens] -> L1",
        "s: tv in [0.1, 1] -> L1",
    ],
)
def test_a_counterexample_does_not_fit_a_contract_with_a_clause_that_it_says_nothing_about(more: str) -> None:
    """A refutation of a weaker contract, its digest exchanged: the kernel evaluates no side of the further clause."""
    head = "contract c\nassume { temperature = 1; sampler = full_softmax; horizon <= 4 tokens }\n"
    body = "numerical {{ t: tv <= 0.3 -> L1{} }}\nguarantee {{ g: tv <= 0.05 }}\n"
    doc = certificate(check(_contract(head + body.format(""))))
    assert statement(doc)[1].startswith("REFUTED g")
    other = _contract(head + body.format(f"; {more}"))
    doc["contract"]["digest"] = check(other).digest
    doc["seal"] = kernel.seal(doc)
    statement(doc)
    assert differences(doc, other)[-1] == "its counterexample says nothing about the clause s"


def test_a_clause_that_a_pair_decides_cannot_be_called_free() -> None:
    text = "contract c\nassume { temperature = 1 }\nnumerical { t: tv <= 0.3 -> L1 }\nruntime { l: p99 latency <= 100 ms -> L1 }\nguarantee { g: tv <= 0.05 }\n"
    contract = _contract(text)
    doc = certificate(check(contract))
    assert doc["claims"][0]["free"] == ["l"] and differences(doc, contract) == []
    doc["claims"][0]["free"] = ["l", "t"]
    assert differences(doc, contract) == ["it calls the clause t free"]


@pytest.mark.parametrize("floor", [">= 0.02", "in [0.02, 0.5]"])
def test_clauses_that_exclude_each_other_in_the_claims_band_prove_nothing(floor: str) -> None:
    text = f"""contract v
assume {{ temperature in [0.5, 1]; sampler = full_softmax; horizon <= 4 tokens; reward in [0, 1] }}
numerical {{
  a: tv <= 0.01 when temperature in [0.5, 0.7) -> L2
  b: tv {floor} when temperature in [0.5, 0.7) -> L2
}}
guarantee {{ c: kl(candidate || reference) <= 0.0001 nats when temperature in [0.5, 0.7) }}
"""
    verdict = prove(driver.load_source(Source("v.kc", text)).contracts[0])[0]
    assert verdict.status is Status.UNKNOWN
    assert "exclude each other at the temperatures of the claim" in verdict.reason and ": a, b" in verdict.reason
