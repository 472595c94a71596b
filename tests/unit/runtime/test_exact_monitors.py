"""Monitors that decide total variation by its certificate, and those that compute it on every row."""

from __future__ import annotations

import pytest
import torch

from kcverify.runtime import ClauseSpec, Monitor, RowPlan, Rows, Values, at_most
from kcverify.runtime.errors import MonitorInputError


class Certified(Monitor):
    CONTRACT, DIGEST = "certified", "sha256:0"
    PLAN = RowPlan(frozenset({"tv"}), tv_limit=0.05)
    CLAUSES = (ClauseSpec("near", "numerical", "tv", "max", "near: tv <= 0.05", "L2", "maximum", upper=0.05),)

    def clause_values(self, rows: Rows) -> dict[str, Values]:
        return {"near": at_most(rows.values["tv"], 0.05, "mass")}


def streams() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(40, 300, generator=generator)
    size = torch.linspace(0.0, 0.3, 40)[:, None]
    return z, z + size * torch.randn(40, 300, generator=generator), [f"r{i // 4}" for i in range(40)]


def test_both_count_the_same_exceedances_and_only_one_bounds() -> None:
    z, w, ids = streams()
    quick, exact = Certified(), Certified(exact=True)
    for monitor in (quick, exact):
        monitor.update(z, w, request_ids=ids)
    first, second = quick.report(), exact.report()
    counted = [r["clauses"][0]["evidence"]["exceeding_rows"] for r in (first, second)]
    assert counted[0] == counted[1] > 0
    assert any("upper bound sqrt(KL/2)" in note for note in first["notes"])
    assert not any("sqrt(KL/2)" in note for note in second["notes"])
    assert first["clauses"][0]["max"] == second["clauses"][0]["max"]
    bounds, values = quick.rows(z, w).values["tv"], exact.rows(z, w).values["tv"]
    assert bool((bounds >= values * (1 - 1e-6)).all()) and bool((bounds[1:6] > values[1:6]).all())


def test_they_do_not_merge() -> None:
    with pytest.raises(MonitorInputError, match="exact"):
        Certified().merge(Certified(exact=True))
