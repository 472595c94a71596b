"""Bounds for what a user cares about: expected reward, pass rate, policy gradient, clip budget."""

from __future__ import annotations

import sympy as sp

from kcverify.catalog.model import Attained, Lemma, Mode
from kcverify.catalog.quantities import ADVANTAGE, BY_NAME, CLIP, HORIZON, REWARD_RANGE, SCORE_NORM, TOKEN_SCORE_NORM

tH, xH, eta = (BY_NAME[n].symbol for n in ("tv_seq", "chi2_seq", "ratio_gap"))
r, g, c = (BY_NAME[n].symbol for n in ("reward_drift", "pg_bias", "clip_share"))
A, G, G1, H, Rg = ADVANTAGE, SCORE_NORM, TOKEN_SCORE_NORM, HORIZON, REWARD_RANGE
S2S = ((Mode.SEQUENCE, Mode.SEQUENCE),)


ROWS: tuple[Lemma, ...] = (
    Lemma(
        "reward_of_tv",
        ("tv_seq",),
        "reward_drift",
        Rg * tH,
        "|E_p r - E_q r| <= (r_hi - r_lo) TV_H",
        "subtract the midrange from the reward; |sum (p-q) r| <= range/2 * 2 TV",
        "duality of total variation",
        inverse=r / Rg,
        parameters=("reward_range",),
        modes=S2S,
        attained=Attained("likelihood_reward"),
        published=2 * Rg * tH,
        published_as="2 R_max TV_H, R_max the largest reward of a reward from 0",
    ),
    Lemma(
        "reward_of_chi2",
        ("chi2_seq",),
        "reward_drift",
        Rg / 2 * sp.sqrt(xH),
        "|E_p r - E_q r| <= range/2 sqrt(chi2_H)",
        "Cauchy-Schwarz: sqrt(Var_q(r) chi2), and Var_q(r) <= range^2/4",
        "Hammersley 1950; Chapman and Robbins 1951; Popoviciu 1935",
        inverse=4 * r**2 / Rg**2,
        parameters=("reward_range",),
        modes=S2S,
        attained=Attained("chi2_halves"),
    ),
    Lemma(
        "pass_rate_of_tv",
        ("tv_seq",),
        "pass_rate_drift",
        tH,
        "pass rate moves by at most TV_H",
        "reward_of_tv with range 1",
        "reward_of_tv",
        inverse=BY_NAME["pass_rate_drift"].symbol,
        modes=S2S,
        attained=Attained("likelihood_reward"),
        published=2 * tH,
        published_as="2 R_max TV_H with R_max = 1",
    ),
    Lemma(
        "pg_bias_of_tv",
        ("tv_seq",),
        "pg_bias",
        2 * A * G * tH,
        "|E_p[A grad log pi] - E_q[A grad log pi]| <= 2 A G TV_H",
        "the integrand has norm at most A G; total variation is half the L1 distance",
        "duality of total variation",
        inverse=g / (2 * A * G),
        parameters=("advantage", "score_norm"),
        modes=S2S,
        attained=Attained("likelihood_gradient"),
        published=2 * A * G * tH,
        published_as="the same: A G times the L1 distance",
    ),
    Lemma(
        "pg_bias_of_tokens",
        ("tv_seq",),
        "pg_bias",
        2 * A * H * G1 * tH,
        "bias <= 2 A (H G1) TV_H, G1 the norm of one token's score",
        "pg_bias_of_tv, since the score of a response is a sum of at most H token scores. (A sum over prefixes, 2 A G1 sum TV_t, would be "
        "smaller but is false when one advantage weighs the whole response: proofs/examples/token_sum_counterexample.v)",
        "triangle inequality",
        inverse=g / (2 * A * H * G1),
        parameters=("advantage", "token_score_norm", "horizon"),
        modes=S2S,
        attained=Attained("likelihood_gradient"),
    ),
    Lemma(
        "clip_share_of_gap",
        ("ratio_gap",),
        "clip_share",
        eta / CLIP,
        "share of the clip range = |w-1| / epsilon",
        "definition: a PPO clip of epsilon is spent to this share before the policy moves",
        "Schulman et al. 2017, section 3",
        inverse=c * CLIP,
        parameters=("clip",),
        attained=Attained("ratio_extremes"),
    ),
)
