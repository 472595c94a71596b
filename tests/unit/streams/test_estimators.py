"""The registry of estimators and the projects' names against values computed by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from made_streams import compared, request

from kcverify.output.compare_streams import text
from kcverify.streams.estimators import ROWS, log_abs_expm1, log_k3
from kcverify.streams.projects import PROJECTS

A, B = [-1.0, -2.0, -0.5], [-3.0, -1.0]
G, H = [-1.1, -1.8, -0.5], [-2.6, -1.2]
D = [0.1, -0.2, 0.0, -0.4, 0.2]
"""Two sequences of a trainer and of its rollouts; their differences."""


def values(project: str) -> dict[str, float]:
    answer = compared([request("a", A), request("b", B)], [request("a", G), request("b", H)], project=project)
    return {row["name"]: row["value"] for row in answer["project"]["numbers"]}


def mean(terms) -> float:
    terms = list(terms)
    return sum(terms) / len(terms)


def k3(d: float) -> float:
    return math.exp(d) - 1 - d


def test_registry_by_hand() -> None:
    answer = compared([request("a", A), request("b", B)], [request("a", G), request("b", H)])
    got = {row["name"]: row["value"] for row in answer["estimators"]}
    w = [math.exp(d) for d in D]
    assert got == pytest.approx({
        "k1": -mean(D), "k2": mean(d * d / 2 for d in D), "k3": mean(map(k3, D)), "k3 of -d": mean(k3(-d) for d in D),
        "mean ratio": mean(w), "chi2": mean(x * x for x in w) - 1, "TV by ratio": mean(abs(x - 1) for x in w) / 2,
        "binary TV": mean(abs(math.exp(t) - math.exp(g)) for t, g in zip(A + B, G + H, strict=True)),
        "mult-prob error": mean(math.exp(abs(d)) for d in D), "mean |d|": mean(map(abs, D)),
        "ESS": sum(w) ** 2 / (5 * sum(x * x for x in w)),
    })  # fmt: skip
    assert answer["sequences"]["median_log_weight"] == pytest.approx((-0.1 - 0.2) / 2)


def test_chi2_is_unbiased_and_below_zero_by_chance() -> None:
    """Over all samples of two tokens, each as likely as the engine draws it, the mean of the estimate is chi2."""
    engine, trainer = (0.5, 0.3, 0.2), (0.6, 0.3, 0.1)
    chi2 = sum((t - g) ** 2 / g for t, g in zip(trainer, engine, strict=True))
    total, below = 0.0, 0
    for i, j in itertools.product(range(3), repeat=2):
        t, g = ([math.log(side[i]), math.log(side[j])] for side in (trainer, engine))
        answer = compared([request("a", t)], [request("a", g)])
        [row] = [row for row in answer["estimators"] if row["name"] == "chi2"]
        total += engine[i] * engine[j] * row["value"]
        below += row["value"] < -1e-9
        assert (row["lower"], row["upper"]) == (-1.0, "inf")
    assert total == pytest.approx(chi2) and below
    assert "unbiased" in row["estimates"] and "variance" not in row["estimates"]


def test_an_interval_that_one_request_cannot_give_is_said() -> None:
    one = text(compared([request("a", A)], [request("a", G)]), False)
    [line] = [line for line in one.splitlines() if line.startswith("  chi2")]
    assert "none: 1 request" in line
    two = text(compared([request("a", A), request("b", B)], [request("a", G), request("b", H)]), False)
    assert "none: 1 request" not in two


def test_every_row_says_what_it_is() -> None:
    for row in ROWS:
        assert row.formula and row.estimates and row.sign and row.kind and row.sampled_from
        assert (row.log_terms is None) != (row.terms is None)


def test_verl() -> None:
    got = values("verl")
    first, second = mean(D[:3]), mean(D[3:])
    c = [min(2.0, max(0.5, math.exp(d))) for d in D]
    diff = [abs(math.exp(t) - math.exp(g)) for t, g in zip(A + B, G + H, strict=True)]
    assert got["rollout_corr/kl"] == pytest.approx(0.06)
    assert got["rollout_corr/k3_kl"] == pytest.approx(mean(map(k3, D)))
    assert got["rollout_corr/chi2_token"] == pytest.approx(mean(math.exp(2 * d) for d in D) - 1)
    assert got["rollout_corr/chi2_seq"] == pytest.approx((math.exp(-0.2) + math.exp(-0.4)) / 2 - 1)
    assert got["rollout_corr/training_ppl"] == pytest.approx((math.exp(3.5 / 3) + math.exp(2)) / 2)
    assert got["rollout_corr/rollout_ppl"] == pytest.approx((math.exp(3.4 / 3) + math.exp(1.9)) / 2)
    assert got["rollout_corr/log_ppl_diff"] == pytest.approx(-(first + second) / 2)
    assert got["rollout_corr/log_ppl_abs_diff"] == pytest.approx((abs(first) + abs(second)) / 2)
    assert got["rollout_corr/ppl_ratio"] == pytest.approx((math.exp(-first) + math.exp(-second)) / 2)
    assert got["rollout_corr/rollout_is_mean"] == pytest.approx(mean(map(math.exp, D)))
    assert got["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(
        mean(c) ** 2 / mean(x * x for x in c), abs=1e-6
    )
    assert got["training/rollout_probs_diff_mean"] == pytest.approx(mean(diff))
    assert got["training/rollout_probs_diff_max"] == pytest.approx(max(diff))
    assert got["training/rollout_probs_diff_std"] == pytest.approx(np.std(diff, ddof=1))
    assert got["training/rollout_actor_probs_pearson_corr"] == pytest.approx(
        np.corrcoef(np.exp(A + B), np.exp(G + H))[0, 1]
    )


def test_trl_caps_and_masks_at_three() -> None:
    got = values("trl")
    assert got["sampling/sampling_logp_difference/mean"] == pytest.approx(0.18)
    assert got["sampling/sampling_logp_difference/max"] == pytest.approx(0.4)
    assert got["sampling/importance_sampling_ratio/mean, token_truncate"] == pytest.approx(mean(map(math.exp, D)))
    assert got["sampling/importance_sampling_ratio/min, token_truncate"] == pytest.approx(math.exp(-0.4))
    assert got["sampling/importance_sampling_ratio/mean, sequence_mask"] == pytest.approx(
        (math.exp(-0.1) + math.exp(-0.2)) / 2
    )
    wide = compared(
        [request("a", [-1.0, -1.0]), request("b", [-1.0])],
        [request("a", [-2.0, -2.0]), request("b", [-1.5])],
        project="trl",
    )
    wide = {row["name"]: row["value"] for row in wide["project"]["numbers"]}
    assert wide["sampling/importance_sampling_ratio/mean, sequence_mask"] == pytest.approx(math.exp(0.5) / 2)
    assert wide["sampling/importance_sampling_ratio/max, token_truncate"] == pytest.approx(math.e)


def test_nemo() -> None:
    got = values("nemo")
    assert got["token_mult_prob_error"] == pytest.approx(mean(math.exp(abs(d)) for d in D))
    assert got["gen_kl_error"] == pytest.approx(mean(map(k3, D)))
    assert got["policy_kl_error"] == pytest.approx(mean(k3(-d) for d in D))
    assert got["sampling_importance_ratio"] == pytest.approx(mean(map(math.exp, D)))
    m = [math.log(0.5 * math.exp(t) + 0.5 * math.exp(g)) for t, g in zip(A + B, G + H, strict=True)]
    js = mean(0.5 * k3(t - x) + 0.5 * k3(g - x) for t, g, x in zip(A + B, G + H, m, strict=True))
    assert got["js_divergence_error"] == pytest.approx(js)


def test_slime_weighs_samples_alike() -> None:
    got = values("slime")
    assert got["train_rollout_logprob_abs_diff"] == pytest.approx((0.1 + 0.3) / 2)
    assert got["tis"] == pytest.approx((mean(map(math.exp, D[:3])) + mean(map(math.exp, D[3:]))) / 2)
    assert got["tis_clipfrac"] == 0
    assert got["tis_abs"] == pytest.approx(
        (mean(abs(math.expm1(d)) for d in D[:3]) + mean(abs(math.expm1(d)) for d in D[3:])) / 2
    )
    assert got["mismatch_kl"] == pytest.approx((0.1 / 3 + 0.1) / 2)
    assert got["mismatch_k3_kl"] == pytest.approx((mean(map(k3, D[:3])) + mean(map(k3, D[3:]))) / 2)


def test_prime_rl_openrlhf_and_areal() -> None:
    assert values("prime-rl")["mismatch_kl/mean"] == pytest.approx((mean(map(k3, D[:3])) + mean(map(k3, D[3:]))) / 2)
    assert values("openrlhf") == pytest.approx({"vllm_kl": 0.06})
    assert values("areal")["behave_approx_kl/avg"] == pytest.approx(-0.06)
    assert values("areal")["behave_imp_weight/avg"] == pytest.approx(mean(map(math.exp, D)))


def test_every_project_maps_to_entries_that_exist() -> None:
    known = {row.name for row in ROWS} | {"ESS", ""}
    assert set(PROJECTS) == {"verl", "trl", "nemo", "slime", "prime-rl", "openrlhf", "areal"}
    for rows in PROJECTS.values():
        assert {row.entry for row in rows} <= known and len({row.name for row in rows}) == len(rows)


def test_terms_are_accurate_near_zero_and_finite_far_away() -> None:
    tiny = np.array([1e-6, -1e-6, 1e-9])
    assert np.exp(log_k3(tiny)) == pytest.approx(tiny**2 / 2, rel=1e-6)
    assert log_k3(np.array([800.0, -800.0])) == pytest.approx([800.0, math.log(799.0)])
    assert log_abs_expm1(np.array([800.0, -800.0])) == pytest.approx([800.0, 0.0])
    assert log_k3(np.array([0.0]))[0] == -math.inf


def test_a_mean_beyond_float64_is_said_in_logarithms() -> None:
    answer = compared([request("r", [-1.0, -1.0])], [request("r", [-1.0, -2000.0])])
    [row] = [r for r in answer["estimators"] if r["name"] == "mean ratio"]
    assert row["value"] == "inf" and row["log_mean"] == pytest.approx(1999 - math.log(2))
    assert row["largest_token"]["share"] == pytest.approx(1) and row["largest_token"]["position"] == 1


def test_intervals_are_over_requests() -> None:
    rng = np.random.default_rng(0)
    left = [request(f"r{i}", -rng.exponential(1.0, 30) - 1) for i in range(20)]
    right = [request(f"r{i}", left[i].logprobs + rng.normal(0, 0.1, 30)) for i in range(20)]
    [k1] = [r for r in compared(left, right)["estimators"] if r["name"] == "k1"]
    means = [float((b.logprobs - a.logprobs).mean()) for a, b in zip(left, right, strict=True)]
    half = 2.093 * np.std(means, ddof=1) / math.sqrt(20)
    assert (k1["lower"], k1["upper"]) == pytest.approx((np.mean(means) - half, np.mean(means) + half), abs=1e-4)
    assert k1["unit"] == "request"
