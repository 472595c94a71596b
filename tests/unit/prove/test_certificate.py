"""Certificates of contracts that use every part of the format: written, accepted, bound to their contract."""

from __future__ import annotations

import copy
import json
from fractions import Fraction as F

import pytest

from kcverify import driver
from kcverify.prove import kernel
from kcverify.prove.certificate import (
    certificate,
    certificate_figures,
    coverage,
    coverage_text,
    differences,
    statement,
    text,
)
from kcverify.prove.certificate_steps import number, rounded
from kcverify.prove.check import check
from kcverify.source import Source

HEAD = 'contract case version "1.0"\n  "A case"\n'
ASSUME = """assume {
  temperature in [0.5, 1.0]
  sampler     = full_softmax
  horizon    <= 32 tokens
  reward     in [-1, 1]
  advantage  in [-2, 2]
  score_norm <= 1.5
}
"""


def contract_of(body: str, assume: str = ASSUME):
    loaded = driver.load_source(Source("case.kc", HEAD + assume + body))
    assert not loaded.report.errors, [d.message for d in loaded.report.errors]
    return loaded.contracts[0]


def written(body: str, assume: str = ASSUME):
    contract = contract_of(body, assume)
    return contract, certificate(check(contract))


def certified(doc, name):
    (claim,) = [c for c in doc["claims"] if c["name"] == name]
    return "not_certified" not in claim


CASES = {
    "chain": "numerical { drift: logit_span <= 0.05 -> L2 }\nguarantee { ok: reward_drift <= 0.3 }",
    "drift": "numerical { drift: logit_drift <= 0.02 -> L2 }\nguarantee { ok: tv <= 0.02 }",
    "zero": "numerical { drift: logit_span <= 0 -> L2 }\nguarantee { ok: tv <= 0 }",
    "divergence": "numerical { k: kl(reference || candidate) <= 1e-4 nats -> L2 }\nguarantee { ok: tv <= 0.0071 }",
    "reverse": "numerical { k: kl(candidate || reference) <= 1e-4 nats -> L2 }\nguarantee { ok: reward_drift <= 0.081 }",
    "span to divergence": "numerical { d: logit_span <= 0.1 -> L2 }\nguarantee { ok: kl(reference || candidate) <= 0.0051 nats }",
    "two sides": "numerical { w: importance_ratio in [0.9, 1.1] except 1% -> L2 }\nguarantee { ok: tv <= 0.0501 except 1% }",
    "two sides out": "numerical { d: logit_span <= 0.04 -> L2 }\nguarantee { ok: importance_ratio in [0.92, 1.09] }",
    "ratio to divergence": "numerical { w: importance_ratio in [0.9, 1.1] -> L2 }\n"
    "guarantee { ok: kl(candidate || reference) <= 0.0051 nats }",
    "binomial": "numerical { r: log_ratio <= 0.05 except 0.01% -> L2 }\nguarantee { ok: reward_drift <= 0.35 }",
    "exception": "numerical { d: logit_span <= 0.05 except 0.1% -> L2 }\nguarantee { ok: pg_bias <= 1.6 }",
    "mean": "numerical { m: mean tv <= 0.001 -> L2 }\nguarantee { ok: pass_rate_drift <= 0.032 }",
    "clip": "numerical { d: logit_span <= 0.05 -> L2 }\nguarantee { ok: clip_share(clip = 0.2) <= 60% }",
    "slope": "numerical { d: logit_span <= 0.1 * temperature -> L2 }\nguarantee { ok: tv <= 0.025 }",
    "drift slope": "numerical { d: logit_drift <= 0.05 * temperature -> L2 }\nguarantee { ok: tv <= 0.025 }",
    "band": "numerical {\n  a: logit_span <= 0.05 when temperature in [0.5, 0.8) -> L2\n"
    "  b: logit_span <= 0.08 when temperature in [0.8, 1.0] -> L2\n}\nguarantee { ok: tv <= 0.025 }",
    "claim slope": "numerical { d: logit_span <= 0.1 * temperature -> L2 }\nguarantee { ok: logit_span <= 0.11 * temperature }",
    "mixture": "numerical {\n  a: logit_span <= 0.05 -> L2\n  b: logit_span <= 0.3 * temperature - 0.112 -> L2\n}\n"
    "guarantee { ok: tv <= 0.0232 }",
    "slice": 'slice code = tag("code")\nnumerical {\n  d: logit_span <= 0.1 -> L2\n  c: tv <= 0.01 on code -> L2\n}\n'
    "guarantee { ok: tv <= 0.01 on code }",
    "trimmed": "numerical { d: logit_span(mass = 0.99) <= 0.05 except 1% -> L2 }\nguarantee { ok: tv <= 0.036 except 1% }",
    "trimmed response": "numerical { d: logit_span(mass = 0.999) <= 0.01 except 0.01% -> L2 }\nguarantee { ok: reward_drift <= 0.5 }",
    "flips": "statistical { a: agreement(top = 1) >= 99% -> L2 }\nguarantee { ok: flip_rate <= 1% }",
    "perplexity": "numerical { d: logit_span <= 0.05 -> L2 }\nguarantee { ok: perplexity_ratio in [0.9, 1.11] }",
    "ratio to chi2": "numerical { w: importance_ratio in [0.9, 1.1] -> L2 }\nguarantee { ok: chi2 <= 0.011 }",
    "ratio above": "numerical { w: importance_ratio <= 1.1 -> L2 }\nguarantee { ok: kl(reference || candidate) <= 0.0954 nats }",
    "claim band": "numerical { d: logit_span <= 0.1 -> L2 }\nguarantee { ok: tv <= 0.0313 when temperature in [0.8, 1.0] }",
}  # fmt: skip


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_every_shape_of_proof_is_certified_and_bound(body):
    contract, doc = written(body)
    assert certified(doc, "ok"), [c.get("not_certified") for c in doc["claims"]]
    lines = statement(json.loads(text([doc])))
    assert any(line.startswith("PROVED ok") for line in lines)
    assert differences(doc, contract) == []


