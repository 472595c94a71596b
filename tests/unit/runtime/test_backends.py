"""The table of backends, its override, and the custom operator around it."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from kcverify.runtime.backends import BACKENDS, OVERRIDE, Job, choose
from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.operator import row_columns
from kcverify.runtime.rowplan import STATISTICS, RowPlan
from kcverify.runtime.rows import row_statistics
from kcverify.runtime.workspace import Workspace

PLAN = RowPlan(frozenset({"logit_span", "tv", "kl_reference_candidate", "rank"}), ((1, False), (3, True)))


def rows(count: int = 4, width: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(count, width, generator=generator)
    return z, z + 0.1 * torch.randn(count, width, generator=generator)


def job(z: torch.Tensor, w: torch.Tensor) -> Job:
    return Job(z, w, PLAN, 1.0, None, Workspace())


@pytest.mark.needs("compiler")
def test_the_fastest_that_can_run_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    z, w = rows()
    assert choose(job(z, w)).name == "cpp"
    assert choose(job(z.double(), w)).name == "lean"


def test_argument_outranks_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    z, w = rows()
    monkeypatch.setenv(OVERRIDE, "oracle")
    assert choose(job(z, w)).name == "oracle"
    assert choose(job(z, w), "lean").name == "lean"
    monkeypatch.setenv(OVERRIDE, "")
    assert choose(job(z, w)).name in BACKENDS


@pytest.mark.parametrize(("name", "message"), [("quick", "is none of"), ("cpp", "cannot run here: float64")])
def test_an_override_that_cannot_run_is_an_error(name: str, message: str) -> None:
    z, w = rows()
    with pytest.raises(MonitorInputError, match=message):
        row_statistics(z.double(), w.double(), PLAN, backend=name)


def test_every_backend_answers_alike() -> None:
    z, w = rows()
    z[1, 3] = math.nan
    w[2, 5] = -math.inf
    want = row_statistics(z, w, PLAN, backend="oracle")
    for name, backend in BACKENDS.items():
        if backend.unavailable(job(z, w)):
            continue
        got = row_statistics(z, w, PLAN, backend=name)
        assert list(got.values) == list(want.values)
        assert got.invalid.tolist() == [False, True, False, False]
        for column, values in got.values.items():
            assert torch.allclose(values, want.values[column], rtol=1e-5, equal_nan=True), (name, column)


def test_no_rows() -> None:
    z, w = rows(0)
    for name in ("lean", "oracle"):
        assert {len(v) for v in row_statistics(z, w, PLAN, backend=name).values.values()} == {0}


def test_the_operator_is_well_formed() -> None:
    z, w = rows()
    arguments = (z, w, torch.tensor([0, 1, 2, 3]), ",".join(sorted(STATISTICS)), [2, 7], 0.25, 0.8, "lean")
    torch.library.opcheck(row_columns, arguments, test_utils=("test_schema", "test_faketensor"))


def test_a_compiled_graph_is_not_broken_and_not_compiled_again() -> None:
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True, dynamic=False)  # type: ignore[misc]
    def total(z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return row_statistics(z, w, PLAN).values["tv"].sum()

    for seed in range(5):
        z, w = rows(seed=seed)
        assert float(total(z, w)) == float(row_statistics(z, w, PLAN).values["tv"].sum())
    assert counter.frame_count == 1


@pytest.mark.parametrize("limit", [-1.0, math.inf, math.nan])
def test_a_limit_of_the_total_variation_is_a_number(limit: float) -> None:
    with pytest.raises(ValueError, match="limit of the total variation"):
        RowPlan(frozenset({"tv"}), tv_limit=limit)
