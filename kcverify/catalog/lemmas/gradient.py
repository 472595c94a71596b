"""Bounds for training on the candidate's samples: importance weights, truncation, the clip of the policy update."""

from __future__ import annotations

import sympy as sp

from kcverify.catalog.model import Attained, Lemma, Mode
from kcverify.catalog.quantities import ADVANTAGE, BY_NAME, CAP, CLIP, HORIZON, SCORE_NORM

u, v, eta, eta_h, tH = (
    BY_NAME[n].symbol for n in ("ratio_above", "ratio_below", "ratio_gap", "ratio_gap_seq", "tv_seq")
)
A, G, C, H, eps = ADVANTAGE, SCORE_NORM, CAP, HORIZON, CLIP
POINT, SEQUENCE = Mode.POINT, Mode.SEQUENCE
P2S, S2S = ((POINT, SEQUENCE),), ((SEQUENCE, SEQUENCE),)

ROWS: tuple[Lemma, ...] = (
    Lemma(
        "seq_ratio_gap",
        ("ratio_above", "ratio_below"),
        "ratio_gap_seq",
        sp.Max((1 + u) ** H - 1, 1 - (1 - v) ** H),
        "w of a response in [(1-v)^H, (1+u)^H]",
        "a product of H factors",
        "definition of the sequence ratio",
        parameters=("horizon",),
        modes=P2S,
        requires=("full_softmax",),
    ),
    Lemma(
        "pg_bias_of_ratio",
        ("ratio_gap_seq",),
        "pg_bias",
        A * G * eta_h,
        "bias <= A G eta, |w-1| <= eta for whole responses",
        "E_q|w-1| <= eta, and no mass of the reference lies outside the candidate's support, since w is bounded",
        "pg_bias_of_tv with 2 TV = E_q|w-1|",
        parameters=("advantage", "score_norm"),
        modes=S2S,
        attained=Attained("even_ratio"),
    ),
    Lemma(
        "tis_bias_of_ratio",
        ("ratio_gap_seq",),
        "tis_bias",
        A * G * sp.Max(0, 1 - C / (1 + eta_h)),
        "truncation at C leaves at most A G (1 - C/(1+eta))_+",
        "sum (p - C q)_+ = sum p (1 - C/w)_+ and w <= 1 + eta",
        "definition of truncated importance sampling",
        parameters=("advantage", "score_norm", "cap"),
        modes=S2S,
    ),
    Lemma(
        "tis_bias_of_tv",
        ("tv_seq",),
        "tis_bias",
        A * G * tH,
        "truncation at C >= 1 leaves at most A G TV_H",
        "sum (p - C q)_+ <= sum (p - q)_+ = TV for C >= 1",
        "definition of truncated importance sampling",
        parameters=("advantage", "score_norm"),
        modes=S2S,
        attained=Attained("cap_one"),
    ),
    Lemma(
        "clip_room_above_of_gap",
        ("ratio_gap",),
        "clip_room_above",
        sp.Max(0, (1 + eps) / (1 + eta) - 1),
        "room above 1 >= (eps - eta)/(1 + eta)",
        "policy ratio times kernel ratio stays below 1 + eps as long as the policy ratio stays below (1+eps)/(1+eta)",
        "definition of the PPO clip",
        parameters=("clip",),
        attained=Attained("gap_on_one_token"),
    ),
    Lemma(
        "clip_room_below_of_gap",
        ("ratio_gap",),
        "clip_room_below",
        sp.Max(0, 1 - (1 - eps) / (1 - sp.Min(eta, eps))),
        "room below 1 >= (eps - eta)/(1 - eta)",
        "policy ratio times kernel ratio stays above 1 - eps as long as the policy ratio stays above (1-eps)/(1-eta); "
        "none is left from eta = eps on",
        "definition of the PPO clip",
        parameters=("clip",),
        monotone={"eta": -1, "eps": 1},
        attained=Attained("gap_on_one_token"),
    ),
)
