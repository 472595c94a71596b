"""What a measurement says about a guarantee: a measured premise in the chain, with its confidence, or the reason why not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kcverify.driver import load_source
from kcverify.measure.premise import CONFIDENCE, Run, measured_guarantees
from kcverify.prove.check import check
from kcverify.runtime.clauses import Cell, ClauseSpec
from kcverify.runtime.judgement import Seen
from kcverify.runtime.sequential import Wealth, certified_rate, fold, mean_upper_limit, share_upper_limit
from kcverify.source import Source

TEXT = """contract c
assume {{ temperature = 1; sampler = full_softmax; horizon <= {horizon} tokens; reward in [0, 1] }}
slice code = tag("code")
slice long = position >= 10
numerical {{ {clauses} }}
guarantee {{ {claims} }}
"""
DRIFT = "drift: logit_span <= 0.6 except 1% -> L2"
SAFE = "safe: reward_drift <= 0.16"


def checked(clauses: str = DRIFT, claims: str = SAFE, horizon: int = 1) -> Any:
    loaded = load_source(Source("c.kc", TEXT.format(clauses=clauses, claims=claims, horizon=horizon)))
    assert not loaded.report.errors, [d.message for d in loaded.report.errors]
    return check(loaded.contracts[0])


def seen(
    name: str, record: Wealth, limit: float, evidence: str = "share", scope: str | None = None, **more: Any
) -> Seen:
    fields = {"family": "numerical", "metric": "logit_span", "statistic": "max", "text": name, "severity": "L2"}
    spec = ClauseSpec(name=name, evidence=evidence, **fields)
    counts = {"rows": 10 * record.requests, "invalid": 0, "unknown": 0, "missing": 0, "exceeding": record.exceeding}
    return Seen(spec, Cell(0, scope), record, limit, **(counts | more))


def run(*cells: Seen, **changes: Any) -> Run:
    by_name = {(s.clause.name, s.cell.slice): s for s in cells}
    return replace(Run(by_name, 1.0, 1_000, "test.txt", 10), **changes)


def statement(found: dict[str, Any], slice_name: str | None = None) -> dict[str, Any]:
    return next(s for s in found["statements"] if s["slice"] == slice_name)


def test_the_chain_with_the_measured_exception_in_it() -> None:
    """E[f] <= 1 - (1 - rho_hat)(1 - f(tau)) with f = tanh(0.15), rho_hat the upper limit at 99 %."""
    record = fold({0.0: 1_000}, 0.01)
    found = measured_guarantees(checked(), run(seen("drift", record, 0.01)))
    told = statement(found)
    rho = share_upper_limit(record, 0.01, 0.01)
    tanh = 0.148885033
    assert float(told["bound"]) == pytest.approx(1 - (1 - rho) * (1 - tanh), rel=1e-5)
    assert float(told["bound"]) >= 1 - (1 - rho) * (1 - tanh) - 1e-12
    assert told["status"] == "measured" and told["premises"][0]["clause"] == "drift"
    assert Fraction(told["premises"][0]["upper_limit_exact"]) == Fraction(rho)
    assert told["by"][-1] == "reward_of_tv" and told["chain"][-1]["quantity"] == "reward_drift"
    assert told["proved"] == "0.157397" and told["proved_verdict"] == "PROVED"
    assert "with confidence 99 %, measured, by drift (logit_span <= 0.6 except" in told["sentence"]
    assert "if every clause holds: <= 0.157397, PROVED" in told["sentence"]
    assert "about the traffic measured: 1,000 requests of test.txt" in found["about"]
    assert "measured requests have up to 10 tokens, responses of the contract up to 1" in found["about"]
    assert found["confidence"] == "0.99"


def test_more_data_says_more_and_exceedances_say_less() -> None:
    def bound(counts: dict[float, int]) -> float:
        told = statement(measured_guarantees(checked(), run(seen("drift", fold(counts, 0.01), 0.01))))
        return float(told["bound"])

    assert bound({0.0: 10_000}) < bound({0.0: 1_000}) < bound({0.0: 995, 0.5: 5}) < bound({0.0: 900, 0.5: 100})


def test_a_measured_mean_is_a_premise_too() -> None:
    contract = checked("tv_mean: mean tv <= 0.02 -> L2", "safe: reward_drift <= 0.5", horizon=4)
    record = fold({0.001: 5_000}, 0.02)
    told = statement(measured_guarantees(contract, run(seen("tv_mean", record, 0.02, "mean"))))
    assert float(told["bound"]) == pytest.approx(4 * mean_upper_limit(record, 0.02, 0.01), rel=1e-4)
    assert told["premises"][0]["text"].startswith("mean tv <= ")


def test_the_error_is_shared_out_over_every_clause_that_could_serve() -> None:
    """Whichever chain turns out best, all statements hold together: each limit is at half of 1 %."""
    contract = checked(DRIFT + "; tail: tv <= 0.2 except 2% -> L1")
    record = fold({0.0: 1_000}, 0.01)
    told = statement(
        measured_guarantees(contract, run(seen("drift", record, 0.01), seen("tail", fold({0.0: 1_000}, 0.02), 0.02)))
    )
    assert Fraction(told["premises"][0]["upper_limit_exact"]) == pytest.approx(share_upper_limit(record, 0.01, 0.005))


def test_a_clause_without_exception_is_measured_as_one_with() -> None:
    contract = checked("drift: logit_span <= 0.2 -> L2")
    told = statement(measured_guarantees(contract, run(seen("drift", fold({0.0: 2_000}, 0.0), 0.0, "maximum"))))
    assert told["premises"][0]["text"].startswith("logit_span <= 0.2 except ")
    broken = statement(
        measured_guarantees(contract, run(seen("drift", fold({0.0: 1_990, 0.1: 10}, 0.0), 0.0, "maximum")))
    )
    assert float(broken["bound"]) > float(told["bound"]) > 0.0499


def test_a_slice_gets_statements_from_clauses_on_it_only() -> None:
    contract = checked("drift: logit_span <= 0.6 except 1% on code -> L2", f"{SAFE} on code; all: reward_drift <= 0.5")
    found = measured_guarantees(contract, run(seen("drift", fold({0.0: 900}, 0.01), 0.01, scope="code")))
    assert statement(found, "code")["bound"] is not None
    assert statement(found)["bound"] is None and "no clause measured on this traffic" in statement(found)["reason"]


def test_nothing_is_claimed_of_responses_chosen_by_what_was_sampled() -> None:
    contract = checked("drift: logit_span <= 0.6 except 1% on long -> L2", f"{SAFE} on long")
    told = statement(
        measured_guarantees(contract, run(seen("drift", fold({0.0: 900}, 0.01), 0.01, scope="long"))), "long"
    )
    assert told["bound"] is None
    assert "chosen by `position`" in told["reason"] and "nothing can be said" in told["sentence"]


@pytest.mark.parametrize(
    ("record", "changes", "why"),
    [
        ({1.0: 50}, {}, "no clause measured"),
        ({}, {}, "no clause measured"),
        ({0.0: 900}, {"missing": 3}, "no clause measured"),
        ({0.0: 900}, {"unknown": 3}, "no clause measured"),
    ],
)
def test_what_was_not_measured_says_nothing(record: dict[float, int], changes: dict[str, int], why: str) -> None:
    told = statement(measured_guarantees(checked(), run(seen("drift", fold(record, 0.01), 0.01, **changes))))
    assert told["bound"] is None and why in told["reason"]


def test_too_few_requests_for_long_responses() -> None:
    contract = checked("drift: logit_span <= 0.05 except 1% -> L2", "safe: reward_drift <= 0.9", horizon=64)
    told = statement(measured_guarantees(contract, run(seen("drift", fold({0.0: 100}, 0.01), 0.01))))
    assert told["bound"] is None and "clean requests say nothing" in told["reason"]
    needed = int(told["reason"].split(" clean")[0].split()[-1].replace(",", ""))
    record = fold({0.0: 4 * needed}, 0.01)
    assert statement(measured_guarantees(contract, run(seen("drift", record, 0.01))))["bound"] is not None


def test_an_unbounded_mean_says_nothing() -> None:
    contract = checked("kl: mean kl(candidate || reference) <= 1e-4 nats -> L1", "safe: reward_drift <= 0.5")
    told = statement(
        measured_guarantees(contract, run(seen("kl", fold({0.0: 5_000}, 1e-4, bounded=False), 1e-4, "mean")))
    )
    assert told["bound"] is None


def test_one_look() -> None:
    record = fold({0.0: 1_000}, 0.01)
    peeked = statement(measured_guarantees(checked(), run(seen("drift", record, 0.01))))
    found = measured_guarantees(checked(), run(seen("drift", record, 0.01), one_look=True))
    assert float(statement(found)["bound"]) < float(peeked["bound"])
    assert "at this one look" in found["about"]
    cut = statement(measured_guarantees(checked(), run(seen("drift", record, 0.01), one_look=True, complete=False)))
    assert cut["bound"] is None and "interrupted" in cut["reason"]


def test_a_claim_about_tokens_names_its_exception() -> None:
    contract = checked(
        "ratio: importance_ratio in [0.95, 1.05] except 1% -> L2", "room: clip_share(clip = 0.2) <= 50% except 1%"
    )
    told = statement(measured_guarantees(contract, run(seen("ratio", fold({0.0: 2_000}, 0.01), 0.01))))
    assert told["bound"] is not None and told["exception"].endswith("%")
    assert f"except {told['exception']} of tokens" in told["sentence"]


def test_confidence_is_that_of_all_statements() -> None:
    assert Fraction(99, 100) == CONFIDENCE
    assert certified_rate(1_000, 0.99) < share_upper_limit(fold({0.0: 1_000}, 0.01), 0.01, 0.01)
