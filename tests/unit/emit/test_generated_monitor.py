"""Generated monitors: readable, the same from run to run, safe against hostile text, honest about what is left out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch

from kcverify.catalog.metrics import numerical, runtime, sampled, statistical
from kcverify.catalog.model import Statistic
from kcverify.elaborate.contract import Assumptions, Band, Clause, Contract, Interval, Limit, Stage, Threshold
from kcverify.emit.monitor import comment, emit_monitor, literal
from kcverify.emit.plan import DEFAULT_MINIMUM_REQUESTS, plan
from kcverify.runtime import Monitor, MonitorInputError
from kcverify.source import Source, Span

torch.set_num_threads(1)
METRICS = {m.name: m for table in (numerical, sampled, statistical, runtime) for m in table.ROWS}
SPAN = Span(Source("example.kc", ""), 0, 0)
HOSTILE = 'a"""\nimport os\r"\'\\ {{ x }} {% y %} # \x00 \u2028 é \U0001f600'


def threshold(value: str | Threshold | None) -> Threshold | None:
    return Threshold(Fraction(value)) if isinstance(value, str) else value


def clause(
    name: str, metric: str, low: str | Threshold | None = None, high: str | Threshold | None = None, **fields: Any
) -> Clause:
    limit = Limit(threshold(low), threshold(high), strict=fields.pop("strict", False), hole=fields.pop("hole", False))
    row = METRICS[metric]
    text = f"{name}: {metric} {'in' if low and high else '>=' if low else '<='} {low or ''}{high or ''}"
    values: dict[str, Any] = {"arguments": (), "statistic": row.statistic, "severity": "L2", "text": text}
    return Clause(name=name, metric=row, limit=limit, span=SPAN, value_span=SPAN, **(values | fields))


RHO = Fraction(1, 5000)
SCALED = Threshold(Fraction(0), (("temperature", Fraction(1, 20)),))
CLAUSES = (
    clause("drift", "logit_span", None, "0.05", exception=RHO),
    clause("hard", "logit_drift", None, "0.5"),
    clause("tail", "tv", None, "0.01", exception=Fraction(1, 1000), slices=("safety", "long_context"), severity="L3"),
    clause("kl_mean", "kl(candidate || reference)", None, "1e-4", statistic=Statistic.MEAN),
    clause("close", "affinity", "0.9", statistic=Statistic.MEAN),
    clause("ratio", "importance_ratio", "0.95", "1.05", exception=Fraction(1, 100)),
    clause("scaled", "logit_span", None, SCALED, exception=RHO, unit="token"),
    clause(
        "cool", "logit_span", None, "0.04", band=Band("temperature", Interval(Fraction(3, 5), Fraction(4, 5), True))
    ),
    clause("seq", "sequence_ratio", "0.5", "2", exception=Fraction(1, 100)),
    clause("sampled", "token_log_ratio", None, "0.1", exception=Fraction(1, 100)),
    clause("top1", "agreement", "0.99"),
    clause("order", "agreement", "0.95", arguments=(("top", Fraction(5)), ("ordered", "true"))),
    clause("speed", "throughput", "1500"),
    clause("kept", "logit_span", None, "0.03", arguments=(("mass", Fraction("0.999")),), exception=RHO),
    clause("k3", "token_k3", None, "0.1", statistic=Statistic.MEAN),
    clause("w", "token_ratio", "0.5", "2", exception=RHO),
    clause("flips", "flip_rate", None, "0.01", arguments=(("margin", Fraction("0.1")),)),
    clause("ece", "ece_drift", None, "0.01", arguments=(("bins", "own"), ("count", Fraction(10)))),
    clause("ess", "ess", "0.5"),
    clause("reward", "reward_delta", None, "0.02"),
    clause("parses", "parse_rate", "0.99", slices=("safety",)),
    clause("late", "latency", None, "0.12", statistic=Statistic.MAX, exception=Fraction(1, 100), window=Fraction(600)),
)
ASSUMED = Assumptions(
    temperature=Interval(Fraction(3, 5), Fraction(1)),
    reward=Interval(Fraction(-1), Fraction(1)),
    independent_tokens=True,
)


