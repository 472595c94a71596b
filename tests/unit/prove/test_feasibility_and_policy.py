"""Findings beyond logic: floors of formats, evidence that can be had, policies, noise over long responses."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from kcverify.diagnostics import Diagnostic, Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import Contract
from kcverify.prove import feasibility, lognormal, samples
from kcverify.prove.check import check
from kcverify.source import Source
from kcverify.syntax.parser import parse

ROOT = Path(__file__).parents[3]


def contract(*lines: str) -> Contract:
    report = Report()
    tree = parse(Source("x.kc", "\n".join(("contract c", *lines)) + "\n"), report)
    assert tree is not None
    [found] = elaborate(tree, report, parameters={})
    assert not report.errors, report.errors
    return found


def findings(*lines: str) -> list[Diagnostic]:
    return check(contract(*lines)).report.diagnostics


def slugs(*lines: str) -> list[str]:
    return [d.code.slug for d in findings(*lines)]


def round_to(x: float, bits: int) -> float:
    """`x` to a significand of so many bits, ties to even."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


@pytest.mark.parametrize(
    ("storage", "reach", "half"),
    [
        ("bfloat16", 12, Fraction(1, 32)), ("bfloat16", 16, Fraction(1, 32)), ("bfloat16", 17, Fraction(1, 16)),
        ("bfloat16", 32, Fraction(1, 16)), ("bfloat16", 40, Fraction(1, 8)), ("bfloat16", 64, Fraction(1, 8)),
        ("float16", 40, Fraction(1, 64)), ("float32", 40, Fraction(1, 2**19)), ("float64", 40, Fraction(1, 2**48)),
        ("float8_e4m3fn", 40, Fraction(2)), ("float8_e5m2", 40, Fraction(4)),
    ],
)  # fmt: skip
def test_half_a_unit_in_the_last_place(storage: str, reach: int, half: Fraction) -> None:
    floor = feasibility.floor_of(contract(f"assume {{ logit_range in [-{reach}, {reach}]; storage = {storage} }}"))
    assert floor is not None
    assert floor.half == half


def test_the_floor_is_reached_and_never_exceeded_by_rounding() -> None:
    floor = feasibility.floor_of(contract("assume { logit_range in [-32, 32]; storage = bfloat16 }"))
    assert floor is not None
    rng = random.Random(3)
    values = [rng.uniform(-32, 32) for _ in range(20_000)]
    worst = max(abs(round_to(x, 8) - x) for x in values)
    assert 0.99 * float(floor.half) < worst <= float(floor.half)


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("logit_drift <= 0.01", ["infeasible"]),
        ("logit_drift <= 0.1249", ["infeasible"]),
        ("logit_drift <= 0.125", []),
        ("logit_drift <= 0", []),
        ("logit_span <= 0.1249 except 1%", ["infeasible"]),
        ("logit_span <= 0.125", []),
        ("log_ratio <= 0.0624", ["infeasible"]),
        ("log_ratio <= 0.0625", []),
        ("tv <= 0.001", []),
    ],
)
def test_clauses_below_the_floor_of_bfloat16(clause: str, expected: list[str]) -> None:
    assumed = "assume { temperature in [0.5, 1]; logit_range in [-32, 32]; storage = bfloat16 }"
    assert slugs(assumed, f"numerical {{ a: {clause} -> L1 }}") == expected


def test_the_numbers_of_the_published_case() -> None:
    [found] = findings(
        "assume { logit_range in [-32, 32]; storage = bfloat16 }", "numerical { drift: logit_drift <= 0.01 -> L2 }"
    )
    assert "0.0625 on one side and 0.125 on both" in found.message
    assert "allow at least 0.125" in found.hint


@pytest.mark.parametrize(("limit", "expected"), [("1e-6", ["unmeasurable"]), ("1e-4", [])])
def test_a_limit_within_the_rounding_of_float32_cannot_be_measured(limit: str, expected: list[str]) -> None:
    assumed = "assume { temperature in [0.6, 1]; logit_range in [-40, 40]; storage = float32 }"
    assert slugs(assumed, f"numerical {{ a: tv <= {limit} -> L1 }}") == expected


