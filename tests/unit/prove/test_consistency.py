"""What the clauses say about each other: dead, contradictory and vacuous ones, and none that is not."""

from __future__ import annotations

import pytest
from written import ASSUME, contract

from kcverify.diagnostics import Report
from kcverify.prove.consistency import consistency, is_vacuous
from kcverify.prove.verdict import Limits


def findings(numerical: str = "", more: str = "", assume: str = ASSUME) -> list[str]:
    """`slug name` of each finding of the consistency check, sorted."""
    report = Report()
    consistency(contract(numerical, assume=assume, more=more), report, Limits())
    return sorted(f"{d.code.slug} {d.message.split('`')[1]}" for d in report.diagnostics)


BAND_1, BAND_2 = " when temperature in [0.6, 0.8) -> L1", " when temperature in [0.8, 1.0] -> L1"


@pytest.mark.parametrize(
    ("numerical", "wanted"),
    [
        ("c: tv <= 0.02 -> L1\nd: tv <= 0.03 -> L1", ["dead d"]),
        ("c: tv <= 0.03 -> L1\nd: tv <= 0.02 -> L1", ["dead c"]),
        ("c: tv <= 0.02 -> L1\nd: tv <= 0.02 -> L1", ["dead d"]),
        ("c: tv <= 0.02 except 1% -> L1\nd: tv <= 0.02 except 2% -> L1", ["dead d"]),
        ("c: tv <= 0.02 except 1% -> L1\nd: tv <= 0.03 -> L1", []),
        ("c: tv <= 0.02 except 1% -> L1\nd: mean tv <= 0.0298 -> L1", ["dead d"]),
        ("c: tv <= 0.02 except 1% -> L1\nd: mean tv <= 0.0297 -> L1", []),
        ("c: mean tv <= 0.02 -> L1\nd: tv <= 0.9 -> L1", []),
        ("c: logit_span <= 0.1 -> L1\nd: tv <= 0.0417 -> L1\ne: tv <= 0.0416 -> L1", ["dead d"]),
        ("c: tv <= 0.02 on a -> L1\nd: tv <= 0.03 -> L1", []),
        ("c: tv <= 0.02 -> L1\nd: tv <= 0.03 on a -> L1", ["dead d"]),
        ("c: tv <= 0.02 except 1% -> L1\nd: tv <= 0.03 except 1% on a -> L1", []),
        ("c: mean tv <= 0.02 -> L1\nd: mean tv <= 0.03 on a -> L1", []),
        ("c: tv <= 0.02 on a -> L1\nd: tv <= 0.03 on a, b -> L1", []),
        ("c: tv <= 0.02 on a -> L1\ne: tv <= 0.01 on b -> L1\nd: tv <= 0.03 on a, b -> L1", ["dead d"]),
        ("c: mean kl(candidate || reference) <= 1e-6 nats -> L1\nd: mean tv <= 0.5 -> L1", []),
        ("c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1\ne: importance_ratio in [0.9, 1.1] except 1% -> L1", []),
        ("c: importance_ratio <= 1.05 except 1% -> L1\nd: importance_ratio >= 0.95 except 1% -> L1\ne: importance_ratio in [0.9, 1.1] except 2% -> L1", ["dead e"]),
        ("c: mean tv <= 0.02 over 10 minutes -> L1\nd: mean tv <= 0.03 over 1 minutes -> L1", []),
        ("c: tv <= 0.02 over 10 minutes -> L1\nd: tv <= 0.03 over 1 minutes -> L1", ["dead d"]),
        (f"c: logit_span <= 0.1{BAND_1}\nd: logit_span <= 0.1{BAND_2}\ne: tv <= 0.042 -> L1\nf: logit_span <= 0.1 -> L1", ["dead e", "dead f"]),
        (f"c: logit_span <= 0.1{BAND_1}\ne: tv <= 0.042 -> L1", []),
        (f"c: logit_span <= 0.1 -> L1\nd: logit_span <= 0.2{BAND_1}", ["dead d"]),
        ("c: logit_span <= 0.1 * temperature -> L1\nd: tv <= 0.025 -> L1\ne: tv <= 0.0249 -> L1", ["dead d"]),
    ],
)  # fmt: skip
def test_dead_clauses_and_no_others(numerical, wanted):
    assert findings(numerical) == wanted


@pytest.mark.parametrize(
    ("numerical", "wanted"),
    [
        ("c: mean tv <= 0.02 -> L1\nd: mean tv >= 0.03 -> L1", ["contradictory c"]),
        ("c: mean tv <= 0.03 -> L1\nd: mean tv >= 0.03 -> L1", []),
        ("c: logit_span <= 0.1 -> L1\nd: mean tv >= 0.0417 -> L1", ["contradictory c"]),
        ("c: logit_span <= 0.1 -> L1\nd: mean tv >= 0.0416 -> L1", []),
        ("c: mean tv <= 0.02 on a -> L1\nd: mean tv >= 0.03 on b -> L1", []),
        ("c: mean tv <= 0.02 on a -> L1\nd: mean tv >= 0.03 on a -> L1", ["contradictory c"]),
        ("c: tv <= 0.02 except 60% -> L1\nd: tv >= 0.03 except 50% -> L1", []),
        ("c: tv <= 0.02 except 10% -> L1\nd: tv >= 0.03 except 10% -> L1", ["contradictory c"]),
        ("c: logit_span <= 0.1 * temperature -> L1\nd: mean tv >= 0.025 -> L1", ["contradictory c"]),
        (f"c: mean tv <= 0.02{BAND_1}\nd: mean tv >= 0.03{BAND_2}", []),
        ("c: tv <= 0.02 -> L1\nd: tv >= 0.03 -> L1\ne: tv <= 0.01 -> L1", ["contradictory d"]),
    ],
)
def test_contradictions_and_no_others(numerical, wanted):
    assert [f for f in findings(numerical) if f.startswith("contradictory")] == wanted


