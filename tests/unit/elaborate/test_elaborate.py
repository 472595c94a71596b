"""From the syntax tree to the typed contract: exact numbers, defaults, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from kcverify.catalog.model import Statistic
from kcverify.diagnostics import Diagnostic, Report
from kcverify.elaborate import elaborate
from kcverify.elaborate.contract import (
    Band,
    Clause,
    Conjunction,
    Contract,
    Disjunction,
    FieldCompare,
    FieldWithin,
    HasTag,
    Interval,
    Limit,
    Negation,
    Sampler,
    Threshold,
)
from kcverify.source import Source
from kcverify.syntax import parse

ASSUME = "assume { temperature in [0.6, 1.0]; horizon <= 256 tokens; vocabulary = 151936; independent tokens }"


def _read(text: str, **parameters: Fraction) -> tuple[tuple[Contract, ...], list[Diagnostic]]:
    report = Report()
    file = parse(Source("x.kc", text), report)
    assert report.diagnostics == []
    return elaborate(file, report, parameters=parameters), report.diagnostics


def _clause(line: str, block: str = "numerical", extra: str = ASSUME, **parameters: Fraction) -> Clause:
    (contract,), diagnostics = _read(f"contract c\n{extra}\n{block} {{ {line} }}\n", **parameters)
    assert diagnostics == []
    return (contract.clauses or contract.guarantees)[0]


def _faults(line: str, block: str = "numerical", extra: str = ASSUME) -> list[Diagnostic]:
    return _read(f"contract c\n{extra}\n{block} {{ {line} }}\n")[1]


def _fault(line: str, block: str = "numerical", extra: str = ASSUME) -> Diagnostic:
    [diagnostic] = _faults(line, block, extra)
    return diagnostic


def test_the_first_example(data: Path) -> None:
    (contract,), diagnostics = _read((data / "rl_rollout.kc").read_text(encoding="utf-8"))
    assert diagnostics == []
    assert (contract.name, contract.version) == ("qwen3_fp8_rollout", "1.2")
    assert contract.description == "FP8 rollout engine against the BF16 trainer"
    assert [role.role for role in contract.roles] == ["reference", "candidate", "guarded", "safe"]
    assumed = contract.assumptions
    assert assumed.temperature == Interval(Fraction(3, 5), Fraction(1))
    assert assumed.sampler == Sampler("full_softmax")
    assert (assumed.horizon, assumed.vocabulary, assumed.storage) == (256, 151936, "float32")
    assert (assumed.reward, assumed.advantage, assumed.score_norm) == (
        Interval(Fraction(0), Fraction(1)),
        Fraction(5),
        Fraction(2),
    )
    assert (assumed.logit_range, assumed.traffic) == (Interval(Fraction(-40), Fraction(40)), Fraction(20))
    assert assumed.spans["horizon"].text == "horizon      <= 256 tokens"
    clauses = {clause.name: clause for clause in (*contract.clauses, *contract.guarantees)}
    assert len(clauses) == len(contract.clauses) + len(contract.guarantees) == 15
    assert clauses["drift"].limit == Limit(upper=Threshold(Fraction(1, 20)))
    assert clauses["drift"].exception == Fraction(2, 10_000)
    assert clauses["tail"].slices == ("safety",)
    assert clauses["kl_mean"].statistic is Statistic.MEAN
    assert clauses["kl_mean"].metric.quantity == "kl_candidate_reference"
    assert clauses["ratio"].limit == Limit(Threshold(Fraction(19, 20)), Threshold(Fraction(21, 20)))
    assert clauses["tail_latency"].exception == Fraction(1, 100)
    assert clauses["tail_latency"].limit == Limit(upper=Threshold(Fraction(12, 100)))
    assert clauses["cache"].limit == Limit(upper=Threshold(Fraction(40 * 2**30)))
    assert clauses["speed"].limit == Limit(lower=Threshold(Fraction(1500)))
    assert clauses["clip_room"].argument("clip") == Fraction(1, 5)
    assert clauses["clip_room"].severity == ""
    assert clauses["drift"].text == "drift: logit_span <= 0.05 except 0.02% -> L2"
    assert [(action.severity, action.action) for action in contract.actions] == [
        ("L1", "log"),
        ("L2", "guard"),
        ("L3", "rollback"),
    ]
    assert contract.actions[1].false_alarm_every == 30 * 86400
    assert (contract.actions[2].dwell, contract.actions[2].recover) == (Fraction(3600), 20_000)
    assert [stage.name for stage in contract.stages] == ["offline", "shadow", "canary", "full"]
    assert contract.stages[0].data == "eval/*.jsonl"
    assert (contract.stages[1].mirror, contract.stages[1].duration) == (Fraction(1), Fraction(7200))
    assert contract.stages[2].traffic == (Fraction(1, 100), Fraction(5, 100), Fraction(1, 4))
    assert contract.stages[3].stable == 86400
    assert contract.observability is not None
    assert contract.observability.replay == 86400
    assert contract.slices[0].predicate == FieldCompare("prompt_tokens", ">=", Fraction(8192))


def test_the_other_examples(data: Path) -> None:
    (hole,), diagnostics = _read((data / "hole.kc").read_text(encoding="utf-8"))
    assert diagnostics == []
    assert hole.clauses[0].limit == Limit(hole=True)
    (more,), diagnostics = _read((data / "more_syntax.kc").read_text(encoding="utf-8"))
    assert diagnostics == []
    clauses = {clause.name: clause for clause in more.clauses}
    assert clauses["scaled"].limit.upper == Threshold(Fraction(0), (("temperature", Fraction(1, 20)),))
    assert clauses["cool"].band == Band("temperature", Interval(Fraction(3, 5), Fraction(4, 5), True))
    assert clauses["kept"].argument("mass") == Fraction(999, 1000)
    assert clauses["sampled"].unit == "token"
    assert clauses["tuned"].limit.upper == Threshold(Fraction(1, 100))
    assert clauses["tuned"].exception == Fraction(1, 256)
    assert clauses["tuned"].confidence == Fraction(99, 100)
    assert clauses["order"].arguments == (("top", Fraction(5)), ("ordered", "true"))
    assert clauses["first"].window == 600
    assert more.assumptions.sampler == Sampler("top_p", Fraction(19, 20))
    assert more.splits == (("drift", Fraction(7, 10)), ("tail", Fraction(3, 10)))
    region = FieldCompare("region", "==", "eu")
    wanted = Conjunction(
        (HasTag("structured"), Negation(Disjunction((FieldCompare("position", "<", Fraction(4)), region))))
    )
    assert more.slices[1].predicate == wanted
    assert more.slices[1].fields == ("tags", "position", "region")
    assert more.slices[0].predicate == FieldWithin("prompt_tokens", Interval(Fraction(8192), Fraction(32768), True))
    kernels, diagnostics = _read((data / "fp8_gemm.kc").read_text(encoding="utf-8"))
    assert kernels == ()
    assert [diagnostic.code.slug for diagnostic in diagnostics] == ["not_enforced"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Fraction(1, 10)),
        ("5%", Fraction(1, 20)),
        ("2^-8", Fraction(1, 256)),
        ("1 / 3", Fraction(1, 3)),
        ("-(1 - 2) * 0.5", Fraction(1, 2)),
        ("1e-400", Fraction(1, 10**400)),
        ("vocabulary / 1519360", Fraction(1, 10)),
        ("(temperature + 0.1 - temperature)", Fraction(1, 10)),
    ],
)
def test_numbers_are_exact(text: str, value: Fraction) -> None:
    assert _clause(f"a: tv <= {text} -> L1").limit.upper == Threshold(value)


def test_thresholds_are_linear_in_assumptions() -> None:
    limit = _clause("a: logit_span <= (0.05 * temperature + 2 * horizon) / 2 - 1 -> L1").limit
    assert limit.upper == Threshold(Fraction(-1), (("temperature", Fraction(1, 40)), ("horizon", Fraction(1))))


@pytest.mark.parametrize("text", ["temperature * horizon", "1 / temperature", "temperature ^ 2", "2 ^ temperature"])
def test_what_is_not_linear(text: str) -> None:
    assert _fault(f"a: logit_span <= {text} -> L1").code.slug == "not_linear"


def test_parameters_are_substituted_and_replaced() -> None:
    extra = "param tol = 0.02\nparam half = tol / 2\nparam slow = 120 ms"
    assert _clause("a: tv <= half -> L1", extra=extra).limit.upper == Threshold(Fraction(1, 100))
    assert _clause("a: tv <= half -> L1", extra=extra, tol=Fraction(1, 10)).limit.upper == Threshold(Fraction(1, 20))
    slow = _clause("a: p99 latency <= 2 * slow -> L1", "runtime", extra, slow=Fraction(60))
    assert slow.limit.upper == Threshold(Fraction(12, 100))
    _, diagnostics = _read("contract c\nparam tol = 0.02\n", tool=Fraction(1))
    assert [(d.code.slug, d.hint) for d in diagnostics] == [("unknown_parameter", "did you mean `tol`?")]


@pytest.mark.parametrize(
    ("line", "block", "exception", "quantile"),
    [
        ("a: p99 tv <= 0.01 -> L1", "numerical", Fraction(1, 100), Fraction(99)),
        ("a: p99.9 latency <= 1 s -> L1", "runtime", Fraction(1, 1000), Fraction(999, 10)),
        ("a: p1 affinity >= 0.9 -> L1", "numerical", Fraction(1, 100), Fraction(1)),
        ("a: tv <= 0.01 -> L1", "numerical", Fraction(0), None),
    ],
)
def test_a_quantile_is_an_exception(line: str, block: str, exception: Fraction, quantile: Fraction | None) -> None:
    clause = _clause(line, block)
    assert (clause.statistic, clause.exception, clause.quantile) == (Statistic.MAX, exception, quantile)


def test_directions_by_role_and_by_alias() -> None:
    pair = 'pair { reference trainer = "a"; candidate rollout = "b" }'
    assert _clause("a: kl(rollout || trainer) <= 1 nats -> L1", extra=pair).metric.quantity == "kl_candidate_reference"
    assert (
        _clause("a: kl(reference || rollout) <= 1 nats -> L1", extra=pair).metric.quantity == "kl_reference_candidate"
    )
    assert _fault("a: kl(rollout || candidate) <= 1 nats -> L1", extra=pair).code.slug == "direction_missing"
    assert _fault("a: kl(rolout || trainer) <= 1 nats -> L1", extra=pair).hint == "did you mean `rollout`?"


def test_bits_are_rounded_to_the_strict_side() -> None:
    ln2 = 0.6931471805599453
    for line, side in (("a: kl(candidate || reference) <= 1 bits -> L1", "upper"),):
        (contract,), diagnostics = _read(f"contract c\nnumerical {{ {line} }}\n")
        bound = getattr(contract.clauses[0].limit, side)
        assert abs(float(bound.constant) - ln2) < 1e-15
        assert [diagnostic.code.slug for diagnostic in diagnostics] == ["unit_rounded"]
        assert bound.constant < Fraction(693147180559945309417232121458176568075500134360255254120681, 10**60)


BAD = [
    ("a: logit_spam <= 0.05 -> L1", "numerical", "unknown_metric", "did you mean `logit_span`?"),
    ("a: p99 latency <= 0.12 -> L1", "runtime", "unit_missing", "write `120 ms` (that is 0.12 s)"),
    ("a: p99 latency <= 120 -> L1", "runtime", "unit_missing", "write `2 minutes` (that is 120 s) or `120 ms`"),
    ("a: kv_cache <= 40 GB -> L1", "runtime", "unknown_unit", "write `37.253 GiB`"),
    ("a: p99 latency <= 2 min -> L1", "runtime", "unknown_unit", "write `2 minutes`"),
    ("a: mean kl(candidate || reference) <= 1e-4 -> L1", "numerical", "unit_missing", "write `0.0001 nats`"),
    ("a: mean kl(candidate || reference) <= 1e-4 ms -> L1", "numerical", "unit_wrong", "nats, bits"),
    ("a: tv <= 0.01 nats -> L1", "numerical", "unit_forbidden", "write `0.01`"),
    ("a: logit_span <= 5% -> L1", "numerical", "unit_forbidden", "write `0.05`"),
    ("a: importance_ratio in [1.05, 0.95] -> L1", "numerical", "range_reversed", "write `[0.95, 1.05]`"),
    ("a: tv <= NaN -> L1", "numerical", "number_not_finite", ""),
    ("a: tv <= -inf -> L1", "numerical", "number_not_finite", ""),
    ("a: tv <= 1e999999999 -> L1", "numerical", "number_invalid", ""),
    ("a: mean kl <= 1e-4 nats -> L1", "numerical", "direction_missing", "kl(reference || candidate)"),
    ("a: tv <= 0.01 on safety -> L1", "numerical", "unknown_slice", "declare it"),
    ("a: agreement >= 120% -> L1", "statistical", "threshold_impossible", ""),
    ("a: agreement(top = 1.5) >= 99% -> L1", "statistical", "argument_invalid", ""),
    ("a: ece_drift(bins = mine) <= 0.1 -> L1", "statistical", "argument_invalid", ""),
    ("a: ece_drift(bins = own, bins = own) <= 0.1 -> L1", "statistical", "duplicate", ""),
    ("a: p100 tv <= 0.1 -> L1", "numerical", "number_range", ""),
    ("a: p99 importance_ratio in [0.9, 1.1] -> L1", "numerical", "statistic_not_allowed", "except"),
    ("a: p99 tv <= 0.1 except 1% -> L1", "numerical", "modifier_not_allowed", ""),
    ("a: tv <= 0.1 at confidence 100% -> L1", "numerical", "number_range", ""),
    ("a: tv <= 0.1 over 0 s -> L1", "numerical", "number_range", ""),
    ("a: tv <= 0.1 unit tokens -> L1", "numerical", "unknown_word", "did you mean `token`?"),
    ("a: sequence_ratio in [0.5, 2] unit token -> L1", "numerical", "modifier_not_allowed", ""),
    ("a: tv <= 0.1 when horizon in (1, 2] -> L1", "numerical", "range_ends", ""),
    ("a: tv <= 0.1 when temperature in [1, 1) -> L1", "numerical", "range_reversed", "different ends"),
    ("a: tv <= 0.1 when sampler in [1, 2) -> L1", "numerical", "band_parameter", "temperature, horizon"),
    ("a: tv >= ? -> L1", "numerical", "direction_unusual", ""),
    ("a: sequence_ratio <= ? -> L1", "numerical", "hole_not_allowed", ""),
    ("a: agreement >= ? -> L1", "statistical", "hole_not_allowed", ""),
    ("a: reward_drift <= 0.1 -> L1", "numerical", "wrong_block", "guarantee"),
    ("a: p99 latency <= 1 s", "guarantee", "wrong_block", "runtime"),
    ("a: reward_drift <= 0.1 -> L1", "guarantee", "modifier_not_allowed", ""),
    ("a: tv <= 0.1 at confidence 99%", "guarantee", "modifier_not_allowed", ""),
]


@pytest.mark.parametrize(("line", "block", "slug", "hint"), BAD, ids=[f"{row[2]}: {row[0]}" for row in BAD])
def test_bad_input(line: str, block: str, slug: str, hint: str) -> None:
    first = _faults(line, block)[0]
    assert first.code.slug == slug
    assert hint in first.hint
    assert first.span is not None


def test_two_clauses_of_one_name_show_both_places() -> None:
    diagnostic = _fault("a: tv <= 0.1 -> L1; b: tv <= 0.2 -> L1; a: tv <= 0.3 -> L1")
    assert diagnostic.code.slug == "duplicate"
    assert diagnostic.span is not None
    assert diagnostic.related[0].span.start < diagnostic.span.start


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("assume { temperature in [0, 1] }", "number_range"),
        ("assume { temperature in [0.6, 1.0) }", "range_ends"),
        ("assume { horizon <= 2.5 tokens }", "number_range"),
        ("assume { horizon <= 256 }", "unit_missing"),
        ("assume { reward >= 0 }", "assumption_form"),
        ("assume { sampler = top_p }", "assumption_form"),
        ("assume { sampler = top_p(1.5) }", "number_range"),
        ("assume { sampler = top_k(0.5) }", "number_range"),
        ("assume { sampler = nucleus(0.5) }", "unknown_word"),
        ("assume { storage = bf16 }", "unknown_word"),
        ("assume { independent requests }", "assumption_form"),
        ("assume { vocabulary = 1; vocabulary = 2 }", "duplicate"),
        ('pair { reference a = "x"; candidate a = "y" }', "duplicate"),
        ('slice s = tags == "x"', "predicate_type"),
        ("slice s = prompt_tokens >= 5 ms", "unit_wrong"),
        ('slice s = tga("x")', "unknown_word"),
        ('observability { trace region }\nslice s = region < "x"', "predicate_type"),
        ("observability { fingerprint weight }", "unknown_field"),
        ("observability { replay within 24 }", "unit_missing"),
        ("escalate { L1 -> log; L1 -> log }", "duplicate"),
        ("escalate { L1 -> log, dwel 10 minutes }", "unknown_field"),
        ("escalate { L1 -> log, dwell 10 requests }", "field_value"),
        ("escalate { L1 -> log, recover 1.5 requests }", "number_range"),
        ("promote { offline { data 5 requests } }", "field_value"),
        ("promote { canary { traffic 101% } }", "number_range"),
        ("promote { canary { 5% } }", "field_value"),
        ("promote { offline { hold 4 h } }", "unknown_field"),
        ("param a = 1\nparam a = 2", "duplicate"),
        ("param a = b\nparam b = 1", "unknown_name"),
        ("param a = 1 bits", "unit_wrong"),
        ("param a = 1 s + 1", "unexpected"),
        ('use "base.kc"', "use_unreadable"),
        ('"one"\n"two"', "duplicate_block"),
    ],
)
def test_bad_blocks(text: str, slug: str) -> None:
    report = Report()
    file = parse(Source("x.kc", f"contract c\n{text}\n"), report)
    elaborate(file, report, parameters={})
    assert [diagnostic.code.slug for diagnostic in report.diagnostics][:1] == [slug]


def test_a_fault_leaves_the_other_clauses() -> None:
    (contract,), diagnostics = _read("contract c\nnumerical { a: tv <= nan -> L1; b: tv <= 0.1 -> L1 }\n")
    assert [clause.name for clause in contract.clauses] == ["b"]
    assert len(diagnostics) == 1


@pytest.mark.parametrize(
    ("band", "words"), [("[1, 1)", "empty: it begins at 1 and leaves 1 out"), ("[1, 0.8]", "reversed: 1 is above 0.8")]
)
def test_a_range_without_a_number_says_why(band: str, words: str) -> None:
    first = _faults(f"a: tv <= 0.1 when temperature in {band} -> L1", "numerical")[0]
    assert words in first.message