@pytest.mark.parametrize("confidence", [Fraction(95, 100), Fraction(99, 100)])
@pytest.mark.parametrize(
    "rate", [Fraction(1, 100_000), Fraction(1, 5000), Fraction(1, 100), Fraction(1, 20), Fraction(9, 10)]
)
@pytest.mark.parametrize("kind", ["binary", "share", "mean"])
def test_needed_requests_are_those_of_the_monitor(kind: str, rate: Fraction, confidence: Fraction) -> None:
    sequential = pytest.importorskip("kcverify.runtime.sequential")
    assert samples.needed(kind, rate, confidence) == sequential.requests_needed(float(rate), float(confidence), kind)


def test_one_look_and_the_price_of_peeking() -> None:
    assert samples.one_look(Fraction(1, 100_000), Fraction(99, 100)) == 460_515
    assert samples.one_look(Fraction(1, 100), Fraction(95, 100)) == 299
    assert samples.needed("binary", Fraction(1, 100), Fraction(95, 100)) == 404


def test_what_is_certified_is_certified() -> None:
    rate = samples.certified("share", 5000, Fraction(95, 100))
    assert samples.needed("share", rate, Fraction(95, 100)) <= 5000
    assert samples.needed("share", rate * Fraction(99, 100), Fraction(95, 100)) > 5000


def test_the_worked_example_can_be_measured_and_with_fewer_requests_cannot() -> None:
    text = (ROOT / "contracts" / "rl_rollout.kc").read_text(encoding="utf-8")
    lines = text.partition("contract qwen3_fp8_rollout")[2].partition("\n")[2]
    assert slugs(lines) == []
    found = findings(lines.replace("min 25_000", "min 5_000"))
    assert [d.code.slug for d in found] == ["unmeasurable"]
    assert "`drift`" in found[0].message
    assert "22,787 clean requests" in found[0].message
    assert "`offline` supplies 5,000" in found[0].message


def test_stages_without_a_minimum_add_to_what_was_seen() -> None:
    clause = "numerical { a: tv <= 0.01 except 1% -> L1 }"
    stages = "promote { offline { min 450 requests }; canary { traffic 1%, hold 100 s } }"
    assert slugs("assume { traffic = 10 requests/s }", clause, stages) == ["unmeasurable"]
    assert slugs("assume { traffic = 10 requests/s }", clause, stages.replace("450", "500")) == []


@pytest.mark.parametrize(
    ("clause", "trace", "expected"),
    [
        ("tv <= 0.1", "sampled_log_probabilities", ["unobservable"]),
        ("tv <= 0.1", "top_log_probabilities", ["unobservable"]),
        ("tv <= 0.1", "probabilities", []),
        ("tv <= 0.1", "request_id", []),
        ("logit_span <= 0.1", "probabilities", ["unobservable"]),
        ("logit_span <= 0.1", "sampled_log_probabilities, logits", []),
        ("token_log_ratio <= 0.1", "sampled_log_probabilities", []),
        ("sequence_ratio in [0.5, 2]", "sampled_log_probabilities", []),
    ],
)
def test_what_the_trace_carries(clause: str, trace: str, expected: list[str]) -> None:
    assert slugs(f"numerical {{ a: {clause} -> L1 }}", f"observability {{ trace {trace} }}") == expected


def test_a_slice_by_tag_needs_tags_in_the_trace() -> None:
    lines = ('slice s = tag("safety")', "numerical { a: tv <= 0.1 on s -> L1 }")
    assert slugs(*lines) == []
    assert slugs(*lines, "observability { trace request_id }") == ["unobservable"]
    assert slugs(*lines, "observability { trace request_id, tags }") == []