def test_a_mixture_of_two_limits_is_used_where_neither_alone_serves():
    _, doc = written(CASES["mixture"])
    steps = [s for c in doc["claims"] for piece in c["proof"] for s in piece["steps"]]
    assert len({s["of"][0] for s in steps if s["by"] == "clause"}) == 2


def test_a_certificate_of_another_contract_is_told_apart():
    contract, doc = written(CASES["chain"])
    other = contract_of(CASES["chain"].replace("0.3", "0.25"))
    assert any("digest" in d for d in differences(doc, other))
    assert any("does not claim" in d for d in differences(doc, other))
    fewer = copy.deepcopy(doc)
    fewer["claims"] = []
    assert any("leaves out" in d for d in differences(fewer, contract))
    assert differences(doc, contract) == []


def test_holes_are_filled_before_they_are_compared():
    contract, doc = written("numerical { d: logit_span <= ? -> L2 }\nguarantee { ok: tv <= 0.01 }")
    assert certified(doc, "ok") and differences(doc, contract) == []


def test_a_refutation_carries_logits_that_the_kernel_evaluates():
    for claim in ("reward_drift <= 0.05", "tv <= 0.01", "kl(reference || candidate) <= 1e-6 nats", "pg_bias <= 0.01"):
        contract, doc = written(f"numerical {{ d: logit_span <= 0.1 -> L2 }}\nguarantee {{ bad: {claim} }}")
        assert certified(doc, "bad"), doc["claims"]
        assert any(line.startswith("REFUTED bad") for line in statement(doc))
        assert differences(doc, contract) == []


