"""The optimal sequence bound: references, a plain dynamic programme, constants, cache, inversion, table, recheck."""

from __future__ import annotations

import ast
import json
import math
import random
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from flint import arb
from scipy.special import ndtr
from scipy.stats import binom

from kcverify.bounds import optimal, optimal_gaussian, optimal_grid, optimal_recheck, optimal_table
from kcverify.bounds.optimal import attained, binomial_attained, closed_form, span_budget, upper
from kcverify.bounds.optimal_forms import is_vacuous
from kcverify.enclosure import ball, precision

REFERENCE = [
    (Fraction(1, 50), 1024, 0.1273, 0.1274),
    (Fraction(1, 5), 64, 0.3127, 0.3131),
    (Fraction(1), 8, 0.5350, 0.5356),
    (Fraction(1), 2, 0.303365, 0.303366),
]


def affinity(s: Fraction, horizon: int) -> float:
    return math.sqrt(-math.expm1(-2 * horizon * math.log(math.cosh(float(s) / 4))))


def plain(s: float, h: int, log_ratio: np.ndarray, count: int = 160) -> np.ndarray:
    """`phi_h` by nested maximisation over `count + 1` splits: from below, without interpolation."""
    if h == 0:
        return np.abs(np.sinh(log_ratio / 2))
    t = np.linspace(0, s, count + 1)
    up = plain(s, h - 1, log_ratio[..., None] + t, count)
    down = plain(s, h - 1, log_ratio[..., None] + t - s, count)
    best: np.ndarray = (np.sinh((s - t) / 2) * up + np.sinh(t / 2) * down).max(axis=-1) / np.sinh(s / 2)
    return best


@pytest.mark.parametrize(("s", "horizon", "low", "high"), REFERENCE)
def test_reference_points(s: Fraction, horizon: int, low: float, high: float) -> None:
    above, below = upper(s, horizon), attained(s, horizon)
    assert low <= above <= high
    assert below <= above <= below * Fraction(1005, 1000)
    assert above.denominator.bit_length() <= 64


@pytest.mark.parametrize("s", [Fraction(1, 10**6), Fraction(1, 10), Fraction(1), Fraction(7, 2), Fraction(15)])
def test_short_horizons_are_exact(s: Fraction) -> None:
    assert float(upper(s, 1)) == pytest.approx(math.tanh(float(s) / 4), rel=1e-11)
    for horizon in (1, 2, 3):
        assert attained(s, horizon) <= upper(s, horizon) <= attained(s, horizon) * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize(
    ("s", "horizon"), [(Fraction(1, 5), 2), (Fraction(1), 3), (Fraction(3), 3), (Fraction(1, 2), 4), (Fraction(5), 4)]
)
def test_plain_dynamic_programme(s: Fraction, horizon: int) -> None:
    count = {2: 400, 3: 120, 4: 36}[horizon]
    value = float(plain(float(s), horizon, np.zeros(1), count)[0])
    assert value <= upper(s, horizon) <= value * 1.003


def test_node_bounds_dominate_the_programme_everywhere() -> None:
    s, cells = Fraction(3, 2), 8
    profile = optimal_grid.upper_profiles(s, (2,), cells)[2]
    nodes = np.arange(len(profile.values)) * profile.step
    exact = plain(1.5, 2, nodes, 160)
    assert np.all(profile.values >= exact * (1 - 1e-12))
    assert np.all(profile.values <= exact * 1.01)


@pytest.mark.parametrize("s", [Fraction(1, 10**9), Fraction(1, 50), Fraction(1), Fraction(21, 2)])
def test_constants_are_on_the_safe_side(s: Fraction) -> None:
    cells = 20
    for up, slack in ((True, optimal_grid.WEIGHT_SLACK), (False, -optimal_grid.WEIGHT_SLACK)):
        d = optimal_grid.lattice_step(s, cells, up=up)
        assert (Fraction(d) * cells >= s) if up else (Fraction(d) * cells <= s)
        w = optimal_grid.weights(d, cells, slack)
        kink = optimal_grid.kink(d, 6 * cells, slack)
        with precision(200):
            x = ball(Fraction(d))
            whole, unit, small = (x * cells / 2).sinh(), (x / 2).sinh(), (x / 4).sinh()
            exact = [(x * (cells - c) / 2).sinh() / whole for c in range(cells)]
            exact += [(x * (2 * (cells - c) - 1) / 4).sinh() / whole * small / unit for c in range(cells)]
            exact += [(x * i / 2).sinh() / unit for i in range(1, 6 * cells)]
            found = [*w.nodes[:-1], *w.centres, *kink[1:]]
            for value, truth in zip(found, exact, strict=True):
                error = (arb(float(value)) / truth - 1) * (1 if up else -1)
                assert error >= 0
                assert error <= arb(2) ** -46