@pytest.mark.parametrize(
    ("lines", "expected", "trace"),
    [
        (["escalate { L1 -> log }"], ["policy_no_action"], "candidate -[`tail` fails at L2]-> candidate"),
        (["escalate { L2 -> alert; L3 -> log }"], ["policy_weaker_action"], "candidate -[L3 fails]-> candidate"),
        (["escalate { L2 -> guard, recover 10 requests }"], ["policy_cycle"],
         "candidate -[L2 fails]-> guarded -[10 clean requests]-> candidate"),
        (["escalate { L2 -> guard, dwell 0 s, recover 10 requests }"], ["policy_cycle"], "candidate -[L2 fails]-> guarded"),
        (["escalate { L2 -> guard, dwell 10 s, recover 10 requests; L3 -> rollback, recover 5 requests }"], ["policy_cycle"],
         "-[L3 fails]-> safe -[5 clean requests]-> candidate"),
        (["escalate { L2 -> guard }"], [], ""),
        (["escalate { L2 -> log; L3 -> guard }"], ["policy_unsafe"], "candidate -[L3 fails]-> guarded"),
        (["escalate { L2 -> log; L3 -> stop }"], [], ""),
        (["promote { shadow { mirror 0%, for 2 h }; canary { traffic 1%, hold 1 h }; full { stable 1 h } }"],
         ["policy_unreachable"], "`shadow` -> never"),
        (["promote { full { stable 1 h }; canary { traffic 1%, hold 1 h } }"], ["policy_unreachable"], "`full` -> never"),
        (["assume { traffic = 1 requests/s }", "promote { shadow { mirror 100%, for 1 h, min 5000 requests } }"],
         ["policy_window"], "holds 3,600 requests"),
        (["assume { traffic = 2 requests/s }", "promote { shadow { mirror 100%, for 1 h, min 5000 requests } }"], [], ""),
        ([], [], ""),
    ],
)  # fmt: skip
def test_a_faulty_policy_is_shown_as_a_run(lines: list[str], expected: list[str], trace: str) -> None:
    found = findings("numerical { tail: tv <= 0.01 -> L2 }", *lines)
    assert [d.code.slug for d in found] == expected
    assert not expected or trace in found[0].message


def test_shares_outside_a_window_agree_with_drawn_responses() -> None:
    rng = random.Random(7)
    sd, length, low, high = 0.05, 1000, 0.999, 1.001
    drawn = [math.exp(rng.gauss(-sd * sd / 2, sd / math.sqrt(length))) for _ in range(20_000)]
    share = sum(not low <= x <= high for x in drawn) / len(drawn)
    assert abs(share - lognormal.share_outside(sd, length, low, high)) < 0.015


@pytest.mark.parametrize(
    ("sd", "expected"),
    [("0.0447", []), ("0.0448", ["unsatisfiable_with_length"]), ("0.0499", ["unsatisfiable_with_length"])],
)
def test_the_noise_that_a_geometric_window_survives(sd: str, expected: list[str]) -> None:
    assert (
        slugs(f"assume {{ log_ratio_sd = {sd} }}", "numerical { geo: geometric_ratio in [0.999, 1.001] -> L1 }")
        == expected
    )


def test_a_median_weight_is_that_of_drawn_responses() -> None:
    [found] = findings(
        "assume { log_ratio_sd = 0.05; horizon <= 8000 tokens }", "numerical { seq: sequence_ratio <= 3 -> L1 }"
    )
    assert "0.29 at 1,000 tokens, 4.5e-5 at 8,000 tokens" in found.message
    assert "0.0186" in found.hint
    assert any("rests on this" in r.label for r in found.related)


@pytest.mark.parametrize(
    ("first", "second", "expected", "number"),
    [
        ("token_log_ratio <= 0.06", "token_k3 <= 0.05 nats", ["dead"], "0.00184"),
        ("token_log_ratio <= 0.06", "token_k3 <= 0.0018 nats", [], ""),
        ("token_log_ratio <= 0.06", "token_ratio in [0.8, 1.2]", ["dead"], "[0.94176, 1.06184]"),
        ("token_ratio in [0.5, 2]", "token_inverse_ratio in [0.4, 2.5]", ["dead"], "token_inverse_ratio"),
        ("log_ratio <= 0.06", "token_k3 <= 0.05 nats", ["dead"], "0.00184"),
        ("importance_ratio in [0.95, 1.05] except 1%", "token_log_ratio <= 0.06 except 1%", ["dead"], "0.0513"),
        ("token_log_ratio <= 0.06 except 1%", "token_k3 <= 0.05 nats", [], ""),
        ("token_log_ratio <= 0.06 except 1%", "token_k3 <= 0.05 nats except 1%", ["dead"], "0.00184"),
    ],
)
def test_dead_clauses_on_the_sampled_token(first: str, second: str, expected: list[str], number: str) -> None:
    found = findings(f"numerical {{ a: {first} -> L1; b: {second} -> L1 }}")
    assert [d.code.slug for d in found] == expected
    assert not expected or number in found[0].message