def contract(*clauses: Clause, **fields: Any) -> Contract:
    values: dict[str, Any] = {
        "name": "example",
        "version": "1.0",
        "description": "",
        "span": SPAN,
        "assumptions": ASSUMED,
    }
    return Contract(clauses=clauses, **(values | fields))


def source(given: Contract, **fields: Any) -> str:
    values: dict[str, Any] = {"verdicts": {"reward_safe": "PROVED"}, "digest": "sha256:0123", "version": "0.1.0"}
    return emit_monitor(given, **(values | fields))


def built(given: Contract, temperature: float | None = None, **fields: Any) -> Monitor:
    scope: dict[str, Any] = {}
    exec(compile(source(given, **fields), "monitor.py", "exec"), scope)
    made = scope["ContractMonitor"](temperature)
    assert isinstance(made, Monitor)
    return made


def test_golden(golden: Callable[[str], None]) -> None:
    golden(source(contract(*CLAUSES)))


def test_identical_from_run_to_run_and_in_any_order_of_verdicts() -> None:
    one = source(contract(*CLAUSES), verdicts={"a": "PROVED", "b": "UNKNOWN"})
    two = source(contract(*CLAUSES), verdicts={"b": "UNKNOWN", "a": "PROVED"})
    assert one == two and "# guarantee:  b UNKNOWN\n" in one


def test_generated_text_imports_the_runtime_only_and_never_synchronises() -> None:
    text = source(contract(*CLAUSES))
    names = [n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    assert names == ["kcverify.runtime"] and not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import)]
    assert ".item()" not in text and text.isascii()


def test_it_measures() -> None:
    monitor = built(contract(*CLAUSES), 0.6)
    z = torch.randn(60, 32, generator=torch.Generator().manual_seed(0))
    masks = {"safety": torch.ones(60, dtype=torch.bool), "long_context": torch.zeros(60, dtype=torch.bool)}
    monitor.update(
        z, z + 1.0, request_ids=torch.arange(60), sampled_ids=torch.zeros(60, dtype=torch.int64), slices=masks
    )
    report = monitor.report()
    words = {(c["name"], c["slice"]): c["verdict"] for c in report["clauses"]}
    assert words[("hard", None)] == "fail" and words[("cool", None)] == "pass"
    assert words[("tail", "safety")] == words[("drift", None)] == "inconclusive"
    assert words[("speed", None)] == words[("late", None)] == words[("reward", None)] == "unobservable"
    assert report["contract"] == "example" and report["digest"] == "sha256:0123"


@pytest.mark.parametrize("field", ["name", "version"])
def test_hostile_contract_strings_stay_strings(field: str) -> None:
    monitor = built(contract(*CLAUSES, **{field: HOSTILE}))
    assert getattr(type(monitor), {"name": "CONTRACT", "version": "VERSION"}[field]) == HOSTILE


@pytest.mark.parametrize("field", ["name", "text", "severity"])
def test_hostile_clause_strings_stay_strings(field: str) -> None:
    hostile = [replace(c, **{field: HOSTILE + c.name}) for c in CLAUSES]
    monitor = built(contract(*hostile))
    assert [getattr(c, field) for c in type(monitor).CLAUSES] == [HOSTILE + c.name for c in CLAUSES]
    monitor.update(torch.zeros(1, 3), torch.zeros(1, 3), request_ids=[0], sampled_ids=torch.tensor([1]))


def test_hostile_slices_digest_and_verdicts_stay_strings() -> None:
    tail = replace(CLAUSES[2], slices=(HOSTILE,))
    monitor = built(contract(tail), digest=HOSTILE, verdicts={HOSTILE: HOSTILE}, version=HOSTILE)
    assert type(monitor).CLAUSES[0].slices == (HOSTILE,)
    assert type(monitor).DIGEST == HOSTILE and type(monitor).GUARANTEES == ((HOSTILE, HOSTILE),)