def test_lattice_steps_round_to_their_side() -> None:
    for k in range(1, 100):
        s = Fraction(k, 977)
        assert Fraction(optimal_grid.lattice_step(s, 20, up=True)) * 20 >= s
        assert Fraction(optimal_grid.lattice_step(s, 20, up=False)) * 20 <= s


def test_a_narrow_grid_stays_on_its_side(monkeypatch: pytest.MonkeyPatch) -> None:
    s, horizon = Fraction(1, 5), 100
    below = attained(s, horizon)
    monkeypatch.setattr(optimal_grid, "WIDTH", 0.5)
    assert optimal_grid.upper_profiles(s, (horizon,), 8)[horizon].values[0] > below
    assert optimal_grid.lower_value(s, horizon, 8, 256) < below


def test_any_gaussian_distance_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    s, horizon = Fraction(1, 5), 128
    below = attained(s, horizon)
    profile = optimal_grid.upper_profiles(s, (32,), 8)[32]
    d, values = optimal_recheck.node_bounds(s, 32, 8)
    for factor in (0.5, 0.9, 1.0, 1.1):
        monkeypatch.setattr(optimal_gaussian, "FACTORS", (factor,))
        assert optimal_gaussian.composed([(optimal_gaussian.dominations(profile), 4)]) >= below
        m = optimal_recheck._distance(s, 32, round(1000 * factor) - 1000)
        assert optimal_recheck._composed(d, values, m, 4) >= below


def test_closed_form_is_the_least_over_all_splits() -> None:
    for s, horizon in ((Fraction(1, 10), 40), (Fraction(1), 9), (Fraction(3), 5)):
        x = float(s)
        merged = [affinity(s, horizon)]
        for k in range(1, horizon + 1):
            rho = math.cosh(x / 4) ** -(horizon - k)
            free = math.cosh(k * x / 2) * rho <= 1
            edge = (math.cosh(k * x / 2) - rho) / math.sinh(k * x / 2)
            merged.append(math.sqrt(1 - rho * rho) if free else edge)
        assert float(closed_form(s, horizon)) == pytest.approx(min(merged), rel=1e-10)


@pytest.mark.parametrize(("s", "horizon"), [(0.3, 7), (1.0, 12), (0.02, 1001)])
def test_binomial_witness_against_its_sum(s: float, horizon: int) -> None:
    n = horizon if horizon % 2 else horizon - 1
    k = np.arange(n + 1)
    p = 1 / (1 + math.exp(s / 2))
    total = 0.5 * np.abs(binom.pmf(k, n, p) - binom.pmf(k, n, 1 - p)).sum()
    assert float(binomial_attained(Fraction(s), horizon)) == pytest.approx(total, rel=1e-9)


def test_long_horizons_are_fast_and_tight() -> None:
    upper(Fraction(1, 50), 8)
    for s, horizon in ((Fraction(1, 50), 8192), (Fraction(1, 1000), 2**17)):
        start = time.perf_counter()
        above = upper(s, horizon)
        assert time.perf_counter() - start < 5
        assert attained(s, horizon) <= above <= attained(s, horizon) * Fraction(1005, 1000)


def test_vacuous_bounds_are_answered_at_once() -> None:
    for s, horizon in ((Fraction(1, 2), 10**7), (Fraction(50), 12), (Fraction(10**6), 2**17)):
        start = time.perf_counter()
        assert is_vacuous(s, horizon)
        assert 0.998 < upper(s, horizon) <= 1
        assert time.perf_counter() - start < 0.5
    assert upper(Fraction(12, 10), 130) <= attained(Fraction(12, 10), 130) * Fraction(1005, 1000)