KEPT = {
    "agreement": "statistical { t: agreement(top = 1) >= 99% -> L2 }",
    "best five": "statistical { t: agreement(top = 5) >= 99% -> L2 }",
    "flips": "statistical { t: flip_rate <= 1% -> L2 }",
    "calibration": "statistical { t: ece_drift(bins = reference) <= 6% -> L2 }",
    "rewards": "statistical { t: reward_delta <= 0.5 -> L2 }",
    "sample share": "e: ess >= 0.5",
    "trimmed span": "e: logit_span(mass = 0.9) <= 0.1",
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_refutation_keeps_clauses_of_every_kind(kept):
    inside, after = ("", kept) if kept.startswith("statistical") else (f"\n{kept} -> L2\n", "")
    body = f"numerical {{ d: logit_span <= 0.1 -> L2 {inside} }}\n{after}\nguarantee {{ bad: reward_drift <= 0.05 }}"
    contract, doc = written(body)
    assert certified(doc, "bad"), doc["claims"]
    assert any(line.startswith("REFUTED bad") for line in statement(doc))
    assert differences(doc, contract) == []


@pytest.mark.parametrize(
    ("clause", "claim"),
    [
        ("logit_span <= 0.001 except 1%", "reward_drift <= 0.1"),
        ("mean tv <= 0.01", "reward_drift <= 0.2"),
        ("mean tv <= 0.01", "tv <= 0.1"),
    ],
)
def test_a_refutation_with_responses_that_exceed(clause, claim):
    contract, doc = written(f"numerical {{ d: {clause} -> L2 }}\nguarantee {{ bad: {claim} }}")
    (entry,) = doc["claims"]
    assert F(entry["instance"]["share"]) > 0
    assert any(line.startswith("REFUTED bad") and "share" in line for line in statement(doc))
    assert differences(doc, contract) == []
    larger = copy.deepcopy(doc)
    larger["claims"][0]["instance"]["share"] = number(F(entry["instance"]["share"]) * F(11, 10))
    with pytest.raises(ValueError, match=r"breaks|another temperature"):
        statement({**larger, "seal": kernel.seal(larger)})


def test_a_proof_that_the_coarse_grid_does_not_reach_is_said():
    """The prover's own recursion is 0.4 % finer at this length than the one that a checker repeats."""
    body = "numerical { d: logit_span <= 0.01 -> L2 }\nguarantee { near: reward_drift <= 0.2551 \n ok: reward_drift <= 0.2561 }"
    _, doc = written(body, ASSUME.replace("<= 32", "<= 1024"))
    near, ok = doc["claims"]
    assert near["verdict"] == "PROVED" and "seq_tv_optimal" in near["not_certified"], near
    assert ok["beyond"] == ["optimal"]
    assert any(line.startswith("not certified: near, PROVED: ") for line in statement(doc))


def test_another_sampler_is_not_certified():
    _, doc = written(CASES["mean"], ASSUME.replace("full_softmax", "top_p(0.9)"))
    assert all("not_certified" in c for c in doc["claims"])
    with pytest.raises(ValueError, match="no claim is certified"):
        statement(doc)


def test_the_optimal_bound_is_marked_for_the_second_check():
    body = "numerical { d: logit_span <= 0.05 -> L2 }\nguarantee { ok: reward_drift <= {} }"
    affinity = written(body.replace("{}", "0.3"))[1]["claims"][0]
    assert "beyond" not in affinity
    value = F(next(s["value"] for s in affinity["proof"][0]["steps"] if s["gives"] == "reward_drift"))
    contract, doc = written(body.replace("{}", str(float(value * F(9, 10)))))
    assert doc["claims"][0].get("beyond") == ["optimal"], doc["claims"][0]
    assert any(line.startswith("PROVED ok") for line in statement(doc))
    with pytest.raises(ValueError, match="no claim is certified"):
        kernel.check(doc)
    assert differences(doc, contract) == []


def test_the_optimal_bound_reaches_long_responses():
    """Beyond 512 tokens the checker composes blocks; the affinity bound would be a quarter larger."""
    body = "numerical {{ d: logit_span <= 0.005 -> L2 }}\nguarantee {{ ok: reward_drift <= {} }}"
    assume = ASSUME.replace("<= 32", "<= 8192")
    affinity = F(223409, 10**6) * 2
    _, doc = written(body.format(float(affinity * F(83, 100))), assume)
    assert doc["claims"][0].get("beyond") == ["optimal"], doc["claims"]
    assert any(line.startswith("PROVED ok") for line in statement(doc))
    _, doc = written(body.format(float(affinity * F(101, 100))), assume)
    assert "beyond" not in doc["claims"][0]
    assert " by over_temperature, affinity, reward" in statement(doc)[1]


def test_the_report_names_rules_and_reasons():
    _, doc = written("numerical { d: logit_span <= 0.1 -> L2 }\nguarantee { ok: tv <= 0.06 \n open: tv <= 0.0499 }")
    ok, other = coverage(doc)
    assert ok["certified"] and ok["rules"] == ["over_temperature", "tanh_quarter"] and ok["reason"] is None
    assert coverage_text(doc).splitlines()[0] == "  certified: PROVED ok by over_temperature, tanh_quarter"
    assert other["certified"] or f"not certified: {other['verdict']} open: {other['reason']}" in coverage_text(doc)


def test_figures_of_the_shipped_contracts():
    figures = certificate_figures()
    assert len(figures) >= 6
    assert all(250 <= f["bytes"] <= 6000 for f in figures)
    assert sum(f["certified"] for f in figures) >= 10


def test_numbers_are_exact_and_short():
    for x in (F(0), F(1, 3), F(1, 4), F(-3, 8), F(7, 10**9), F(10**30), F(123456789, 1000)):
        assert F(number(x)) == x
    assert rounded(F(1, 3), up=True) > F(1, 3) > rounded(F(1, 3), up=False)
    assert rounded(F(1, 3), up=True) - rounded(F(1, 3), up=False) == F(1, 10**kernel.DIGITS)
