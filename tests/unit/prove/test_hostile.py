"""Faults that a hostile reader found: each contract once gave a wrong answer."""

from __future__ import annotations

import pytest

from kcverify.driver import load_source
from kcverify.prove.check import check
from kcverify.source import Source

HEAD = "contract c\nassume { temperature = 1; sampler = full_softmax; horizon <= 3 tokens; reward in [0, 1] }\n"


def checked(body: str):
    loaded = load_source(Source("t", HEAD + body))
    assert not loaded.report.errors, [d.message for d in loaded.report.errors]
    return check(loaded.contracts[0])


@pytest.mark.parametrize(
    "slice_", ["output_tokens in [2, 3)", "position < 2", "output_tokens <= 1 and prompt_tokens >= 5"]
)
@pytest.mark.parametrize("clause", ["logit_span <= 1", "logit_span <= 1 on two"])
@pytest.mark.parametrize("claim", ["reward_drift <= 0.4", "tv_seq <= 0.4", "pass_rate_drift <= 0.4"])
def test_responses_chosen_by_what_was_sampled(slice_, clause, claim):
    """With tokens A, B, EOS and spans of 1 the reward drift among responses of two tokens reaches tanh(3/4) = 0.635."""
    body = f"slice two = {slice_}\nnumerical {{ d: {clause} -> L2; e: tv <= 0.9 on two -> L1 }}\nguarantee {{ k: {claim} on two }}\n"
    (verdict,) = checked(body).verdicts
    assert verdict.status == "UNKNOWN"
    assert "may depend on the response" in verdict.reason


def test_responses_chosen_by_their_prompt():
    body = "slice long = prompt_tokens >= 5\nnumerical { d: logit_span <= 1 -> L2; e: tv <= 0.9 on long -> L1 }\nguarantee { k: reward_drift <= 0.4 on long }\n"
    assert checked(body).verdicts[0].status == "PROVED"


@pytest.mark.parametrize(
    "body",
    [
        "numerical { r: importance_ratio in [1.5, 2] -> L1 }\nguarantee { k: tv <= 0 }\n",
        "numerical { r: importance_ratio in [0.5, 0.9] except 1% -> L1 }\nguarantee { k: reward_drift <= 0 }\n",
        "numerical { a: logit_span <= 0.05 -> L1; b: logit_span >= 0.5 -> L1 }\nguarantee { k: tv <= 0.4 }\n",
    ],
)
def test_nothing_is_proved_from_clauses_that_exclude_each_other(body):
    found = checked(body)
    assert found.exit_code == 1
    assert "contradictory" in [d.code.slug for d in found.report.diagnostics]
    assert all(v.status != "PROVED" for v in found.verdicts)


@pytest.mark.parametrize("limit", ["1e400", "1e300", "5000"])
def test_huge_limits_prove_nothing_and_break_nothing(limit):
    found = checked(
        f"numerical {{ d: logit_span <= {limit} -> L1 }}\nguarantee {{ k: reward_drift <= 0.5; t: tv <= 0.5 }}\n"
    )
    assert all(v.status != "PROVED" for v in found.verdicts)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("numerical { x: chi2 <= 0.01 -> L1 }\nguarantee { k: tv <= 0.05 }\n", "PROVED"),
        ("numerical { x: kl(candidate || reference) <= 0.02 nats -> L1 }\nguarantee { k: tv <= 0.1 }\n", "PROVED"),
        ("numerical { r: importance_ratio in [0.5, 2] -> L1 }\nguarantee { k: chi2 <= 0.5 }\n", "PROVED"),
        ("numerical { r: importance_ratio in [0.5, 2] -> L1 }\nguarantee { k: chi2 <= 0.499 }\n", "REFUTED"),
    ],
)
def test_textbook_limits_that_meet_exactly(body, status):
    assert checked(body).verdicts[0].status == status


