"""The row statistics of every backend against the float64 oracle, and the oracle against scipy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr

from kcverify.runtime.backends import OVERRIDE
from kcverify.runtime.oracle import oracle_rows, oracle_top
from kcverify.runtime.rowplan import agreement_column
from kcverify.runtime.rows import STATISTICS, RowPlan, row_statistics

torch.set_num_threads(1)
FULL = RowPlan(frozenset(STATISTICS))
INF = math.inf
WIDTH = 2048
NARROW = (torch.bfloat16, torch.float16, torch.float32)
DIVERGENCES = ("tv", "kl_reference_candidate", "kl_candidate_reference")


@pytest.fixture(params=["lean", pytest.param("cpp", marks=pytest.mark.needs("compiler"))], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend that every call of a test takes, by the environment's override."""
    monkeypatch.setenv(OVERRIDE, request.param)
    return str(request.param)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(shape: tuple[int, int], seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed))


def flat(rows: int = 4, width: int = WIDTH) -> torch.Tensor:
    return noise((rows, width), 1) * 3


def peaked(rows: int = 4, width: int = WIDTH) -> torch.Tensor:
    z = noise((rows, width), 2) * 3
    z[:, width // 2] = 18.0
    z[:, 7] = 16.5
    return z


def late(rows: int = 4, width: int = WIDTH) -> torch.Tensor:
    z = noise((rows, width), 3)
    z[:, -1] = 14.0
    return z


def rising(slope: float, width: int, rows: int = 3) -> torch.Tensor:
    """Rows that rise from end to end: every block has a new maximum, near the one before or far from it."""
    return torch.linspace(0.0, slope, width) + 0.5 * noise((rows, width), 4)


def check(z: torch.Tensor, w: torch.Tensor, temperature: float = 1.0, sampled: torch.Tensor | None = None) -> None:
    """Every statistic agrees: divergences to 1e-5 relative where KL >= 1e-9, the rest to what float32 carries."""
    name = None if {z.dtype, w.dtype} <= set(NARROW) else "lean"
    got = row_statistics(z, w, FULL, temperature=temperature, sampled_ids=sampled, backend=name)
    want = oracle_rows(z, w, temperature=temperature, sampled_ids=sampled)
    assert got.invalid.double().tolist() == want["invalid"]
    assert got.reference_only.double().tolist() == want["reference_only"]
    assert got.candidate_only.double().tolist() == want["candidate_only"]
    for name, column in got.values.items():
        for row, (a, b) in enumerate(zip(column.tolist(), want[name], strict=True)):
            if not math.isfinite(b) or not math.isfinite(a):
                assert a == b or (math.isnan(a) and math.isnan(b)), (name, row, a, b)
                continue
            kl = want["kl_reference_candidate"][row]
            assert abs(a - b) <= allowed(name, b, kl, want["log_ratio"][row]), (name, row, a, b)
            if name in DIVERGENCES:
                assert a >= 0.0, (name, row, a)


def allowed(name: str, value: float, kl: float, drift: float) -> float:
    """Tolerated error of one statistic."""
    if name in DIVERGENCES:
        return 1e-5 * value if kl >= 1e-9 or math.isinf(kl) else 1e-3 * value + 1e-13
    if name == "chi2":
        return 1e-4 * value + 1e-13
    if name == "bc":  # one minus a sum
        return 4e-6
    if name.startswith("entropy"):
        return 1e-5 * max(1.0, value)
    return 2e-6 * abs(value) + 2e-7 * min(max(1.0, 0.0 if math.isinf(drift) else drift), 100.0)


@pytest.mark.parametrize("rows", [flat, peaked, late])
@pytest.mark.parametrize("size", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 2.0, 6.0])
def test_noise(rows: Callable[[], torch.Tensor], size: float) -> None:
    z = rows()
    check(z, z + size * noise(tuple(z.shape), 5), 0.7, torch.tensor([0, 7, WIDTH // 2, WIDTH - 1]))


@pytest.mark.parametrize("slope", [5.0, 40.0, 300.0])
@pytest.mark.parametrize("width", [2048, 4096 + 32, 10_000])
def test_a_maximum_that_moves_block_by_block(slope: float, width: int) -> None:
    z = rising(slope, width)
    for size in (1e-4, 0.05, 2.0):
        check(z, z + size * noise(tuple(z.shape), 8), 0.8)
        check(z.bfloat16(), (z + size * torch.linspace(-1, 1, width)).bfloat16())


@pytest.mark.parametrize("offset", [0.3, -0.45, 3.0, 100.0, -140.0])
@pytest.mark.parametrize("rows", [flat, peaked])
def test_constant_offset_does_not_cost_digits(rows: Callable[[], torch.Tensor], offset: float) -> None:
    z = rows()
    check(z, z + 1e-2 * noise(tuple(z.shape), 6) + offset)
    check((z + offset).contiguous(), z + 1e-2 * noise(tuple(z.shape), 6), 0.6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [flat, peaked])
def test_dtypes(rows: Callable[[], torch.Tensor], dtype: torch.dtype) -> None:
    z = rows()
    check(z.to(dtype), (z + 0.05 * noise(tuple(z.shape), 7)).to(dtype), 0.9)


def test_mixed_dtypes_and_strides() -> None:
    z = noise((WIDTH, 5), 8).t() * 3
    w = (torch.cat((z, z), 1)[:, ::2] + 0.01).to(torch.bfloat16)
    check(z, w)
    check(z[:, :1000], z[:, 1000:2000])
    check(z[:1].expand(3, WIDTH), z[1:4])


@pytest.mark.parametrize("width", [1, 2, 3, 17, 65_537, 131_073])
def test_widths(width: int) -> None:
    z = noise((2, width), 9) * 3
    check(z, z + 0.02 * noise((2, width), 10))


def test_widest_vocabulary() -> None:
    z = noise((1, 262_144), 11) * 3
    check(z, z + 0.02 * noise((1, 262_144), 12))


@pytest.mark.parametrize("which", ["both", "reference", "candidate", "mixed"])
@pytest.mark.parametrize("size", [1e-3, 0.3])
def test_masks(which: str, size: float) -> None:
    z = peaked()
    w = z + size * noise(tuple(z.shape), 13)
    first = torch.rand(*z.shape, generator=generator(14)) < 0.2
    second = torch.rand(*z.shape, generator=generator(15)) < 0.2
    first[:2, 7] = True
    if which in ("both", "candidate", "mixed"):
        z = z.masked_fill(first, -INF)
    if which in ("both", "reference"):
        w = w.masked_fill(first, -INF)
    if which == "mixed":
        w = w.masked_fill(second, -INF)
    check(z, w, 0.8, torch.tensor([7, 7, 7, 9]))


def test_disjoint_supports_and_lost_peaks() -> None:
    z, w = torch.full((6, 8), -INF), torch.full((6, 8), -INF)
    z[:, :4], w[:, 4:] = 0.5, 1.5
    w[1, 4:] = 300.0
    w[2, 4:] = -300.0
    z[3, 4], w[3, 0] = 1.0, -50.0
    w[4] = z[4]
    w[4, 2] = -INF
    w[5], z[5] = 1.0, 2.0
    check(z, w)


def test_huge_drift_of_a_token_without_mass() -> None:
    z = torch.zeros(3, WIDTH)
    z[:, 7] = 20.0
    w = z + 1e-2 * noise((3, WIDTH), 16)
    w[:, 5] -= 40.0
    w[1, 6] += 19.0
    w[2, 6] += 700.0
    check(z, w)


def test_outlier_at_the_largest_token() -> None:
    z = torch.zeros(2, WIDTH)
    w = z + 1e-4 * noise((2, WIDTH), 17)
    z[:, 0], w[:, 0] = 0.01, 2.0
    check(z, w)


def test_invalid_rows_are_flagged_and_do_not_touch_their_neighbours() -> None:
    z = flat(7)
    w = z + 0.1 * noise(tuple(z.shape), 18)
    z[0, 3] = math.nan
    w[1, 2] = INF
    z[2] = -INF
    w[3] = -INF
    z[4, 0] = w[4, 0] = INF
    z[5, 0], w[5, 0] = -INF, math.nan
    check(z, w)
    rows = row_statistics(z, w, FULL)
    assert rows.invalid.tolist() == [True] * 6 + [False]
    assert math.isnan(rows.values["tv"][0]) and math.isfinite(rows.values["tv"][6])


def test_identical_sides_are_exactly_zero() -> None:
    z = peaked()
    rows = row_statistics(z, z.clone(), FULL)
    for name in ("logit_drift", "logit_span", *DIVERGENCES, "chi2", "log_ratio"):
        assert rows.values[name].tolist() == [0.0] * 4, name


def test_inputs_are_left_alone() -> None:
    for dtype in (torch.float32, torch.float64):
        z, w = flat().to(dtype), (flat() + 40.0).to(dtype)
        before = z.clone(), w.clone()
        row_statistics(z, w, FULL, backend=None if dtype in NARROW else "lean")
        assert torch.equal(z, before[0]) and torch.equal(w, before[1])


def test_raw_plan_is_exact_under_an_offset() -> None:
    z = flat()
    w = z + 1e-3 * noise(tuple(z.shape), 19) + 100.0
    rows = row_statistics(z, w, RowPlan(frozenset({"logit_drift", "logit_span"})))
    d = w.double() - z.double()
    assert torch.equal(rows.values["logit_span"], d.amax(-1) - d.amin(-1))
    assert torch.equal(rows.values["logit_drift"], d.abs().amax(-1))


def test_one_and_two_threads_agree_bitwise() -> None:
    z = peaked(64, 4096)
    w = z + 0.02 * noise(tuple(z.shape), 20)
    one = row_statistics(z, w, FULL)
    torch.set_num_threads(2)
    two = row_statistics(z, w, FULL)
    torch.set_num_threads(1)
    for name, column in one.values.items():
        assert torch.equal(column, two.values[name]), name


def test_oracle_agrees_with_scipy() -> None:
    z = peaked().double()
    w = z + 0.3 * noise(tuple(z.shape), 21).double()
    want = oracle_rows(z, w, temperature=0.8)
    log_p, log_q = log_softmax(z.numpy() / 0.8, -1), log_softmax(w.numpy() / 0.8, -1)
    p, q = np.exp(log_p), np.exp(log_q)
    for name, value in {
        "tv": 0.5 * np.abs(p - q).sum(-1),
        "kl_reference_candidate": rel_entr(p, q).sum(-1),
        "kl_candidate_reference": rel_entr(q, p).sum(-1),
        "chi2": ((p - q) ** 2 / q).sum(-1),
        "bc": np.sqrt(p * q).sum(-1),
        "log_ratio": np.abs(log_q - log_p).max(-1),
        "ratio_min": np.exp(log_p - log_q).min(-1),
        "ratio_max": np.exp(log_p - log_q).max(-1),
        "entropy_reference": -(p * log_p).sum(-1),
        "entropy_candidate": -(q * log_q).sum(-1),
    }.items():
        np.testing.assert_allclose(want[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("step", [0.0, 0.5, 1e-3])
def test_agreement_of_tied_rows(dtype: torch.dtype, step: float) -> None:
    tops = ((1, False), (2, False), (2, True), (5, False), (5, True), (40, False))
    z = noise((12, 300), 22) * 3
    w = z + 0.3 * noise((12, 300), 23)
    if step:
        z, w = (z / step).round() * step, (w / step).round() * step
    z[0], w[1], z[2], w[2] = 0.0, 1.0, 2.0, 3.0
    z[3, 10:] = w[3, 12:] = -INF
    z, w = z.to(dtype), w.to(dtype)
    got = row_statistics(z, w, RowPlan(frozenset(), tops))
    for k, ordered in tops:
        column = got.values[agreement_column(k, ordered)].tolist()
        assert column == oracle_top(z, w, k, ordered), (k, ordered)


@pytest.mark.parametrize("size", [1e-3, 0.05, 0.3, 3.0])
def test_a_certificate_stands_for_total_variation_up_to_its_limit(size: float) -> None:
    z = torch.cat((flat(), peaked(), late()))
    w = z + size * noise(tuple(z.shape), 24)
    w[3, 5] = z[4, 5] = -INF
    limit = 0.05
    exact = row_statistics(z, w, RowPlan(frozenset({"tv"}))).values["tv"]
    got = row_statistics(z, w, RowPlan(frozenset({"tv"}), tv_limit=limit)).values
    bound = torch.sqrt(0.5 * got["kl_reference_candidate"])
    for value, true, pinsker in zip(got["tv"].tolist(), exact.tolist(), bound.tolist(), strict=True):
        assert (value <= limit) == (true <= limit)
        assert true <= value * (1 + 1e-5)
        assert value == pytest.approx(pinsker if pinsker <= limit else true, rel=5e-5, abs=2e-12)


def test_a_specialised_plan_gives_what_the_full_one_gives() -> None:
    z = torch.cat((flat(), peaked(), late()))
    w = z + 0.05 * noise(tuple(z.shape), 25)
    full = row_statistics(z, w, FULL, temperature=0.7)
    for name in sorted(set(STATISTICS) - {"token_log_ratio"}):
        alone = row_statistics(z, w, RowPlan(frozenset({name})), temperature=0.7).values[name]
        assert torch.allclose(alone, full.values[name], rtol=1e-6, atol=1e-12), name


def test_pilots_that_lose_digits() -> None:
    """Rows whose first arg-max is an outlier that a later one corrects, and whose mass nearly all goes."""
    z = torch.zeros(5, 5000)
    w = z + 1e-4 * noise((5, 5000), 26)
    z[0, 0], w[0, 0] = 0.01, 2.0
    z[0, 3000] = w[0, 3000] = 0.02
    z[1, 3000], w[1, 3000] = 0.02, 2.0
    w[2] -= 12.0
    z[2, 0] = w[2, 0] = 0.01
    w[3] += 6.0
    z[3, 0] = w[3, 0] = 0.01
    z[4, 0], w[4, 0] = 0.01, 2.0
    z[4, 9:50] = -INF
    check(z, w)
    check(z, w, 0.7)


def test_huge_finite_values() -> None:
    low = torch.finfo(torch.float32).min
    z = flat(3)
    w = z + 0.01 * noise(tuple(z.shape), 27)
    z[0, 9:40] = w[0, 9:40] = low
    w[1, 3] = low
    z[2] = w[2] = low
    check(z, w)


@pytest.mark.parametrize("size", [5.0, 86.0, 89.0, 200.0, 3000.0])
def test_a_token_that_only_the_candidate_has_with_nearly_all_of_the_mass(size: float) -> None:
    """Its weight is beyond float32 at the reference's maximum."""
    z = flat(3, 200)
    w = z + 0.01 * noise((3, 200), 28)
    z[:, 7], w[:, 7] = -INF, size
    check(z, w, 1.0, torch.tensor([7, 8, 9]))
    check(z.to(torch.float16), w.to(torch.float16), 0.5)


def test_the_oracle_keeps_its_digits_beside_huge_logits() -> None:
    z, w = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 3e38]])
    z[0, 2] = -300.0
    rows = oracle_rows(z, w)
    assert rows["tv"] == [1.0]
    assert rows["kl_candidate_reference"][0] == pytest.approx(300 + math.log(2))
    far = oracle_rows(torch.tensor([[0.0, -1000.0]]), torch.tensor([[0.0, -3000.0]]))
    assert far["chi2"] == [INF] and far["tv"][0] < 1e-300


@pytest.mark.parametrize(("z_top", "w_top"), [(10.0, 0.0), (10.0, 10.5), (0.0, 10.0), (15.0, 15.01)])
def test_equal_terms_do_not_round_all_one_way(z_top: float, w_top: float) -> None:
    """Thousands of equal logits and one above them, where every addition of a long float32 sum rounds alike."""
    z = torch.zeros(2, 60_000)
    w = z.clone()
    for row, at in enumerate((0, 30_000)):
        z[row, at], w[row, at] = z_top, w_top
    check(z, w, 1.0, torch.tensor([0, 30_000]))
