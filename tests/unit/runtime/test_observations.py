"""What is observed beside the logits: verdicts, sums that merge in any order, and what is missing named."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.runtime import ClauseSpec, Monitor, MonitorInputError, RowPlan, Rows, Values, calibrated, signed
from kcverify.runtime.sequential import judge_binary

torch.set_num_threads(1)


def spec(name: str, metric: str, evidence: str, source: str, **fields: Any) -> ClauseSpec:
    values: dict[str, Any] = {"family": "runtime", "statistic": "max", "text": f"{name}: {metric}", "severity": "L1"}
    return ClauseSpec(name=name, metric=metric, evidence=evidence, source=source, **(values | fields))


class Observed(Monitor):
    """A clause of every observed kind."""

    CONTRACT, DIGEST = "observed", "sha256:1"
    CLAUSES = (
        spec("tail", "latency", "binary", "value", upper=0.1, limit=0.01, exception=0.01),
        spec("hard", "latency", "maximum", "value", upper=1.0, limit=0.0, minimum_requests=5),
        spec("mean", "latency", "mean", "value", upper=0.05, bounded=False),
        spec("first", "time_to_first_token", "binary", "value", upper=0.1, limit=0.05, exception=0.05, window=600.0),
        spec("errors", "failure_rate", "binary", "outcome", upper=0.05, limit=0.05, statistic="rate"),
        spec("parses", "parse_rate", "binary", "outcome", lower=0.9, limit=0.1, statistic="rate", slices=("s",)),
        spec("reward", "reward_delta", "paired", "paired", upper=0.1, width=2.0, statistic="reading"),
        spec("answers", "accuracy_delta", "paired", "paired", upper=0.05, statistic="rate"),
        spec("unbounded", "reward_delta", "paired", "paired", upper=0.1, width=0.0, statistic="reading"),
        spec("speed", "throughput", "reading", "throughput", lower=50.0, statistic="reading", minimum_requests=1),
        spec("memory", "peak_memory", "reading", "peak", upper=1000.0, statistic="reading", minimum_requests=1),
    )
    PLAN = RowPlan(frozenset())

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        return {}


def entry(monitor: Monitor, name: str) -> dict[str, Any]:
    return next(c for c in monitor.report()["clauses"] if c["name"] == name)


def test_nothing_observed_is_unobservable_and_says_what_is_missing() -> None:
    for clause in Observed().report()["clauses"]:
        assert clause["verdict"] == "unobservable" and "was not given" in clause["reason"], clause["name"]
    assert "latency of each request" in entry(Observed(), "tail")["reason"]


def test_a_quantile_is_a_rate_of_requests() -> None:
    monitor = Observed()
    values = [0.05] * 395 + [0.2] * 5
    monitor.observe("latency", request_ids=list(range(400)), values=values)
    found = entry(monitor, "tail")
    want = judge_binary(5, 400, 0.01, 0.95)
    assert (found["verdict"], found["evidence"]["log_e_fail"]) == (want.verdict, want.log_e_fail)
    assert found["evidence"]["exceeding_requests"] == 5 and found["evidence"]["requests"] == 400
    assert found["max"] == {"value": 0.2, "request": 395, "row": None, "token": None}
    low, high = found["quantiles"]["p99"]
    assert low <= sorted(values)[395] <= high <= 0.2
    assert entry(monitor, "hard")["verdict"] == "pass"
    assert entry(monitor, "mean")["evidence"]["observed"] == pytest.approx(sum(values) / 400)


def test_a_request_that_was_never_answered_exceeds_and_nan_fails() -> None:
    monitor = Observed()
    monitor.observe("latency", request_ids=["a", "b"], values=[0.01, math.inf])
    assert entry(monitor, "hard")["verdict"] == "fail" and entry(monitor, "hard")["max"]["value"] == "inf"
    assert entry(monitor, "mean")["verdict"] == "fail"
    monitor = Observed()
    monitor.observe("latency", request_ids=["a", "b"], values=[0.01, math.nan])
    assert "not finite" in entry(monitor, "tail")["reason"] and entry(monitor, "tail")["verdict"] == "fail"


def test_outcomes() -> None:
    monitor = Observed()
    monitor.observe("failure_rate", request_ids=list(range(200)), values=[i == 7 for i in range(200)])
    found = entry(monitor, "errors")
    assert found["verdict"] == judge_binary(1, 200, 0.05, 0.95).verdict == "pass"
    assert found["max"]["request"] == 7 and found["evidence"]["observed"] == pytest.approx(0.005)


def test_slices() -> None:
    monitor = Observed()
    inside = [i % 2 == 0 for i in range(100)]
    monitor.observe("parse_rate", request_ids=list(range(100)), values=inside, slices={"s": inside})
    assert entry(monitor, "parses")["evidence"]["requests"] == 50
    assert entry(monitor, "parses")["evidence"]["exceeding_requests"] == 0
    monitor.observe("parse_rate", request_ids=[100], values=[True])
    assert entry(monitor, "parses")["verdict"] == "unobservable"
    assert "membership of slice s" in entry(monitor, "parses")["reason"]


def test_a_value_that_is_not_there_is_never_passed() -> None:
    monitor = Observed()
    monitor.observe("latency", request_ids=list(range(10)), values=[0.01] * 9 + [None])
    found = entry(monitor, "hard")
    assert found["verdict"] == "unobservable" and "1 of 10" in found["reason"]


def test_paired_differences() -> None:
    monitor = Observed()
    generator = random.Random(0)
    reference = [generator.uniform(-1, 1) for _ in range(300)]
    candidate = [r + generator.uniform(-0.02, 0.02) for r in reference]
    monitor.observe("reward_delta", request_ids=list(range(300)), reference=reference, candidate=candidate)
    found = entry(monitor, "reward")
    mean = sum(c - r for c, r in zip(candidate, reference, strict=True)) / 300
    assert found["verdict"] == "pass" and found["evidence"]["observed"] == pytest.approx(abs(mean), abs=1e-8)
    assert entry(monitor, "unbounded")["verdict"] == "unobservable"
    assert "range of the reward" in entry(monitor, "unbounded")["reason"]
    for sign in (1, -1):
        monitor = Observed()
        moved = [r + 0.3 * sign for r in reference]
        monitor.observe("reward_delta", request_ids=list(range(300)), reference=reference, candidate=moved)
        assert entry(monitor, "reward")["verdict"] == "fail"


def test_a_difference_beyond_the_assumed_range_fails_closed() -> None:
    monitor = Observed()
    monitor.observe("reward_delta", request_ids=[1], reference=[0.0], candidate=[2.5])
    assert entry(monitor, "reward")["verdict"] == "fail" and "assumed range" in entry(monitor, "reward")["reason"]


def test_good_pairs_rarely_fail_and_bad_ones_rarely_pass() -> None:
    """True difference exactly at the limit, looked at after every tenth request: each error stays below 5 %."""
    wrong = 0
    for seed in range(30):
        monitor, generator = Observed(), random.Random(seed)
        for start in range(0, 200, 10):
            answers = [generator.random() for _ in range(10)]
            reference = [a < 0.5 for a in answers]
            candidate = [a < 0.55 for a in answers]
            monitor.observe(
                "accuracy_delta", request_ids=list(range(start, start + 10)), reference=reference, candidate=candidate
            )
            if entry(monitor, "answers")["verdict"] in ("fail", "pass"):
                wrong += 1
                break
    assert wrong <= 4


def test_requests_needed_of_a_pair_are_what_it_takes() -> None:
    need = entry(Observed(), "answers")["evidence"]["requests_needed"]
    for count, verdict in ((need - 1, "inconclusive"), (need, "pass")):
        monitor = Observed()
        same = [True] * count
        monitor.observe("accuracy_delta", request_ids=list(range(count)), reference=same, candidate=same)
        assert entry(monitor, "answers")["verdict"] == verdict


def test_throughput_and_peaks() -> None:
    monitor = Observed()
    monitor.observe("throughput", request_ids=["a", "b"], values=[100, 50], seconds=[2.0, 0.5])
    monitor.observe("peak_memory", request_ids=["a", "b"], values=[10, 900])
    assert entry(monitor, "speed")["evidence"]["observed"] == 60.0 and entry(monitor, "speed")["verdict"] == "pass"
    memory = entry(monitor, "memory")
    assert (memory["verdict"], memory["evidence"]["observed"], memory["max"]["request"]) == ("pass", 900.0, "b")
    monitor.observe("peak_memory", request_ids=["c"], values=1001)
    assert entry(monitor, "memory")["verdict"] == "fail"


def test_a_window_in_time() -> None:
    ids = list(range(200))
    for times, verdict, reason in (
        ([float(i) for i in ids], "pass", "in one window of 600 s"),
        ([4.0 * i for i in ids], "inconclusive", "several windows"),
        (None, "unobservable", "time of each request"),
    ):
        monitor = Observed()
        monitor.observe("time_to_first_token", request_ids=ids, values=[0.01] * 200, times=times)
        found = entry(monitor, "first")
        assert found["verdict"] == verdict and reason in found["reason"]
    monitor = Observed()
    monitor.observe("time_to_first_token", request_ids=ids, values=[1.0] * 200)
    assert entry(monitor, "first")["verdict"] == "fail"


@pytest.mark.parametrize(
    ("metric", "given", "reason"),
    [
        ("speed", {"values": [1]}, "not observed"),
        ("latency", {}, "needs `values`"),
        ("latency", {"reference": [1.0], "candidate": [1.0]}, "needs `values`"),
        ("latency", {"values": [-1.0]}, "negative"),
        ("latency", {"values": [1.0, 2.0]}, "request_ids"),
        ("latency", {"values": "ab"}, "no sequence"),
        ("latency", {"values": ["1"]}, "no number"),
        ("latency", {"values": [10**400]}, "largest double"),
        ("latency", {"values": [1e300]}, "beyond"),
        ("latency", {"values": [1.0], "times": [math.nan]}, "times"),
        ("latency", {"values": [1.0], "slices": {"s": [1]}}, "slice s"),
        ("failure_rate", {"values": [0.5]}, "truth value"),
        ("throughput", {"values": [1.0]}, "needs `values` and `seconds`"),
        ("throughput", {"values": [1.0], "seconds": [0.0]}, "elapsed"),
        ("reward_delta", {"reference": [1.0]}, "needs `reference` and `candidate`"),
        ("reward_delta", {"reference": [1.0], "candidate": [1.0, 2.0]}, "candidate"),
    ],
)
def test_what_cannot_be_observed_is_refused_before_anything_counts(
    metric: str, given: dict[str, Any], reason: str
) -> None:
    monitor = Observed()
    with pytest.raises(MonitorInputError, match=reason):
        monitor.observe(metric, request_ids=["a"], **given)
    assert int(monitor.sums.abs().sum()) == 0
    assert not any(r.requests for r in monitor.evidence.records)


def test_a_metric_that_the_contract_does_not_ask_for_is_ignored() -> None:
    monitor = Observed()
    monitor.observe("kv_cache", request_ids=["a"], values=[1])
    assert int(monitor.sums.abs().sum()) == 0


def fed(requests: list[tuple[int, float, bool, float]]) -> Observed:
    monitor = Observed()
    for key, seconds, good, delta in requests:
        monitor.observe("latency", request_ids=[key], values=[seconds], times=[float(key)])
        monitor.observe("time_to_first_token", request_ids=[key], values=[seconds / 2], times=[float(key)])
        monitor.observe("failure_rate", request_ids=[key], values=[not good])
        monitor.observe("parse_rate", request_ids=[key], values=[good], slices={"s": [key % 2 == 0]})
        monitor.observe("reward_delta", request_ids=[key], reference=[0.0], candidate=[delta])
        monitor.observe("throughput", request_ids=[key], values=[key], seconds=[seconds + 0.01])
        monitor.observe("peak_memory", request_ids=[key], values=[key])
    return monitor


REQUESTS = st.lists(
    st.tuples(st.integers(0, 2000), st.floats(0, 3), st.booleans(), st.floats(-1.9, 1.9)),
    min_size=1, max_size=12, unique_by=lambda r: r[0],
)  # fmt: skip


@given(REQUESTS, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_any_order_and_any_sharding_give_the_same_report(
    requests: list[tuple[int, float, bool, float]], shuffle: random.Random
) -> None:
    whole = fed(requests)
    mixed = shuffle.sample(requests, len(requests))
    cut = shuffle.randrange(len(mixed) + 1)
    left, right = fed(mixed[:cut]), fed(mixed[cut:])
    right.merge(left)
    assert right.report() == whole.report()
    again = Observed()
    again.load_state_dict(whole.state_dict())
    assert again.report() == whole.report()
    again.reset()
    assert again.report() == Observed().report()


class OfRows(Monitor):
    """Readings that come from logits."""

    CONTRACT, DIGEST = "rows", "sha256:2"
    CLAUSES = (
        spec("ess", "ess", "reading", "ess", lower=0.9, inputs=("sampled_ids",), minimum_requests=3),
        spec("text", "perplexity_ratio", "reading", "perplexity", lower=0.9, upper=1.1, inputs=("sampled_ids",), minimum_requests=3),
        spec("ece", "ece_drift", "reading", "calibration", upper=0.05, bins=15, inputs=("sampled_ids",), minimum_requests=3),
        spec("own", "ece_drift", "reading", "calibration", upper=0.05, bins=10, own_bins=True, slices=("s",), inputs=("sampled_ids",), minimum_requests=3),
        spec("mean", "sequence_ratio", "mean", "sequence", upper=2.0, bounded=False, inputs=("sampled_ids",)),
    )  # fmt: skip
    NAMES = ("confidence_reference", "correct_reference", "confidence_candidate", "correct_candidate")
    PLAN = RowPlan(frozenset({"token_log_ratio", *NAMES}))

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        v = rows.values
        if "token_log_ratio" not in v:
            return {}
        ratio, bins = signed(v["token_log_ratio"]), calibrated(*(v[n] for n in self.NAMES))
        return {"ess": ratio, "text": ratio, "mean": ratio, "ece": bins, "own": bins}


def drawn(seed: int, drift: float, requests: int = 40) -> list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    out = []
    for key in range(requests):
        z = torch.randn(6, 32, generator=generator, dtype=torch.float64) * 2
        w = z + drift * torch.randn(6, 32, generator=generator, dtype=torch.float64)
        out.append((key, z, w, torch.multinomial(w.softmax(-1), 1, generator=generator)[:, 0]))
    return out


def measured(data: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]) -> OfRows:
    monitor = OfRows()
    for key, z, w, ids in data:
        mask = torch.full((len(z),), key % 2 == 0)
        monitor.update(z, w, request_ids=[key] * len(z), sampled_ids=ids, slices={"s": mask})
    return monitor


@pytest.mark.parametrize("drift", [0.01, 0.3])
def test_readings_of_rows_against_their_definitions(drift: float) -> None:
    data = drawn(3, drift)
    monitor = measured(data)
    found = {c["name"]: c["evidence"]["observed"] for c in monitor.report()["clauses"]}
    weights, logs = [], []
    for _, z, w, ids in data:
        p, q = z.log_softmax(-1), w.log_softmax(-1)
        log_ratio = (p - q).gather(1, ids[:, None])[:, 0]
        weights.append(float(log_ratio.sum().exp()))
        logs += log_ratio.tolist()
    n = len(weights)
    assert found["ess"] == pytest.approx(sum(weights) ** 2 / (n * sum(v * v for v in weights)), rel=1e-6)
    assert found["text"] == pytest.approx(math.exp(sum(logs) / len(logs)), rel=1e-6)
    assert found["mean"] == pytest.approx(sum(weights) / n, rel=1e-6)
    for name, bins, own, rows in (("ece", 15, False, data), ("own", 10, True, data[::2])):
        assert found[name] == pytest.approx(ece_drift(rows, bins, own), abs=1e-7)


def ece_drift(data: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]], count: int, own: bool) -> float:
    """In plain Python, row by row."""
    sums: list[dict[int, float]] = [{}, {}]
    rows = 0
    for _, z, w, ids in data:
        for a, b, token in zip(z.softmax(-1).tolist(), w.softmax(-1).tolist(), ids.tolist(), strict=True):
            rows += 1
            first = math.ceil(max(a) * count)
            for side, row, place in ((0, a, first), (1, b, math.ceil(max(b) * count) if own else first)):
                correct = row.index(max(row)) == token
                sums[side][place] = sums[side].get(place, 0.0) + max(row) - correct
    errors = [sum(abs(v) for v in s.values()) / rows for s in sums]
    return abs(errors[1] - errors[0])


def test_readings_of_rows_merge_and_decide_after_enough_requests() -> None:
    data = drawn(4, 0.05)
    whole, left, right = measured(data), measured(data[:13]), measured(data[13:])
    right.merge(left)
    assert whole.report()["clauses"] == right.report()["clauses"]
    words = {c["name"]: c["verdict"] for c in whole.report()["clauses"]}
    assert words["ess"] == words["text"] == words["ece"] == "pass"
    assert all("no confidence" in entry(whole, name)["reason"] for name in ("ess", "text", "ece"))
    few = {c["name"]: c["verdict"] for c in measured(data[:2]).report()["clauses"]}
    assert few["ess"] == few["text"] == few["ece"] == "inconclusive"


def test_the_counting_of_readings_is_one_graph() -> None:
    data = drawn(5, 0.05, 6)
    plain, compiled = OfRows(), OfRows()
    compiled.compile(backend="eager")
    for monitor in (plain, compiled):
        for key, z, w, ids in data:
            mask = torch.ones(len(z), dtype=torch.bool)
            monitor.update(z, w, request_ids=[key] * len(z), sampled_ids=ids, slices={"s": mask})
    assert compiled.report() == plain.report()


def test_readings_without_the_given_tokens_are_unobservable() -> None:
    monitor = OfRows()
    z = torch.zeros(2, 3)
    monitor.update(z, z, request_ids=[0, 1], slices={"s": torch.ones(2, dtype=torch.bool)})
    assert {c["verdict"] for c in monitor.report()["clauses"]} == {"unobservable"}


def test_a_token_that_one_side_bans_fails_the_readings() -> None:
    monitor = OfRows()
    z = torch.zeros(4, 3)
    w = z.clone()
    w[:, 0] = -torch.inf
    ids = torch.zeros(4, dtype=torch.int64)
    monitor.update(z, w, request_ids=[0, 1, 2, 3], sampled_ids=ids, slices={"s": torch.ones(4, dtype=torch.bool)})
    words = {c["name"]: c["verdict"] for c in monitor.report()["clauses"]}
    assert words["ess"] == words["text"] == words["mean"] == "fail"