def test_a_hole_on_a_mean_that_no_sample_certifies_is_refused():
    found = checked(
        "numerical { m: mean kl(candidate || reference) <= ? -> L1 }\nguarantee { k: reward_drift <= 0.4 }\n"
    )
    assert [d.code.slug for d in found.report.errors] == ["hole_impossible"]
    assert "no sample certifies" in found.report.errors[0].message


def test_a_mean_that_lifts_but_cannot_be_certified_says_so():
    (verdict,) = checked("numerical { d: mean logit_span <= 0.05 -> L1 }\nguarantee { k: mean tv <= 0.3 }\n").verdicts
    assert verdict.status == "UNKNOWN"
    assert "no sample certifies" in verdict.reason
    assert "concave" not in verdict.reason


@pytest.mark.parametrize("top", [2, 3, 5])
def test_agreement_in_order_is_kept_only_where_the_order_is(top):
    """Two tokens whose ranks change have the same set of two, and another order: no instance for `ordered`."""
    both = "statistical {{ s: agreement(top = {}, ordered = {}) >= 95% -> L1 }}\nguarantee {{ k: agreement(top = 1) >= 95% }}\n"
    assert checked(both.format(top, "false")).verdicts[0].status == "REFUTED"
    assert checked(both.format(top, "true")).verdicts[0].status == "UNKNOWN"


@pytest.mark.parametrize("limit", ["0.1 - 0.3 * temperature", "0.1 - 0.2 * temperature"])
@pytest.mark.parametrize("band", ["", " when temperature in [0.8, 2]"])
def test_a_limit_that_falls_below_zero_is_reported_and_proves_nothing(limit, band):
    """Such a span once ended in a traceback, or proved any claim about the temperatures that it excludes."""
    text = f"contract c\nassume {{ temperature in [0.5, 2]; sampler = full_softmax; horizon <= 3 tokens; reward in [0, 1] }}\nnumerical {{ d: logit_span <= {limit}{band} -> L1 }}\nguarantee {{ k: reward_drift <= 0.01; t: tv <= 0 when temperature in [1, 2] }}\n"
    loaded = load_source(Source("t", text))
    assert not loaded.report.errors
    found = check(loaded.contracts[0])
    assert [d.code.slug for d in found.report.errors] == ["contradictory"]
    assert "at temperature 2" in found.report.errors[0].message
    assert all(v.status != "PROVED" for v in found.verdicts)


def test_a_limit_that_falls_below_zero_where_it_does_not_bind_is_no_fault():
    text = "contract c\nassume { temperature in [0.5, 2] }\nnumerical { d: logit_span <= 0.1 - 0.1 * temperature when temperature in [0.5, 1] -> L1 }\n"
    assert not check(load_source(Source("t", text)).contracts[0]).report.errors


@pytest.mark.parametrize("claim", ["mean tv <= 0.0126", "mean tv <= 0.01"])
def test_a_mean_on_all_traffic_is_not_said_to_fail_by_jensen_on_a_slice(claim):
    body = "slice long = prompt_tokens >= 5\nnumerical { m: mean tv <= 0.01 -> L1; d: logit_span <= 1 on long -> L2 }\n"
    (verdict,) = checked(f"{body}guarantee {{ k: {claim} on long }}\n").verdicts
    assert verdict.status == "UNKNOWN" and "Jensen" not in verdict.reason


@pytest.mark.parametrize(("where", "status"), [("on one", "UNKNOWN"), ("on one, two", "PROVED"), ("", "PROVED")])
def test_a_mean_is_certified_on_each_of_its_slices(where, status):
    """A range that holds on one slice certifies nothing about the mean on the other."""
    slices = "slice one = prompt_tokens >= 5\nslice two = prompt_tokens < 5\n"
    body = f"{slices}numerical {{ m: mean log_ratio <= 0.01 on one, two -> L1; d: log_ratio <= 1 {where} -> L2 }}\n"
    verdicts = checked(f"{body}guarantee {{ k: mean log_ratio <= 0.01 on two }}\n").verdicts
    assert verdicts[0].status == status