def test_blocks_agree_with_the_whole_horizon() -> None:
    s, horizon = Fraction(1, 10), 600
    whole = float(optimal_grid.upper_profiles(s, (horizon,), 20)[horizon].values[0])
    profile = optimal_grid.upper_profiles(s, (300,), 20)[300]
    blocks = optimal_gaussian.composed([(optimal_gaussian.dominations(profile), 2)])
    assert attained(s, horizon) <= whole <= blocks <= whole * 1.004


def test_gaussian_domination_between_nodes() -> None:
    profile = optimal_grid.upper_profiles(Fraction(1, 5), (100,), 8)[100]
    x = np.linspace(0, profile.step * (len(profile.values) - 1), 5001)
    nodes = np.arange(len(profile.values)) * profile.step
    left = np.minimum((x / profile.step).astype(int), len(nodes) - 2)
    r = x - nodes[left]
    d = profile.step
    chord = (np.sinh((d - r) / 2) * profile.values[left] + np.sinh(r / 2) * profile.values[left + 1]) / np.sinh(d / 2)
    for m, deficit in optimal_gaussian.dominations(profile):
        high, low = x / m + m / 2, x / m - m / 2
        gamma = 0.5 * (np.exp(x / 2) * (2 * ndtr(high) - 1) - np.exp(-x / 2) * (2 * ndtr(low) - 1))
        assert np.all(chord <= gamma + deficit + 1e-12)


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s, horizon = Fraction(1, 7), 40
    value = upper(s, horizon, cache=tmp_path / "deep" / "er")
    (entry,) = (tmp_path / "deep" / "er").iterdir()
    document = json.loads(entry.read_text())
    low = document | {"upper": "1/100"}
    for text in ("", "[]", "{", json.dumps(low), json.dumps(document | {"horizon": 41}), '{"upper": "1/0"}'):
        entry.write_text(text)
        assert upper(s, horizon, cache=entry.parent) == value
        assert json.loads(entry.read_text()) == document
    forged = optimal._document(s, horizon, document["cells"], Fraction(1, 100))
    entry.write_text(json.dumps(forged))
    assert upper(s, horizon, cache=entry.parent) == value
    monkeypatch.setattr(optimal, "_computed", lambda *_: pytest.fail("a whole entry is used"))
    assert upper(s, horizon, cache=entry.parent) == value
    assert [p.name for p in entry.parent.iterdir()] == [entry.name]


@pytest.mark.parametrize(
    ("tv", "horizon"),
    [
        (Fraction(1, 10), 1),
        (Fraction(1, 20), 3),
        (Fraction(1, 10), 24),
        (Fraction(1, 2), 3000),
        (Fraction(1, 10**6), 50),
        (Fraction(99, 100), 9),
    ],
)
def test_span_budget(tv: Fraction, horizon: int) -> None:
    s = span_budget(tv, horizon)
    assert upper(s, horizon) <= tv
    assert upper(s, horizon) >= tv * (1 - Fraction(1, 10**4))
    assert attained(s * Fraction(102, 100), horizon) > tv
    assert s.denominator.bit_length() + s.numerator.bit_length() <= 120


def test_a_search_that_never_meets_the_target_halves() -> None:
    s = span_budget(Fraction(3, 4), 1, evaluations=1)
    assert 0 < upper(s, 1) <= Fraction(3, 4)
    s = span_budget(Fraction(1, 2), 5, evaluations=1)
    assert 0 < upper(s, 5) <= Fraction(1, 2)
    with pytest.raises(ValueError, match="evaluation"):
        span_budget(Fraction(1, 2), 5, evaluations=0)


def test_faulty_arguments() -> None:
    for call in (upper, attained, closed_form, binomial_attained, optimal_table.table_upper):
        with pytest.raises(ValueError, match="span"):
            call(Fraction(-1), 3)
        with pytest.raises(ValueError, match="horizon"):
            call(Fraction(1), 0)
        assert call(Fraction(0), 5) == 0
    for tv in (Fraction(0), Fraction(1)):
        with pytest.raises(ValueError, match="total variation"):
            span_budget(tv, 4)
    with pytest.raises(ValueError, match="even"):
        upper(Fraction(1), 8, grid=5)
    with pytest.raises(ValueError, match="error analysis"):
        optimal_grid.upper_profiles(Fraction(13), (4,), 8)


