"""Every metric of the catalogue that a clause may name has a reading, and both sides of the seam use the same names."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch

from kcverify import driver
from kcverify.catalog import metrics
from kcverify.catalog.model import Dimension, Family, Level, Metric
from kcverify.catalog.units import UNIT_OPTIONAL
from kcverify.emit import readings
from kcverify.emit.plan import plan
from kcverify.runtime import sources
from kcverify.runtime.order import is_order_statistic
from kcverify.runtime.rowplan import STATISTICS

torch.set_num_threads(1)
MEASURED = [row for row in metrics.ROWS if row.family is not Family.CLAIM]


def contract_of(row: Metric, folder: Path) -> driver.Contract:
    """A contract with one clause of the metric."""
    needed = [a for a in row.arguments if a.default is None]
    arguments = ", ".join(f"{a.name} = {a.values[0]}" for a in needed)
    unit = "" if row.dimension in (Dimension.NONE, *UNIT_OPTIONAL) else f" {row.dimension.value}"
    value = f"{float(row.range[0] or 0) + 0.5}{unit}"
    limit = f"in [{value}, 0.9{unit}]" if row.direction.value == "in" else f"{row.direction.value} {value}"
    statistic = "p90 " if row.statistic is None else ""
    name = f"{row.name}({arguments})" if arguments else row.name
    path = folder / "one.kc"
    path.write_text(f"contract c\n{row.family.value} {{\n  a: {statistic}{name} {limit} -> L1\n}}\n", encoding="utf-8")
    return driver.load(path)[0]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_no_metric_of_the_catalogue_is_left_out(row: Metric, tmp_path: Path) -> None:
    """Nothing measured gives `inconclusive`, or `unobservable` with the input that is missing; never `not_enforced`."""
    contract = contract_of(row, tmp_path)
    assert plan(contract).clauses[0].enforced
    scope: dict[str, type] = {}
    exec(compile(driver.emit_monitor(contract), "monitor.py", "exec"), scope)
    monitor = scope["ContractMonitor"]()
    observed = readings.READINGS[row.name].observed
    (found,) = monitor.report()["clauses"]
    assert found["verdict"] == ("unobservable" if observed else "inconclusive")
    if not observed:
        z = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
        monitor.update(z, z, request_ids=[1, 1, 2], sampled_ids=torch.tensor([0, 1, 2]))
        (found,) = monitor.report()["clauses"]
        assert found["verdict"] in ("inconclusive", "pass", "fail")
        assert found["evidence"]["observed"] is not None
    else:
        assert "not given" in found["reason"]


def test_both_sides_of_the_seam_use_the_same_names() -> None:
    assert set(readings.OBSERVED) == sources.OBSERVED
    observed = {name: row.source for name, row in readings.READINGS.items() if row.observed}
    assert observed == {name: row.source for name, row in sources.OBSERVABLES.items()}
    assert set(readings.READINGS) == {row.name for row in MEASURED}
    for name, row in readings.READINGS.items():
        assert all(s in STATISTICS or is_order_statistic(s) for s in row.statistics), name
        assert bool(row.evidence) == (row.source in sources.READ), name


def test_the_unit_of_an_observation_is_a_request_or_the_run() -> None:
    for row in MEASURED:
        if readings.READINGS[row.name].observed:
            assert row.level in (Level.REQUEST, Level.RUN)


def test_a_trimmed_span_is_never_mixed_with_the_whole_one(tmp_path: Path) -> None:
    """Both are `logit_span` in the contract; each has quantiles of its own."""
    path = tmp_path / "two.kc"
    path.write_text(
        "contract c\nnumerical { all: logit_span <= 9 except 1% -> L1\n"
        " kept: logit_span(mass = 99%) <= 9 except 1% -> L1 }\n",
        encoding="utf-8",
    )
    scope: dict[str, type] = {}
    exec(compile(driver.emit_monitor(driver.load(path)[0]), "monitor.py", "exec"), scope)
    monitor = scope["ContractMonitor"]()
    z = torch.zeros(10, 1000)
    z[:, 0] = 20.0
    w = z.clone()
    w[:, 5] = 3.0
    monitor.update(z, w, request_ids=list(range(10)))
    quantiles = {c["name"]: c["quantiles"]["p50"] for c in monitor.report()["clauses"]}
    assert quantiles["all"][0] <= 3.0 <= quantiles["all"][1] and quantiles["kept"] == [0.0, 0.0]


def test_arguments_reach_the_generated_text(tmp_path: Path) -> None:
    path = tmp_path / "some.kc"
    path.write_text(
        "contract c\nassume { reward in [-1, 3] }\n"
        "numerical { kept: logit_span(mass = 99.9%) <= 0.03 except 0.1% -> L1 }\n"
        "statistical { f: flip_rate(margin = 0.1) <= 1% -> L1\n e: ece_drift(bins = own, count = 7) <= 1% -> L1\n"
        " r: reward_delta <= 0.1 -> L1 }\n",
        encoding="utf-8",
    )
    contract = driver.load(path)[0]
    text = driver.emit_monitor(contract)
    kept = next(c for c in plan(contract).clauses if c.clause.name == "kept")
    assert kept.reading is not None
    mass = float(kept.reading.statistics[0].partition(":")[2])
    assert Fraction(mass) >= Fraction("0.999") and is_order_statistic(kept.reading.statistics[0])
    for part in ('at_most(v["flip_margin"], 0.09999999999999999)', "bins=7", "own_bins=True", "width=4.0"):
        assert part in text


def test_the_mean_of_a_ratio_fails_and_never_passes(tmp_path: Path) -> None:
    path = tmp_path / "mean.kc"
    path.write_text(
        "contract c\nnumerical { a: mean importance_ratio in [0.5, 1.05] -> L1\n b: mean importance_ratio in [0.5, 100] -> L1\n"
        " s: mean sequence_ratio in [0.1, 1.01] -> L1 }\n",
        encoding="utf-8",
    )
    contract = driver.load(path)[0]
    assert [c.evidence for c in plan(contract).clauses] == ["mean"] * 3
    scope: dict[str, type] = {}
    exec(compile(driver.emit_monitor(contract), "monitor.py", "exec"), scope)
    monitor = scope["ContractMonitor"]()
    z = torch.randn(400, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = z + 0.3 * torch.randn(400, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    worst = (z - w).argmax(-1)
    monitor.update(z, w, request_ids=list(range(400)), sampled_ids=worst)
    found = {c["name"]: c for c in monitor.report()["clauses"]}
    ratios = (z.log_softmax(-1) - w.log_softmax(-1)).exp().amax(-1)
    assert found["a"]["evidence"]["observed"] == pytest.approx(float(ratios.mean()), rel=1e-6)
    assert found["a"]["verdict"] == found["s"]["verdict"] == "fail" and found["b"]["verdict"] == "inconclusive"