def test_a_contradiction_implies_nothing_else():
    assert findings("c: mean tv <= 0.02 -> L1\nd: mean tv >= 0.03 -> L1\ne: mean tv <= 0.5 -> L1") == [
        "contradictory c"
    ]


@pytest.mark.parametrize(
    ("statistical", "wanted"),
    [
        ("s: agreement(top = 1) >= 99.9% -> L1\nf: flip_rate in [1%, 5%] -> L1", ["contradictory s"]),
        ("s: agreement(top = 1) >= 99% -> L1\nf: flip_rate <= 2% -> L1", ["dead f"]),
        ("s: agreement(top = 1) >= 99% -> L1\nf: flip_rate(margin = 0.1) <= 2% -> L1", ["dead f"]),
        ("s: flip_rate <= 1% -> L1\nf: flip_rate(margin = 0.1) <= 1% -> L1", ["dead f"]),
        ("s: flip_rate(margin = 0.1) <= 1% -> L1\nf: flip_rate <= 2% -> L1", []),
        ("s: agreement(top = 1) >= 99% -> L1\nf: agreement >= 98% -> L1", ["dead f"]),
        # a flip away from a tie of the reference has no margin, so that it counts as a disagreement alone
        ("s: agreement(top = 1) >= 99% -> L1\nf: flip_rate <= 0.5% -> L1", []),
        ("s: agreement(top = 1) >= 99% -> L1\nf: agreement >= 98% on a -> L1", []),
        ("s: perplexity_ratio in [0.98, 1.02] -> L1\nf: perplexity_ratio <= 1.03 -> L1", ["dead f"]),
        ("s: perplexity_ratio <= 0.98 -> L1\nf: perplexity_ratio >= 0.99 -> L1", ["contradictory s"]),
        ("s: agreement(top = 1) >= 99% on a -> L1\nf: flip_rate <= 2% -> L1", []),
        ("s: agreement(top = 1) >= 99% over 1 h -> L1\nf: flip_rate <= 2% over 1 minutes -> L1", []),
        ("s: agreement(top = 5) >= 99% -> L1\nf: flip_rate <= 2% -> L1", []),
    ],
)
def test_readings_outside_the_graph(statistical, wanted):
    assert findings(more=f"statistical {{\n{statistical}\n}}\n") == wanted


@pytest.mark.parametrize(
    ("runtime", "wanted"),
    [
        ("x: p99 latency <= 250 ms -> L1\ny: p99 latency <= 300 ms -> L1", ["dead y"]),
        ("x: p99 latency <= 250 ms over 10 minutes -> L1\ny: p99 latency <= 300 ms over 1 minutes -> L1", []),
        ("x: p99 latency <= 250 ms -> L1\ny: p50 latency <= 300 ms -> L1", []),
    ],
)
def test_latencies(runtime, wanted):
    assert findings(more=f"runtime {{\n{runtime}\n}}\n") == wanted


def test_vacuous_limits():
    assert findings("c: tv <= 1 -> L1\nd: tv <= 0.5 -> L1") == ["vacuous c"]
    c = contract("c: tv <= 1 * temperature -> L1\nd: log_ratio <= 100 -> L1\ne: tv in [0, 1] -> L1")
    assert [is_vacuous(k) for k in c.clauses] == [False, False, True]


def test_one_contradiction_is_reported_once():
    text = "c: tv <= 0.02 -> L1\nd: tv >= 0.03 -> L1\ne: log_ratio <= 0.5 on a -> L1\nf: log_ratio <= 0.4 on b -> L1"
    assert findings(text).count("contradictory c") == 1


@pytest.mark.parametrize(
    ("numerical", "wanted"),
    [
        (
            "c: importance_ratio in [0.95, 1.05] -> L1\nd: importance_ratio in [0.9, 1.2] -> L1",
            "`c` keeps importance_ratio in [0.95, 1.05]",
        ),
        (
            "c: logit_span <= 0.06 -> L1\nd: importance_ratio in [0.9, 1.2] -> L1",
            "`c` keeps importance_ratio in [0.904, 1.11]",
        ),
        (
            "c: importance_ratio <= 1.05 -> L1\nd: importance_ratio <= 1.2 -> L1",
            "`c` keeps importance_ratio at most 1.05",
        ),
        (
            "c: importance_ratio >= 0.95 -> L1\nd: importance_ratio >= 0.9 -> L1",
            "`c` keeps importance_ratio at least 0.95",
        ),
        ("c: tv <= 0.02 -> L1\nd: tv <= 0.03 -> L1", "`c` keeps tv at most 0.02"),
    ],
)
def test_a_dead_clause_is_shown_with_the_numbers_that_its_metric_has(numerical, wanted):
    report = Report()
    consistency(contract(numerical), report, Limits())
    (found,) = report.diagnostics
    assert wanted in found.message
