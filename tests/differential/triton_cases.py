"""Cases of test_triton.py: the Triton kernels in Triton's interpreter against the float64 oracle.

Run as a script with TRITON_INTERPRET=1 it prints one JSON object: what went wrong, by case; empty where nothing did.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from test_rows import allowed
from torch.utils._python_dispatch import TorchDispatchMode

from kcverify.runtime.backends import BACKENDS, Job, choose
from kcverify.runtime.careful import careful_row
from kcverify.runtime.gpu import launch as backend
from kcverify.runtime.oracle import oracle_rows, oracle_top
from kcverify.runtime.rowplan import STATISTICS, RowPlan, agreement_column
from kcverify.runtime.rows import row_statistics
from kcverify.runtime.sums import certificate
from kcverify.runtime.workspace import Workspace

FULL = RowPlan(frozenset(STATISTICS), ((1, False),))
INF = math.inf
SMALL = backend.Shape(plain=512, masked=512, wide=512)
WIDTH = 1025
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Pair = tuple[torch.Tensor, torch.Tensor]


def noise(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def flat(rows: int = 2, width: int = WIDTH) -> torch.Tensor:
    return noise(rows, width, 1) * 3


def peaked(rows: int = 2, width: int = WIDTH) -> torch.Tensor:
    z = noise(rows, width, 2) * 3
    z[:, width // 2] = 18.0
    z[:, min(7, width - 1)] = 16.5
    return z


def late(rows: int = 2, width: int = WIDTH) -> torch.Tensor:
    z = noise(rows, width, 3)
    z[:, -1] = 14.0
    return z


def compare(
    z: torch.Tensor,
    w: torch.Tensor,
    temperature: float = 1.0,
    *,
    plan: RowPlan = FULL,
    split: int = 1,
    shape: backend.Shape = SMALL,
    sampled: bool = True,
    far: list[bool] | None = None,
) -> None:
    """Every statistic of the plan as the oracle has it, each row in `split` stretches if it has as many tiles.

    `far` says which rows must have been left to float64.
    """
    count, width = z.shape
    ids = (torch.arange(count) * 7) % width if sampled else None
    plan = plan if sampled else plan.without_samples()
    filled = backend.fill(z, w, plan, 1 / temperature, Workspace(), shape=shape, split=split * count)
    values = backend.statistics(filled, plan, 1 / temperature, ids)
    want = oracle_rows(z, w, temperature=temperature, sampled_ids=ids)
    assert filled.sums.invalid.double().tolist() == want["invalid"]
    assert filled.sums.reference_only.double().tolist() == want["reference_only"]
    assert filled.sums.candidate_only.double().tolist() == want["candidate_only"]
    assert far is None or filled.far.tolist() == far, filled.far.tolist()
    valid = [row for row in range(count) if not want["invalid"][row]]
    assert values.keys() == plan.sums
    for name, column in values.items():
        for row in valid:
            a, b = float(column[row]), want[name][row]
            if not math.isfinite(a) or not math.isfinite(b):
                assert a == b or (math.isnan(a) and math.isnan(b)), (name, row, a, b)
                continue
            bound = allowed(name, b, want["kl_reference_candidate"][row], want["log_ratio"][row])
            if name == "bc":  # the squared Hellinger distance to 1e-5 of itself
                bound += 1e-5 * (1.0 - b)
            assert abs(a - b) <= bound, (name, row, a, b)
            assert a >= 0.0 or name == "token_log_ratio", (name, row, a)
    for k, ordered in plan.top:
        agree, truth = filled.tops[agreement_column(k, ordered)].tolist(), oracle_top(z, w, k, ordered)
        assert [agree[row] for row in valid] == [truth[row] for row in valid], (k, ordered)


def drifted(rows: Callable[[], torch.Tensor], size: float, temperature: float, split: int) -> None:
    z = rows()
    compare(z, z + size * noise(*z.shape, 5), temperature, split=split)


def offset(rows: Callable[[], torch.Tensor], by: float) -> None:
    z = rows()
    compare(z, z + 1e-2 * noise(*z.shape, 6) + by, far=[False] * 2)
    compare((z + by).contiguous(), z + 1e-2 * noise(*z.shape, 6), 0.6, split=2)


def formats(first: torch.dtype, second: torch.dtype, width: int) -> None:
    z = flat(2, width)
    compare(z.to(first), (z + 0.05 * noise(2, width, 7)).to(second), 0.9, split=3)


def masks(which: str, size: float, split: int) -> None:
    z = peaked(3)
    w = z + size * noise(*z.shape, 13)
    first, second = (torch.rand(*z.shape, generator=torch.Generator().manual_seed(s)) < 0.2 for s in (14, 15))
    first[0, 7] = True
    second[1, WIDTH // 2] = True
    first[2, :512], first[2, 512] = True, False  # a whole stretch without common tokens
    if which in ("both", "candidate", "mixed"):
        z = z.masked_fill(first, -INF)
    if which in ("both", "reference"):
        w = w.masked_fill(first, -INF)
    if which == "mixed":
        w = w.masked_fill(second, -INF)
    near = [False] * 3  # masks alone are no reason for float64
    compare(z, w, 0.8, split=split, far=near)
    compare(z.to(BF16), w.to(BF16), split=split, far=near)


def disjoint(split: int) -> None:
    z, w = torch.full((6, 1030), -INF), torch.full((6, 1030), -INF)
    z[:, :4], w[:, -4:] = 0.5, 1.5
    w[1, -4:] = 300.0
    w[2, -4:] = -300.0
    z[3, -4], w[3, 0] = 1.0, -50.0
    w[4] = z[4]
    w[4, 2] = -INF
    w[5], z[5] = 1.0, 2.0
    compare(z, w, split=split)


def far_tokens() -> None:
    z = torch.zeros(4, WIDTH)
    z[:, 7] = 20.0
    w = z + 1e-2 * noise(4, WIDTH, 16)
    w[:3, 5] -= 40.0
    w[1, 6] += 19.0
    w[2, 6] += 700.0
    compare(z, w, split=2, far=[True, True, True, False])


def outliers() -> None:
    z = torch.zeros(4, WIDTH)
    w = z + 1e-4 * noise(4, WIDTH, 17)
    z[0, 0], w[0, 0] = 0.01, 2.0
    z[1, 0], w[1, 0] = 0.01, 2.0
    z[1, 700], w[1, 700] = 0.02, 0.02  # the pilot follows, after sums around the wrong one
    z[2, 700], w[2, 700] = 0.02, 2.0
    w[3] -= 12.0
    z[3, 0], w[3, 0] = 0.01, 0.01  # nearly all of the reference's mass goes
    compare(z, w, far=[True] * 4)
    compare(z, w, split=3)


def huge_values() -> None:
    low = torch.finfo(FP32).min
    z, w = flat(5), flat(5) + 0.01 * noise(5, WIDTH, 22)
    z[0, 9:40], w[0, 9:40] = low, low
    w[1, 3] = low
    z[2], w[2] = low, low
    z[3, 3] = -low
    z[4, 3], w[4, 3] = low, -low  # w-z overflows
    compare(z[:3], w[:3], far=[False, True, False])
    filled = backend.fill(z, w, FULL.without_samples(), 1.0, Workspace(), shape=SMALL)
    values = backend.statistics(filled, FULL.without_samples(), 1.0, None)
    for row in (3, 4):
        for name, value in careful_row(z[row].double(), w[row].double()).items():
            assert float(values[name][row]) == pytest.approx(float(value), rel=1e-12), (row, name)


def invalid() -> None:
    z = flat(8)
    w = z + 0.1 * noise(*z.shape, 18)
    z[0, 3] = math.nan
    w[1, 2] = INF
    z[2] = -INF
    w[3] = -INF
    z[4, 0] = w[4, 0] = INF
    z[5, 0], w[5, 0] = -INF, math.nan
    z[6, -1], w[6, -1] = math.nan, -INF
    compare(z, w, split=2)
    compare(z, w, plan=RowPlan(frozenset({"logit_drift", "logit_span"})))
    rows = row_statistics(z, w, FULL.without_samples(), backend="triton")
    assert rows.invalid.tolist() == [True] * 7 + [False]
    assert math.isnan(rows.values["tv"][0]) and math.isfinite(rows.values["tv"][7])


def identical(dtype: torch.dtype) -> None:
    z = peaked().to(dtype)
    rows = row_statistics(z, z.clone(), FULL.without_samples(), backend="triton", temperature=0.7)
    for name in ("logit_drift", "logit_span", "tv", "kl_reference_candidate", "kl_candidate_reference", "chi2"):
        assert rows.values[name].tolist() == [0.0, 0.0], name


def strides() -> None:
    z = noise(WIDTH, 3, 8).t() * 3
    w = (torch.cat((z, z), 1)[:, ::2] + 0.01).to(BF16)
    before = z.clone(), w.clone()
    compare(z, w)
    compare(z[:, :500], z[:, 500:1000])
    compare(z[:1].expand(3, WIDTH), z)
    assert torch.equal(z, before[0]) and torch.equal(w, before[1])
    compare(z[:0], w[:0], sampled=False)


def specialised(statistic: str) -> None:
    z = peaked(3).to(BF16 if statistic < "l" else FP32)
    w = (z.float() + 0.05 * noise(*z.shape, 23)).to(z.dtype)
    z[1, 9] = w[1, 9] = -INF
    w[2, 5] -= 60.0
    compare(z, w, 0.9, plan=RowPlan(frozenset({statistic})), split=2)


def certificates() -> None:
    z = flat(4)
    w = z + torch.tensor([1e-4, 1e-3, 0.3, 3.0])[:, None] * noise(*z.shape, 24)
    z[0, 4] = w[0, 4] = -INF
    limit = 0.01
    plan = RowPlan(frozenset({"tv"}), (), limit)
    filled = backend.fill(z, w, plan, 1.0, Workspace(), shape=SMALL, split=8)
    values = backend.statistics(filled, plan, 1.0, None)
    want = oracle_rows(z, w)
    bound = certificate(values["kl_reference_candidate"])
    assert filled.sums.sums["unswept"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert torch.equal(values["tv"][:2], bound[:2].clamp_max(limit))
    for row in range(4):
        assert float(values["tv"][row]) >= want["tv"][row] * (1 - 1e-5)
        assert (float(values["tv"][row]) <= limit) == (want["tv"][row] <= limit)


def agreements() -> None:
    z = torch.randint(-4, 4, (6, 700), generator=torch.Generator().manual_seed(3)).float()
    w = z + torch.randint(-1, 2, (6, 700), generator=torch.Generator().manual_seed(4))
    z[3, 650], w[3, 10] = 9.0, 9.0
    z[4, [3, 650]], w[4, 650] = 9.0, 9.0
    z[5, [3, 650]], w[5, [3, 10]] = 9.0, 9.0
    plan = RowPlan(frozenset({"logit_span"}), ((1, False), (2, False), (5, True)))
    for split in (1, 2):
        compare(z, w, plan=plan, split=split)
        compare(z.to(BF16), w.to(BF16), plan=replace(plan, statistics=frozenset({"tv"})), split=split)
        compare(z.masked_fill(z == -3, -INF), w.masked_fill(w == 4, -INF), plan=plan, split=split)


def no_order() -> None:
    """A row's values do not depend on its neighbours."""
    z = peaked(3)
    w = z + 0.02 * noise(*z.shape, 25)
    z[1, 4] = w[1, 4] = -INF
    whole = row_statistics(z, w, FULL.without_samples(), backend="triton")
    for row in range(3):
        alone = row_statistics(z[row : row + 1], w[row : row + 1], FULL.without_samples(), backend="triton")
        for name, column in whole.values.items():
            assert float(column[row]) == float(alone.values[name][0]), (name, row)


