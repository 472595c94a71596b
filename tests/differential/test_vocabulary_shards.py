"""Parts of a vocabulary on several processes against the whole of it on one."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import warm
from hypothesis import given, settings
from hypothesis import strategies as st

from kcverify.runtime.errors import MonitorInputError
from kcverify.runtime.rowplan import STATISTICS, RowPlan
from kcverify.runtime.rows import Rows, row_statistics
from kcverify.runtime.rowstate import ADDED, FIELDS, merge
from kcverify.runtime.shards import _state, sharded_statistics

torch.set_num_threads(1)
PLAN = RowPlan(frozenset(STATISTICS), ((1, False), (4, False), (4, True)))
WIDTH = 600
Change = Callable[[torch.Tensor, torch.Tensor], None]


def threads(count: int) -> list[Callable[[torch.Tensor], list[torch.Tensor]]]:
    """An all-gather between threads, one for each rank."""
    held: list[torch.Tensor] = [torch.empty(0)] * count
    barrier = threading.Barrier(count, timeout=60)

    def gather(rank: int, mine: torch.Tensor) -> list[torch.Tensor]:
        held[rank] = mine.clone()
        barrier.wait()
        out = [part.clone() for part in held]
        barrier.wait()
        return out

    return [lambda mine, rank=rank: gather(rank, mine) for rank in range(count)]  # type: ignore[misc]


def sharded(
    z: torch.Tensor, w: torch.Tensor, cuts: list[int], plan: RowPlan, ids: torch.Tensor | None, t: float
) -> list[Rows]:
    edges = [0, *cuts, z.shape[1]]
    out: list[Rows | BaseException] = [RuntimeError()] * (len(edges) - 1)

    def work(rank: int, gather: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
        low, high = edges[rank], edges[rank + 1]
        try:
            out[rank] = sharded_statistics(
                z[:, low:high], w[:, low:high], plan, gather=gather, first_token=low, temperature=t, sampled_ids=ids
            )
        except BaseException as error:
            out[rank] = error

    workers = [threading.Thread(target=work, args=pair) for pair in enumerate(threads(len(out)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for found in out:
        if isinstance(found, BaseException):
            raise found
    return out  # type: ignore[return-value]


def check(z: torch.Tensor, w: torch.Tensor, cuts: list[int], plan: RowPlan = PLAN, t: float = 1.0) -> None:
    ids = torch.arange(z.shape[0]) * 37 % z.shape[1]
    whole = row_statistics(z, w, plan, sampled_ids=ids, temperature=t)
    parts = sharded(z, w, cuts, plan, ids, t)
    for got in parts:
        assert got.invalid.tolist() == whole.invalid.tolist()
        assert got.reference_only.tolist() == whole.reference_only.tolist()
        assert got.candidate_only.tolist() == whole.candidate_only.tolist()
        for name, want in whole.values.items():
            assert torch.equal(got.values[name].nan_to_num(7.0), parts[0].values[name].nan_to_num(7.0))
            size = 1e-12 if name in ("tv", "chi2") or name.startswith("kl") else 2e-6
            assert torch.allclose(got.values[name], want, rtol=1e-5, atol=size, equal_nan=True), (
                name,
                got.values[name],
                want,
            )


def pair(rows: int = 5, size: float = 0.05, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(rows, WIDTH, generator=generator)
    return z, z + size * torch.randn(rows, WIDTH, generator=generator)


def nothing(z: torch.Tensor, w: torch.Tensor) -> None:
    pass


def peaks(z: torch.Tensor, w: torch.Tensor) -> None:
    for row, at in enumerate((3, 299, 300, 599)):
        z[row, at] += 20.0
        w[row, at] += 20.5


def masks(z: torch.Tensor, w: torch.Tensor) -> None:
    z[0, :310] = w[0, :310] = -math.inf
    z[1, :310] = -math.inf
    w[2, 290:] = -math.inf
    z[3, ::2], w[3, ::3] = -math.inf, -math.inf
    z[4, :300], w[4, 300:] = -math.inf, -math.inf


def faults(z: torch.Tensor, w: torch.Tensor) -> None:
    z[0, 5], w[1, 400], z[2], w[3] = math.nan, math.inf, -math.inf, -math.inf


def ties(z: torch.Tensor, w: torch.Tensor) -> None:
    z.mul_(2).round_().div_(2)
    w.copy_(z + 0.5 * (torch.arange(WIDTH) % 7 == 0))


def outliers(z: torch.Tensor, w: torch.Tensor) -> None:
    z.mul_(0.001)
    w.mul_(0.001)
    z[0, 2], w[0, 2], w[1, 450], w[2, 3] = 0.01, 2.0, 60.0, -900.0
    w[3] += 100.0


@pytest.mark.parametrize("change", [nothing, peaks, masks, faults, ties, outliers])
@pytest.mark.parametrize("cuts", [[300], [1, 310], [100, 299, 599]])
def test_parts_give_what_the_whole_gives(change: Change, cuts: list[int]) -> None:
    z, w = pair()
    change(z, w)
    check(z, w, cuts, t=0.8)
    check(z.bfloat16(), w.bfloat16(), cuts)


@pytest.mark.parametrize("size", [1e-4, 0.3, 30.0])
def test_sizes_and_certificates(size: float) -> None:
    z, w = pair(size=size)
    check(z, w, [250])
    check(z, w, [250], RowPlan(frozenset({"tv", "bc"}), tv_limit=0.02))
    check(z, w, [250], RowPlan(frozenset({"logit_span"})))


def test_choices_need_the_whole_row() -> None:
    z, w = pair()
    with pytest.raises(MonitorInputError, match="rank need the whole vocabulary"):
        sharded(z, w, [300], RowPlan(frozenset({"rank"})), None, 1.0)


def test_a_token_that_no_part_has_is_not_another_one() -> None:
    """Its drift was taken to be 0."""
    z, w = pair(4, 0.5, 7)
    ids = torch.tensor([WIDTH, -1, 3, WIDTH - 1])
    rows = sharded(z, w, [300], RowPlan(frozenset({"token_log_ratio"})), ids, 1.0)
    assert rows[0].values["token_log_ratio"].isnan().tolist() == [True, True, False, False]
    with pytest.raises(MonitorInputError, match="sampled_ids"):
        sharded(z, w, [300], RowPlan(frozenset({"token_log_ratio"})), ids[:3], 1.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.5, 4.0]), st.sampled_from([nothing, peaks, masks]))
def test_states_are_a_commutative_monoid(seed: int, size: float, change: Change) -> None:
    z, w = pair(5, size, seed)
    change(z, w)
    cuts = (0, 150, 400, WIDTH)
    nothing = torch.zeros(5, dtype=torch.float64)
    states = [
        _state(z[:, a:b], w[:, a:b], PLAN, 1.0) | {"token": nothing, "has_token": nothing}
        for a, b in itertools.pairwise(cuts)
    ]
    first, second, third = states
    want = merge(states, 1.0)
    usable = (want["far"] == 0) & (want["S"] > want["PO"])
    for got in (merge([third, first, second], 1.0), merge([merge([first, second], 1.0), third], 1.0)):
        for name in FIELDS:
            if name == "gross":  # a bound of what was lost on the way
                continue
            scale = want["S"] if name in ADDED and name not in ("lost", "gained", "token") else 1.0
            gap = ((got[name] - want[name]).abs() / scale)[usable].nan_to_num(0.0)
            assert float(gap.amax()) <= 1e-5 if usable.any() else True, name


SCRIPT = """
import sys, torch, torch.distributed as dist
from kcverify.runtime.rowplan import STATISTICS, RowPlan
from kcverify.runtime.rows import row_statistics
from kcverify.runtime.shards import gather_over, sharded_statistics
rank, path = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
plan = RowPlan(frozenset(STATISTICS), ((1, False), (5, False)))
generator = torch.Generator().manual_seed(3)
z = 3 * torch.randn(6, 1000, generator=generator)
w = z + 0.1 * torch.randn(6, 1000, generator=generator)
z[1, 700:] = float("-inf"); w[2, 5] = float("-inf"); w[3, 4] += 80.0; z[4, 1] = float("nan")
ids = torch.arange(6) * 150
mine = slice(0, 400) if rank == 0 else slice(400, 1000)
got = sharded_statistics(z[:, mine], w[:, mine], plan, gather=gather_over(), first_token=mine.start, sampled_ids=ids)
want = row_statistics(z, w, plan, sampled_ids=ids)
assert got.invalid.tolist() == want.invalid.tolist()
for name, column in want.values.items():
    assert torch.allclose(got.values[name], column, rtol=1e-5, atol=1e-6, equal_nan=True), (name, got.values[name], column)
dist.destroy_process_group()
print("equal")
"""


def test_two_processes_over_gloo(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    started = [
        warm.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    assert all("equal" in text for text in told)
