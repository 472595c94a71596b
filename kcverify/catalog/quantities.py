"""The nodes of the bound graph: every quantity that a lemma speaks about, and the parameters of the lemmas."""

from __future__ import annotations

from fractions import Fraction

import sympy as sp

from kcverify.catalog.model import Dimension, Quantity


def _q(name: str, symbol: str, dimension: Dimension, title: str, **rest: object) -> Quantity:
    return Quantity(name, sp.Symbol(symbol, nonnegative=True), dimension, title, **rest)  # type: ignore[arg-type]


_ONE = Fraction(1)
QUANTITIES: tuple[Quantity, ...] = (
    _q("logit_drift", "delta", Dimension.LOGIT, "largest change of a logit"),
    _q("logit_span", "sigma", Dimension.LOGIT, "largest minus smallest change of a logit"),
    _q("effective_span", "s", Dimension.NAT, "span over temperature"),
    _q("trimmed_span", "sigma_S", Dimension.LOGIT, "smallest span of a set of tokens that holds the mass", graded=True),
    _q("trimmed_effective_span", "s_S", Dimension.NAT, "trimmed span over temperature", graded=True),
    _q("tail_mass", "tau", Dimension.NONE, "mass outside the kept tokens, on either side", high=_ONE, graded=True),
    _q("log_ratio", "lam", Dimension.NAT, "largest |ln(p/q)|"),
    _q("ratio_above", "u", Dimension.NONE, "largest p/q minus 1"),
    _q("ratio_below", "v", Dimension.NONE, "1 minus smallest p/q", high=_ONE),
    _q("ratio_gap", "eta", Dimension.NONE, "largest |p/q - 1|"),
    _q("tv", "t", Dimension.NONE, "total variation of one token", high=_ONE),
    _q("kl_reference_candidate", "k", Dimension.NAT, "KL(reference || candidate) of one token"),
    _q("kl_candidate_reference", "kappa", Dimension.NAT, "KL(candidate || reference) of one token"),
    _q("chi2", "x", Dimension.NONE, "chi-squared(reference || candidate) of one token"),
    _q("entropy_drift", "h", Dimension.NAT, "change of the entropy of one token"),
    _q("thin_margin", "m", Dimension.NONE, "share of tokens whose margin is at most their span", high=_ONE),
    _q(
        "choice_changes",
        "d_1",
        Dimension.NONE,
        "share of tokens whose choice changes, the first of tied tokens",
        high=_ONE,
    ),
    _q("disagreement", "d", Dimension.NONE, "share of tokens with no token most probable on both sides", high=_ONE),
    _q("flips", "d_m", Dimension.NONE, "share of tokens that disagree beyond a margin", high=_ONE, graded=True),
    _q("bc", "b", Dimension.NONE, "Bhattacharyya coefficient of one token", upper=False, high=_ONE),
    _q(
        "bc_seq",
        "b_H",
        Dimension.NONE,
        "Bhattacharyya coefficient of a response",
        upper=False,
        high=_ONE,
        sequence=True,
    ),
    _q("kl_seq_reference_candidate", "K", Dimension.NAT, "KL(reference || candidate) of a response", sequence=True),
    _q("kl_seq_candidate_reference", "K_q", Dimension.NAT, "KL(candidate || reference) of a response", sequence=True),
    _q("chi2_seq", "x_H", Dimension.NONE, "chi-squared(reference || candidate) of a response", sequence=True),
    _q("tv_seq", "t_H", Dimension.NONE, "total variation of a response", high=_ONE, sequence=True),
    _q("ratio_gap_seq", "eta_H", Dimension.NONE, "largest |p/q - 1| of a response", sequence=True),
    _q(
        "perplexity_factor",
        "f",
        Dimension.NONE,
        "candidate's perplexity over the reference's on any text",
        sequence=True,
    ),
    _q("perplexity_floor", "f_l", Dimension.NONE, "the same ratio from below", upper=False, sequence=True),
    _q(
        "mean_perplexity_factor",
        "f_m",
        Dimension.NONE,
        "factor by which the perplexity of the measured tokens moves",
        low=_ONE,
        sequence=True,
    ),
    _q(
        "ece_drift",
        "c_e",
        Dimension.NONE,
        "change of the calibration error, reference bins",
        high=_ONE,
        sequence=True,
        graded=True,
        ordered=False,
    ),
    _q("ess", "e", Dimension.NONE, "effective sample share", upper=False, high=_ONE, sequence=True),
    _q("reward_drift", "r", Dimension.REWARD, "change of the expected reward", sequence=True),
    _q("pass_rate_drift", "r_p", Dimension.NONE, "change of the pass rate", high=_ONE, sequence=True),
    _q("pg_bias", "g_b", Dimension.NONE, "norm of the policy-gradient bias", sequence=True),
    _q("tis_bias", "g_t", Dimension.NONE, "norm of the bias that truncating at a cap leaves", sequence=True),
    _q("clip_room_above", "r_a", Dimension.NONE, "room that is left to the policy update above 1", upper=False),
    _q("clip_room_below", "r_b", Dimension.NONE, "room that is left to the policy update below 1", upper=False),
    _q("clip_share", "c", Dimension.NONE, "share of the clip range that the kernel pair spends"),
)
BY_NAME: dict[str, Quantity] = {q.name: q for q in QUANTITIES}


def _p(symbol: str) -> sp.Symbol:
    return sp.Symbol(symbol, positive=True)


# Parameters: name in a lemma row -> symbol. Their boxes come from a contract's assumptions.
TEMPERATURE = _p("T")
HORIZON = _p("H")
REWARD_RANGE = _p("Rg")
ADVANTAGE = _p("A")
SCORE_NORM = _p("G")
TOKEN_SCORE_NORM = _p("G1")
CLIP = _p("eps")
CAP = _p("C")
CONFIDENCE = _p("p_max")
VOCABULARY = _p("V")
RHO = sp.Symbol("rho", nonnegative=True)  # exception share of the premise: filled in by the graph, not by an assumption
PARAMETERS: dict[str, sp.Symbol] = {
    "temperature": TEMPERATURE,
    "horizon": HORIZON,
    "reward_range": REWARD_RANGE,
    "advantage": ADVANTAGE,
    "score_norm": SCORE_NORM,
    "token_score_norm": TOKEN_SCORE_NORM,
    "clip": CLIP,
    "cap": CAP,
    "confidence": CONFIDENCE,
    "vocabulary": VOCABULARY,
}
# What a user writes in `assume` (or as an argument) to give a parameter.
ASSUMPTION_OF: dict[str, str] = {
    "temperature": "temperature in [low, high]",
    "horizon": "horizon <= N tokens",
    "reward_range": "reward in [low, high]",
    "advantage": "advantage in [-A, A]",
    "score_norm": "score_norm <= G",
    "token_score_norm": "token_score_norm <= G",
    "clip": "clip_share(clip = epsilon)",
    "cap": "cap = C",
    "confidence": "confidence >= P",
    "vocabulary": "vocabulary = N",
}
# Lowest value that a parameter may take, for the sign rules of `bounds.shape`.
PARAMETER_LOW: dict[str, Fraction] = dict.fromkeys(PARAMETERS, Fraction(0)) | {
    "horizon": _ONE,
    "vocabulary": Fraction(2),
    "confidence": Fraction(1, 2),
    "cap": _ONE,
}
# Highest value of a parameter that is a share.
PARAMETER_HIGH: dict[str, Fraction] = {"confidence": _ONE, "clip": _ONE}