class NoWaiting(TorchDispatchMode):
    """Refuses every operation that makes the host wait for a device."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "item")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name in self.WAITS:
            raise AssertionError(f"the launch path calls {name}")
        return func(*args, **(kwargs or {}))


def no_waiting() -> None:
    z = peaked(4, 300)
    w = z + 0.02 * noise(*z.shape, 26)
    z[1, 4] = w[1, 4] = -INF
    w[2, 5] -= 60.0
    z[3, 0] = math.nan
    plan = RowPlan(frozenset(STATISTICS), ((1, False), (5, True)), 0.001)
    job = Job(z, w, plan, 0.9, torch.zeros(4, dtype=torch.int64), Workspace())
    BACKENDS["triton"].run(job)  # the buffers exist from here on
    with NoWaiting():
        BACKENDS["triton"].run(job)
    try:
        with NoWaiting():
            bool(z.sum() > 0)
    except AssertionError:
        return
    raise AssertionError("the mode lets a host wait through")


def chosen() -> None:
    z = flat(1, 20)
    job = Job(z, z, FULL, 1.0, None, Workspace())
    assert choose(job, None).name != "triton" and choose(job, "triton").name == "triton"
    assert BACKENDS["triton"].unavailable(Job(z.double(), z, FULL, 1.0, None, Workspace())) == "float64 logits"
    assert list(BACKENDS).index("triton") < list(BACKENDS).index("lean")


def wide_rows() -> None:
    z = flat(1, 5003)
    compare(z.to(BF16), (z + 0.02 * noise(1, 5003, 27)).to(BF16), shape=backend.Shape())
    compare(z, z + 2.0 * noise(1, 5003, 27), shape=backend.Shape())


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every case by name."""
    for rows in (flat, peaked, late):
        for i, size in enumerate((1e-6, 1e-5, 1e-3, 0.05, 0.5, 2.0, 6.0, 50.0)):
            if rows is not flat and i % 3 == 1:
                continue
            yield f"noise {size} {rows.__name__}", partial(drifted, rows, size, (0.7, 1.0)[i % 2], 1 + i % 3)
    for rows, by in ((flat, 0.3), (peaked, -0.45), (flat, 3.0), (peaked, 100.0), (flat, -140.0), (peaked, -140.0)):
        yield f"offset {by} {rows.__name__}", partial(offset, rows, by)
    for width in (1, 2, 17, 1000, 1025):
        yield f"width {width} float32", partial(formats, FP32, FP32, width)
        yield f"width {width} bfloat16", partial(formats, BF16, BF16, width)
    yield "width 5003", wide_rows
    for first, second in ((FP16, FP16), (BF16, FP32), (FP32, FP16), (BF16, FP16)):
        yield f"formats {first} {second}", partial(formats, first, second, WIDTH)
    for which, size, split in (
        ("both", 1e-3, 1),
        ("reference", 0.3, 3),
        ("candidate", 1e-3, 1),
        ("mixed", 1e-3, 1),
        ("mixed", 0.3, 3),
    ):
        yield f"masks {which} {size} in {split}", partial(masks, which, size, split)
    yield "disjoint", partial(disjoint, 1)
    yield "disjoint split", partial(disjoint, 3)
    for name in sorted(STATISTICS):
        yield f"plan {name}", partial(specialised, name)
    for case in (
        far_tokens,
        outliers,
        huge_values,
        invalid,
        strides,
        certificates,
        agreements,
        no_order,
        no_waiting,
        chosen,
    ):
        yield case.__name__, case
    yield "identical float32", partial(identical, FP32)
    yield "identical bfloat16", partial(identical, BF16)


def main(chosen_cases: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = {}
    for name, case in cases():
        if chosen_cases and name not in chosen_cases:
            continue
        try:
            case()
            out[name] = ""
        except Exception:
            out[name] = traceback.format_exc()
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
