"""Token bounds that need more than a span: kept mass, confidence, vocabulary, margins; and what follows for quality."""

from __future__ import annotations

import sympy as sp

from kcverify.catalog.model import Attained, Lemma, Mode
from kcverify.catalog.quantities import BY_NAME, CONFIDENCE, TEMPERATURE, VOCABULARY

sigma, s, lam, t, k, kq, b = (
    BY_NAME[n].symbol
    for n in (
        "logit_span",
        "effective_span",
        "log_ratio",
        "tv",
        "kl_reference_candidate",
        "kl_candidate_reference",
        "bc",
    )
)
kept, s_kept, tail, changes, thin = (
    BY_NAME[n].symbol for n in ("trimmed_span", "trimmed_effective_span", "tail_mass", "choice_changes", "thin_margin")
)
u, v, flips = (BY_NAME[n].symbol for n in ("ratio_above", "ratio_below", "disagreement"))
T, V, c = TEMPERATURE, VOCABULARY, CONFIDENCE
_SOFTMAX = ("full_softmax",)
POINT, MEAN, SEQUENCE = Mode.POINT, Mode.MEAN, Mode.SEQUENCE


def _gain(theta: sp.Expr) -> sp.Expr:
    """Mass that a set of mass `theta` gains when its logits are lifted by `s` against the rest."""
    return theta * (1 - theta) * (sp.exp(s) - 1) / (1 + theta * (sp.exp(s) - 1))


_held = sp.Min(t, 1 - 1 / V)

