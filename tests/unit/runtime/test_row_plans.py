"""Plans of row statistics, top-k agreement with ties, and memory."""

from __future__ import annotations

import math

import pytest
import torch

from kcverify.runtime.agreement import top_agreement
from kcverify.runtime.oracle import oracle_top
from kcverify.runtime.rows import STATISTICS, RowPlan, Workspace, row_statistics

torch.set_num_threads(1)


def agreement(z: list[float], w: list[float], k: int = 1, ordered: bool = False) -> float:
    rows = row_statistics(torch.tensor([z]), torch.tensor([w]), RowPlan(frozenset(), ((k, ordered),)))
    return float(next(iter(rows.values.values()))[0])


def test_top_one_is_tolerant_of_ties() -> None:
    assert agreement([1.0, 2.0, 0.0], [0.0, 5.0, 4.0]) == 1.0
    assert agreement([1.0, 2.0, 0.0], [3.0, 2.0, 0.0]) == 0.0
    assert agreement([2.0, 2.0, 0.0], [0.0, 2.0, 1.0]) == 1.0
    assert agreement([2.0, 2.0, 0.0], [2.0, 0.0, 2.0]) == 1.0
    assert agreement([2.0, 1.0, 0.0], [0.0, 2.0, 2.0]) == 0.0
    assert agreement([-math.inf, 1.0], [-math.inf, 3.0]) == 1.0


def test_top_k_as_a_set_and_in_order() -> None:
    z, w = [4.0, 3.0, 2.0, 1.0], [3.0, 4.0, 2.0, 1.0]
    assert agreement(z, w, 2) == 1.0 and agreement(z, w, 2, True) == 0.0
    assert agreement(z, w, 3) == 1.0 and agreement(z, z, 3, True) == 1.0
    assert agreement(z, [4.0, 1.0, 3.0, 2.0], 2) == 0.0
    assert agreement(z, w, 9) == 1.0
    assert agreement([4.0, 3.0, 3.0, 1.0], [4.0, 1.0, 3.0, 0.0], 2) == 1.0


def test_only_what_is_planned_is_returned() -> None:
    z = torch.randn(3, 50)
    for name in STATISTICS:
        rows = row_statistics(z, z + 0.1, RowPlan(frozenset({name})), sampled_ids=torch.zeros(3, dtype=torch.int64))
        assert list(rows.values) == [name] and len(rows) == 3
    assert not row_statistics(z, z, RowPlan(frozenset({"token_log_ratio"}))).values


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_does_not_depend_on_what_else_is_planned(name: str) -> None:
    z = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    w = z + 0.3 * torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    ids = torch.zeros(4, dtype=torch.int64)
    everything = RowPlan(frozenset(STATISTICS), ((1, False),))
    for backend in ("lean", None):  # a compiler contracts each specialised kernel in its own way: the last bits differ
        alone, full = (
            row_statistics(z, w, plan, sampled_ids=ids, temperature=0.7, backend=backend).values[name]
            for plan in (RowPlan(frozenset({name})), everything)
        )
        assert torch.equal(alone, full) if backend else torch.allclose(alone, full, rtol=1e-6)


def test_bad_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown"):
        RowPlan(frozenset({"kl"}))
    for pair in ((0, False), (1, True)):
        with pytest.raises(ValueError, match="top-k"):
            RowPlan(frozenset(), (pair,))


def test_no_rows_give_empty_columns() -> None:
    rows = row_statistics(torch.zeros(0, 5), torch.zeros(0, 5), RowPlan(frozenset({"tv"})))
    assert len(rows) == 0 and rows.values["tv"].shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_buffers_stay_within_the_limit(dtype: torch.dtype) -> None:
    for width in (1, 32_000, 262_144):
        z = torch.zeros(1, width, dtype=dtype)
        space = Workspace().prepared(z, z)
        assert sum(b.numel() * b.element_size() for b in space.buffers) <= 16 * 2**20
        kept = space.buffers[0].data_ptr()
        assert space.prepared(z, z).buffers[0].data_ptr() == kept


@pytest.mark.parametrize("width", [64, 301, 9000, 40_000])
def test_a_row_does_not_depend_on_the_rows_beside_it(width: int) -> None:
    sizes = torch.tensor([1e-3, 0.01, 0.05, 0.2, 1.0, 3.0, 30.0, 0.05])[:, None]
    z = torch.randn(8, width, generator=torch.Generator().manual_seed(2)) * 2
    w = z + sizes * torch.randn(8, width, generator=torch.Generator().manual_seed(3))
    z[2, 5] = -math.inf
    w[3, 6] = math.nan
    w[4] += 60.0
    plan = RowPlan(frozenset(STATISTICS), ((1, False), (3, False)))
    ids = torch.arange(8)
    together = row_statistics(z, w, plan, sampled_ids=ids)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for row in range(8):
            alone = row_statistics(z[row : row + 1], w[row : row + 1], plan, sampled_ids=ids[row : row + 1])
            for name, column in together.values.items():
                assert torch.equal(alone.values[name].nan_to_num(-7.0), column[row : row + 1].nan_to_num(-7.0)), name
    torch.set_num_threads(1)


@pytest.mark.parametrize("steps", [None, 4, 16])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_agreement_of_wide_rows_is_that_of_whole_rows(steps: int | None, k: int) -> None:
    """Wide rows are decided by their largest chunks; coarse logits tie at every boundary, banned tokens leave few."""
    g = torch.Generator().manual_seed(k)
    z = torch.randn(8, 12_345, generator=g) * 3
    w = z + 0.02 * torch.randn(8, 12_345, generator=g)
    if steps:
        z, w = (z * steps).round() / steps, (w * steps).round() / steps
    z[0, torch.rand(12_345, generator=g) > 3e-4], w[1, 5:] = -torch.inf, -torch.inf
    for ordered in (False, True) if k > 1 else (False,):
        got = top_agreement(z, w, k, ordered).tolist()
        assert got == [oracle_top(z[i : i + 1], w[i : i + 1], k, ordered)[0] for i in range(8)]
        assert got == [float(top_agreement(z[i : i + 1], w[i : i + 1], k, ordered)) for i in range(8)]