@pytest.mark.parametrize("text", [HOSTILE, "", '"', "\\", "\\n", "'", "\ud800", "\x7f\x85"])
def test_literals_and_comments(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text
    assert literal(text).isascii() and comment(text).isascii() and len(comment(text).splitlines()) <= 1


def test_limits_are_rounded_to_the_safe_side() -> None:
    planned = {c.clause.name: c for c in plan(contract(*CLAUSES)).clauses}
    upper, lower = planned["ratio"].upper, planned["ratio"].lower
    assert upper and lower and upper.value and lower.value
    assert Fraction(upper.value) <= Fraction("1.05") < Fraction(upper.value) + Fraction(1, 10**15)
    assert Fraction(lower.value) >= Fraction("0.95") > Fraction(lower.value) - Fraction(1, 10**15)
    exact = plan(contract(clause("x", "tv", None, "0.25"))).clauses[0].upper
    strict = plan(contract(clause("x", "tv", None, "0.25", strict=True))).clauses[0].upper
    assert exact and exact.value == 0.25
    assert strict and strict.value is not None and strict.value < 0.25


def test_a_limit_is_met_at_equality() -> None:
    z = torch.zeros(1, 2)
    w = torch.tensor([[0.25, 0.0]])
    for limit, verdict in (("0.25", 0), ("0.249999999", 1)):
        monitor = built(contract(clause("x", "logit_span", None, limit)))
        monitor.update(z, w, request_ids=[0])
        assert monitor.report()["clauses"][0]["evidence"]["exceeding_rows"] == verdict


def test_limits_that_depend_on_the_temperature_are_evaluated_exactly() -> None:
    monitor = built(contract(*CLAUSES), 0.7)
    assert (
        Fraction(monitor.upper["scaled"]) <= Fraction(7, 200) < Fraction(monitor.upper["scaled"]) + Fraction(1, 10**15)
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (clause("x", "logit_span", hole=True), "hole"),
        (clause("x", "tv", None, "0.1", band=Band("horizon", Interval(Fraction(1), None))), "horizon"),
        (clause("x", "tv", None, "0.1", statistic=Statistic.MEAN, exception=RHO), "mean"),
        (clause("x", "tv", "0.1", "0.2", statistic=Statistic.MEAN), "one clause for each end"),
        (clause("x", "chi2", "0.1", statistic=Statistic.MEAN), "mean"),
        (clause("x", "log_ratio", None, "0.1", statistic=Statistic.RATE), "no rate"),
        (clause("x", "agreement", "0.9", exception=RHO), "exception"),
        (clause("x", "log_ratio", None, Threshold(Fraction(1), (("reward", Fraction(1)),))), "reward"),
        (clause("x", "logit_span", None, SCALED, strict=True), "strict"),
        (clause("x", "agreement", None, "0.9"), "agreement"),
        (clause("x", "tv", None, "0.1", band=Band("temperature", Interval(None, Fraction(1)))), ""),
    ],
)
def test_what_is_not_enforced_says_why(given: Clause, reason: str) -> None:
    planned = plan(contract(given)).clauses[0]
    assert planned.enforced == (reason == "") and reason in planned.reason
    entry = built(contract(given)).report()["clauses"][0]
    assert entry["verdict"] == ("not_enforced" if reason else "inconclusive")


def test_counting_tokens_needs_the_assumption() -> None:
    given = clause("x", "tv", None, "0.1", exception=RHO, unit="token")
    assert plan(contract(given)).clauses[0].evidence == "binary"
    assert not plan(contract(given, assumptions=Assumptions())).clauses[0].enforced


def test_minimum_requests_come_from_the_offline_stage() -> None:
    assert plan(contract()).minimum_requests == DEFAULT_MINIMUM_REQUESTS
    staged = contract(stages=(Stage("shadow", SPAN, min_requests=7), Stage("offline", SPAN, min_requests=250)))
    assert plan(staged).minimum_requests == 250


def test_only_the_statistics_of_the_clauses_are_planned() -> None:
    planned = plan(contract(clause("x", "logit_span", None, "1")))
    assert planned.statistics == ("logit_span",) and planned.top == ()
    assert set(plan(contract(*CLAUSES)).top) == {(1, False), (5, True)}


def test_temperature_outside_the_assumption_is_refused() -> None:
    with pytest.raises(MonitorInputError, match="assumed range"):
        built(contract(*CLAUSES), 0.5)
    point = contract(
        *CLAUSES,
        assumptions=Assumptions(temperature=Interval(Fraction(7, 10), Fraction(7, 10)), independent_tokens=True),
    )
    assert built(point).temperature == 0.7
