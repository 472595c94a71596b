"""Which rows a clause counts: rows without a sampled token, and rows of one window in time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kcverify.runtime import Monitor, RowPlan, Rows, Values, at_least, at_most, signed
from kcverify.runtime.observations import one_window
from kcverify.runtime.sources import WINDOWS
from tests.unit.runtime.monitor_streams import clause, fed, spec, state, stream


def without_last_token(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [u | {"sampled_ids": torch.cat((u["sampled_ids"][:-1], torch.tensor([-1])))} for u in updates]


def test_a_row_without_a_token_is_left_out_by_clauses_on_tokens_alone() -> None:
    """The clauses on tokens see what they would see without these rows, every other clause sees all rows."""
    updates = stream()
    shorter = [
        {k: v[:-1] for k, v in u.items() if k != "slices"} | {"slices": {n: m[:-1] for n, m in u["slices"].items()}}
        for u in updates
    ]
    whole, given, cut = fed(updates), fed(without_last_token(updates)), fed(shorter)
    reports = [m.report() for m in (whole, given, cut)]
    for name in ("seq", "geo"):
        mine, other = clause(reports[1], name), clause(reports[2], name)
        assert mine["evidence"] == other["evidence"] and mine["max"] == other["max"]
        assert mine["evidence"]["rows"] == clause(reports[0], name)["evidence"]["rows"] - len(updates)
    for name in ("drift", "kl", "top1"):
        assert clause(reports[1], name) == clause(reports[0], name)
    assert f"{len(updates)} rows have no sampled token and are not counted by seq, geo" in reports[1]["notes"]
    assert not any("sampled token" in note for note in reports[0]["notes"])


def test_merging_and_saving_keep_the_groups() -> None:
    updates = without_last_token(stream())
    first, second = fed(updates[:10]), fed(updates[10:])
    first.merge(second)
    assert state(first) == state(fed(updates))
    again = type(first)()
    again.load_state_dict(first.state_dict())
    assert state(again) == state(first)


def test_only_rows_without_tokens_never_pass() -> None:
    updates = [u | {"sampled_ids": torch.full_like(u["sampled_ids"], -1)} for u in stream(requests=80)]
    report = fed(updates).report()
    assert [clause(report, n)["verdict"] for n in ("seq", "geo")] == ["inconclusive", "inconclusive"]


class Windowed(Monitor):
    CONTRACT = "windowed"
    PLAN = RowPlan(frozenset({"logit_span", "token_log_ratio"}))
    CLAUSES = (
        spec("span", "logit_span", "share", upper=0.5, limit=0.2, exception=0.2, window=60.0),
        spec("strict", "logit_span", "maximum", upper=1e-9, limit=0.0, window=60.0),
        spec("seq", "sequence_ratio", "binary", limit=0.2, exception=0.2, lower=0.5, upper=2.0, source="sequence",
             inputs=("sampled_ids",), window=60.0),
    )  # fmt: skip

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        v = rows.values
        ratio = {"seq": signed(v["token_log_ratio"])} if "token_log_ratio" in v else {}
        return {"span": at_most(v["logit_span"], 0.5), "strict": at_most(v["logit_span"], 1e-9)} | ratio


@pytest.mark.parametrize(
    ("start", "step", "verdict", "reason"),
    [
        (0.0, 0.5, "pass", "in one window of 60 s"),
        (50.0, 0.5, "inconclusive", "several windows of 60 s"),
        (None, 0.0, "unobservable", "give `times` to `update`"),
        (math.nan, 0.0, "unobservable", "give `times` to `update`"),
    ],
)
def test_a_clause_about_a_window_reads_rows(start: float | None, step: float, verdict: str, reason: str) -> None:
    shards = [Windowed(), Windowed()]
    for index, update in enumerate(without_last_token(stream(requests=80))):
        times = None if start is None else start + step * index
        if times is not None and index % 2:
            times = torch.full((5,), times, dtype=torch.float64)
        shards[index % 2].update(**{k: v for k, v in update.items() if k != "slices"}, times=times)
    shards[0].merge(shards[1])
    report = shards[0].report()
    for name in ("span", "seq"):
        assert clause(report, name)["verdict"] == verdict and reason in clause(report, name)["reason"]
    assert clause(report, "strict")["verdict"] == "fail"


@pytest.mark.parametrize("count", [1, 5, 2**31 + 1, 2**33])
@pytest.mark.parametrize("window", [0, 1, WINDOWS - 1])
def test_the_windows_of_more_rows_than_their_squares_fit(count: int, window: int) -> None:
    """The sum of squares as an int64 buffer holds it, wrapped around."""

    def counts(other: int | None) -> list[int]:
        windows = [(count - 1, window), (1, window if other is None else other)]
        squares = sum(n * w * w for n, w in windows)
        wrapped = (squares + 2**63) % 2**64 - 2**63
        return [count, 0, 0, 0, count, sum(n * w for n, w in windows), wrapped]

    assert one_window(counts(None))
    assert count == 1 or not one_window(counts(window - 1 if window else 1))
    assert not one_window([count + 1, *counts(None)[1:]])


class Floor(Monitor):
    CONTRACT = "floor"
    PLAN = RowPlan(frozenset({"bc"}))
    CLAUSES = (spec("aff", "affinity", "mean", statistic="mean", lower=0.5),)

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        return {"aff": at_least(rows.values["bc"], 0.5)}


def test_a_mean_with_a_lower_limit_says_that_it_is_of_one_minus_the_value() -> None:
    monitor = Floor()
    for update in stream(requests=4):
        monitor.update(**{k: v for k, v in update.items() if k != "slices"})
    evidence = clause(monitor.report(), "aff")["evidence"]
    assert evidence["observed"] < 0.01
    assert evidence["observed_is"] == "mean over requests of one minus the mean over its rows"