def test_table_dominates_fresh_runs() -> None:
    table, rng = optimal_table.load_table(), random.Random(11)
    for _ in range(12):
        j = rng.randrange(len(table.horizons))
        i = rng.randrange(len(table.upper[j]))
        s, horizon = table.spans[table.first[j] + i], table.horizons[j]
        assert table.upper[j][i] * optimal_table.UNIT * (1 + Fraction(1, 10**6)) >= upper(s, horizon, grid=20)
        assert optimal_table.table_upper(s, horizon) >= attained(s, horizon)


def test_table_between_nodes_is_sound_near_and_fast() -> None:
    rng = random.Random(5)
    optimal_table.table_upper(Fraction(1), 8)
    spent = 0.0
    for _ in range(25):
        horizon = int(4 * 2 ** rng.uniform(0, 12))
        s = Fraction(math.exp(rng.uniform(math.log(1e-3), math.log(6)))) / math.isqrt(horizon)
        start = time.perf_counter()
        bound = optimal_table.table_upper(s, horizon)
        spent += time.perf_counter() - start
        low = attained(s, horizon)
        assert low <= bound <= low * Fraction(115, 100)
    assert spent < 0.1


def test_table_is_monotone_and_small() -> None:
    table = optimal_table.load_table()
    for j, column in enumerate(table.upper):
        assert list(column) == sorted(column)
        for i, value in enumerate(column):
            k = table.first[j] + i
            if j + 1 < len(table.upper) and 0 <= k - table.first[j + 1] < len(table.upper[j + 1]):
                assert value <= table.upper[j + 1][k - table.first[j + 1]]
    path = Path(optimal_table.__file__).parents[1] / "data" / optimal_table.RESOURCE
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize(
    ("s", "horizon"),
    [(Fraction(1), 1), (Fraction(1), 8), (Fraction(1, 5), 40), (Fraction(1, 10**6), 30), (Fraction(6), 5)],
)
def test_recheck(s: Fraction, horizon: int) -> None:
    assert optimal_recheck.recheck_coarse(s, horizon, upper(s, horizon) * Fraction(101, 100))
    assert not optimal_recheck.recheck_coarse(s, horizon, attained(s, horizon) * Fraction(999, 1000))


@pytest.mark.parametrize(("s", "horizon"), [(Fraction(2), 6), (Fraction(1, 5), 64)])
def test_recheck_repeats_the_recursion(s: Fraction, horizon: int) -> None:
    floats = optimal_grid.upper_profiles(s, (horizon,), 8)[horizon]
    _, values = optimal_recheck.node_bounds(s, horizon, 8)
    assert len(values) == len(floats.values)
    for integer, value in zip(values, floats.values, strict=True):
        assert value * (1 - 1e-10) <= integer <= value * (1 + 1e-3)
    assert values[0] <= floats.values[0] * (1 + 1e-6)


def test_recheck_of_a_long_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimal_recheck, "LONGEST_BLOCK", 128)
    monkeypatch.setattr(optimal_recheck, "THOUSANDTHS", (8,))
    claimed = upper(Fraction(1, 50), 1024) * Fraction(102, 100)
    assert optimal_recheck.recheck_coarse(Fraction(1, 50), 1024, claimed)
    assert not optimal_recheck.recheck_coarse(
        Fraction(1, 50), 1024, attained(Fraction(1, 50), 1024) * Fraction(999, 1000)
    )


def test_recheck_constants_and_normal_integral() -> None:
    with precision(400):
        scaled = arb(10) ** 50 / (2 * arb.pi()).sqrt()
        assert int(scaled.floor().unique_fmpz()) == optimal_recheck.INVERSE_ROOT_TWO_PI
        for x in (Fraction(0), Fraction(1, 3), Fraction(-2), Fraction(13, 3), Fraction(8)):
            low, high = optimal_recheck._normal(x, 300)
            truth = (ball(x) / arb(2).sqrt()).erf() / 2 * arb(2) ** 300
            assert arb(low) <= truth <= arb(high)
            assert high - low < 2**140
        for x in (Fraction(1, 10**9), Fraction(1, 3), Fraction(30)):
            low, high = optimal_recheck._sinh(x, 200)
            truth = ball(x).sinh() * arb(2) ** 200
            assert arb(low) <= truth <= arb(high)


def test_recheck_needs_the_standard_library_only() -> None:
    tree = ast.parse(Path(optimal_recheck.__file__).read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {str(m).split(".")[0] for m in modules} <= sys.stdlib_module_names