ROWS: tuple[Lemma, ...] = (
    Lemma(
        "trimmed_of_span",
        ("logit_span",),
        "trimmed_span",
        sigma,
        "span over fewer tokens <= span",
        "a maximum over a subset",
        "definition",
        inverse=kept,
        attained=Attained("kept_span"),
    ),
    Lemma(
        "trimmed_effective_span",
        ("trimmed_span",),
        "trimmed_effective_span",
        kept / T,
        "s_S = sigma_S / T",
        "softmax(z/T) sees e/T",
        "definition of temperature sampling",
        inverse=s_kept * T,
        parameters=("temperature",),
        attained=Attained("kept_span"),
        requires=_SOFTMAX,
    ),
    Lemma(
        "tv_of_trimmed_span",
        ("trimmed_effective_span", "tail_mass"),
        "tv",
        1 - (1 - tail) * (1 - sp.tanh(s_kept / 4)),
        "TV <= (1-eta) tanh(s_S/4) + eta",
        "let eta = p(S^c) >= q(S^c): the sides overlap on S by at least (1-eta) times the overlap of their conditionals, whose "
        "logits differ by a span sigma_S, so that tv_of_span holds for them",
        "tv_of_span",
        attained=Attained("kept_and_disjoint"),
    ),
    Lemma(
        "tv_of_span_confident",
        ("effective_span",),
        "tv",
        sp.Max(_gain(sp.Min(1 - c, 1 / (1 + sp.exp(s / 2)))), _gain(c)),
        "TV <= max f over set masses in [0, 1-p_max] and [p_max, 1]",
        "a token of probability at least p_max leaves sets of mass at most 1-p_max or at least p_max; the gain "
        "f(theta) of a lifted set rises to theta = 1/(1+e^(s/2)) and falls beyond, and grows with s",
        "tv_of_span restricted to the possible masses",
        parameters=("confidence",),
        requires=_SOFTMAX,
        monotone={"s": 1, "p_max": -1},
        attained=Attained("confident_token"),
    ),
    Lemma(
        "bc_of_tv",
        ("tv",),
        "bc",
        1 - t,
        "BC >= 1 - TV",
        "sqrt(pq) >= min(p, q)",
        "Le Cam",
        inverse=1 - b,
        attained=Attained("disjoint_part"),
    ),
    *(
        Lemma(
            f"bc_of_kl_{way}",
            (name,),
            "bc",
            sp.exp(-BY_NAME[name].symbol / 2),
            "BC >= exp(-KL/2)",
            "Jensen: ln sum p sqrt(q/p) >= sum p ln(q/p)/2",
            "Bretagnolle and Huber 1979",
            inverse=-2 * sp.log(b),
        )
        for name, way in (("kl_reference_candidate", "forward"), ("kl_candidate_reference", "reverse"))
    ),
    Lemma(
        "entropy_of_tv",
        ("tv",),
        "entropy_drift",
        _held * sp.log(V - 1) - _held * sp.log(_held) - (1 - _held) * sp.log(1 - _held),
        "|H(p) - H(q)| <= t ln(V-1) + h2(t), t <= 1 - 1/V",
        "maximal coupling and Fano's inequality; the right side grows up to t = 1 - 1/V, where it is ln V",
        "Fannes 1973; Audenaert 2007",
        parameters=("vocabulary",),
        monotone={"t": 1, "V": 1},
        attained=Attained("spread_from_certainty"),
    ),
    *(
        Lemma(
            f"nll_{way}",
            ("log_ratio",),
            name,
            sp.exp(lam),
            "perplexity moves by a factor of at most e^lambda",
            f"every token's log-probability moves by at most lambda{note}",
            "log_ratio_of_span",
            inverse=sp.log(BY_NAME[name].symbol),
            modes=((mode, SEQUENCE),),
            attained=Attained("shifted_text"),
        )
        for mode, way, name, note in (
            (POINT, "max", "perplexity_factor", ", whatever the text"),
            (
                MEAN,
                "mean",
                "mean_perplexity_factor",
                " on average over the tokens that the mean is about, and no other text",
            ),
        )
    ),
    Lemma(
        "nll_floor",
        ("log_ratio",),
        "perplexity_floor",
        sp.exp(-lam),
        "perplexity keeps a factor of at least e^-lambda",
        "nll_max with the sides exchanged",
        "log_ratio_of_span",
        inverse=-sp.log(BY_NAME["perplexity_floor"].symbol),
        modes=((POINT, SEQUENCE),),
        attained=Attained("shifted_text"),
    ),
    Lemma(
        "perplexity_of_ratio_above",
        ("ratio_above",),
        "perplexity_factor",
        1 + u,
        "perplexity ratio <= largest p/q",
        "it is the geometric mean of p/q over the tokens of the text",
        "definition",
        inverse=BY_NAME["perplexity_factor"].symbol - 1,
        modes=((POINT, SEQUENCE),),
        attained=Attained("repeated_token"),
    ),
    Lemma(
        "perplexity_of_ratio_below",
        ("ratio_below",),
        "perplexity_floor",
        1 - v,
        "perplexity ratio >= smallest p/q",
        "it is the geometric mean of p/q over the tokens of the text",
        "definition",
        inverse=1 - BY_NAME["perplexity_floor"].symbol,
        modes=((POINT, SEQUENCE),),
        attained=Attained("repeated_token"),
    ),
    Lemma(
        "topk_of_margin",
        ("thin_margin",),
        "choice_changes",
        thin,
        "top-k kept where span < margin; agreement >= M(tau) - rho",
        "a swap across the boundary needs an error difference of at least the margin, so the set changes on tokens of "
        "thin margin only; when the span is at most tau except on rho, these are at most 1 - M(tau) + rho, M(tau) the "
        "share of tokens whose margin exceeds tau",
        "counting",
        inverse=changes,
        modes=((MEAN, MEAN),),
        attained=Attained("flip_at_margin"),
    ),
    Lemma(
        "disagreement_of_changes",
        ("choice_changes",),
        "disagreement",
        changes,
        "disagreement <= choice changes",
        "where the choices are equal, that token is most probable on both sides; the converse fails where tokens tie",
        "definition",
        inverse=flips,
        modes=((MEAN, MEAN),),
        attained=Attained("flip_at_margin"),
    ),
    Lemma(
        "flips_of_disagreement",
        ("disagreement",),
        "flips",
        flips,
        "flips beyond a margin <= disagreement",
        "a flip at any margin is a disagreement; a tie of the reference has no margin, so the converse fails even at margin 0",
        "definition",
        inverse=BY_NAME["flips"].symbol,
        modes=((MEAN, MEAN),),
        attained=Attained("flip_at_margin"),
    ),
    Lemma(
        "ece_of_tv",
        ("tv", "choice_changes"),
        "ece_drift",
        sp.Min(1, t + changes),
        "|ECE drift| <= E[TV] + rate of changed choices, bins fixed by the reference",
        "with fixed bins each token's confidence moves by at most its TV and its correctness only where the choice changes; "
        "agreement that counts a tie as equal does not bound the latter",
        "triangle inequality over the bins",
        modes=((MEAN, SEQUENCE),),
    ),
)
