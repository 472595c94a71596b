"""Verdicts are functions of the merged record; confidence limits hold under peeking; a table of false alarms at full size."""

from __future__ import annotations

import importlib.util
import math
import random
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.runtime.clauses import Cell, ClauseSpec
from kcverify.runtime.judgement import Seen, at_most, judge_clause
from kcverify.runtime.many import Judged
from kcverify.runtime.sequential import (
    Wealth,
    fold,
    log_e_mean_at,
    log_e_share,
    log_e_share_at,
    mean_upper_limit,
    rate_upper_limit,
    share_upper_limit,
)

KINDS = ("share", "binary", "mean", "maximum")
VALUES = st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.25, 1.0]), max_size=60)


def clause(kind: str, severity: str) -> ClauseSpec:
    fields = {"family": "numerical", "metric": "tv", "statistic": "max", "text": "c: tv <= 0.1"}
    return ClauseSpec(name="c", severity=severity, evidence=kind, slices=("a", "b", "c"), **fields)


def verdicts(kind: str, severity: str, records: list[Wealth], missing: int, one_look: bool) -> list[Judged]:
    spec = clause(kind, severity)
    limit = 0.0 if kind == "maximum" else 0.05
    seen = [
        Seen(spec, Cell(0, name), record, limit, 10 * record.requests, 0, 0, missing, record.exceeding)
        for name, record in zip(spec.slices, records, strict=True)
    ]
    return judge_clause(seen, one_look=one_look)


@given(
    st.sampled_from(KINDS), st.sampled_from(["L1", "L3"]), st.tuples(VALUES, VALUES, VALUES), st.booleans(),
    st.integers(0, 1), st.integers(1, 5), st.randoms(),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_any_sharding_and_order_gives_the_same_verdicts_and_the_same_evidence(
    kind: str,
    severity: str,
    streams: tuple[list[float], ...],
    one_look: bool,
    missing: int,
    shards: int,
    draw: random.Random,
) -> None:
    """pass, fail, inconclusive and unobservable: equal verdicts, reasons and log e-values, bit for bit."""
    limit = 0.0 if kind == "maximum" else 0.05
    whole = [fold({v: s.count(v) for v in set(s)}, limit) for s in streams]
    merged = []
    for stream in streams:
        parts = [Wealth() for _ in range(shards)]
        for value in draw.sample(stream, len(stream)):
            draw.choice(parts).add(value, limit)
        draw.shuffle(parts)
        while len(parts) > 1:
            parts[0].merge(parts.pop())
        merged.append(parts[0])
    assert verdicts(kind, severity, merged, missing, one_look) == verdicts(kind, severity, whole, missing, one_look)


@given(VALUES.filter(bool), st.sampled_from([0.01, 0.05, 0.4]), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
@settings(max_examples=100, deadline=None)
def test_evidence_at_other_limits_grows_with_them(values: list[float], limit: float, a: float, b: float) -> None:
    record = fold({v: values.count(v) for v in set(values)}, limit)
    low, high = min(a, b), max(a, b)
    assert log_e_share_at(record, limit, low) <= log_e_share_at(record, limit, high) + 1e-12
    assert log_e_mean_at(record, limit, low) <= log_e_mean_at(record, limit, high) + 1e-12
    assert log_e_share_at(record, limit, limit) == pytest.approx(log_e_share(record, limit), abs=1e-9)


@given(VALUES.filter(bool), st.sampled_from([0.01, 0.05, 0.4]))
@settings(max_examples=60, deadline=None)
def test_limits_of_confidence_are_beyond_what_was_seen(values: list[float], limit: float) -> None:
    record = fold({v: values.count(v) for v in set(values)}, limit)
    mean = sum(values) / len(values)
    assert share_upper_limit(record, limit, 0.05) >= mean
    assert mean_upper_limit(record, limit, 0.05) >= mean
    assert rate_upper_limit(record.exceeding, record.requests, 0.05) >= record.exceeding / record.requests


@pytest.mark.parametrize("kind", ["rare and total", "clustered", "spread"])
def test_upper_limits_cover_at_all_looks_together(kind: str) -> None:
    """Streams of mean share 0.05: a limit below it at any of 200 looks in at most 5 % (+ noise) of them."""
    draw, truth = random.Random(6), 0.05
    share = {
        "rare and total": lambda: float(draw.random() < truth),
        "clustered": lambda: 0.25 if draw.random() < 0.2 else 0.0,
        "spread": lambda: draw.choice([0.0, 0.025, 0.075, 0.1]),
    }[kind]
    wrong = {"share": 0, "mean": 0}
    for _ in range(120):
        record, broken = Wealth(), set()
        for _ in range(200):
            record.add(share(), 0.02)
            # the limit is below the truth exactly when the truth is rejected as too large
            if log_e_share_at(record, 0.02, truth) >= math.log(20):
                broken.add("share")
            if log_e_mean_at(record, 0.02, truth) >= math.log(20):
                broken.add("mean")
        for name in broken:
            wrong[name] += 1
    assert max(wrong.values()) <= 14


def test_what_is_not_measured_has_no_limit() -> None:
    spec = clause("share", "L1")
    assert at_most(Seen(spec, Cell(0, "a"), Wealth(), 0.05, 0, 0, 0, 0, 0), 0.05) is None
    seen = fold({0.0: 50}, 0.05)
    assert at_most(Seen(spec, Cell(0, "a"), seen, 0.05, 500, 0, 0, 3, 0), 0.05) is None
    assert at_most(Seen(spec, Cell(0, "a"), seen, 0.05, 500, 0, 0, 0, 0), 0.05) == pytest.approx(0.0836, abs=0.005)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "sequential.py"
    spec = importlib.util.spec_from_file_location("sequential_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_false_alarms_at_reduced_size(benchmark: ModuleType) -> None:
    """The benchmark with 400 streams of 1,000 looks: at most alpha (+ noise), where the exact test at every look is not."""
    rows = benchmark.rates(400, 1_000)
    assert max(row["sequential"] for row in rows) <= 0.05 + 0.025
    assert max(row["exact at every look"] for row in rows) >= 0.2
    assert max(row["untruncated Beta"] for row in rows if "untruncated Beta" in row) >= 0.5


def test_clusters_fool_a_test_of_tokens_not_one_of_requests(benchmark: ModuleType) -> None:
    rows = benchmark.clustered(300, 100)
    assert max(row["request as unit"] for row in rows) <= 0.05 + 0.03
    assert max(row["false pass"] for row in rows) <= 0.05 + 0.03
    assert max(row["token as unit"] for row in rows) >= 0.3


def test_routing_at_reduced_size(benchmark: ModuleType) -> None:
    """No false fallback, a fallback within some 1,500 requests, while a moving average falls back on good traffic."""
    first, *_, average = benchmark.routing(20, 0.1)
    assert first["false fallbacks"] == 0 and first["wrong returns a run"] == 0
    assert first["requests to fallback"] <= 1_500
    assert average["false fallbacks"] >= 3
