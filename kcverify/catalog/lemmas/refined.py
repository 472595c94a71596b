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
kept, s_kept, tail, flips, thin = (
    BY_NAME[n].symbol for n in ("trimmed_span", "trimmed_effective_span", "tail_mass", "disagreement", "thin_margin")
)
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
        "condition both sides on the kept set: there tv_of_span holds; outside at most eta moves",
        "tv_of_span",
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
            "perplexity_factor",
            sp.exp(lam),
            "perplexity moves by a factor of at most e^lambda",
            "every token's log-probability moves by at most lambda (on average: by at most its mean)",
            "log_ratio_of_span",
            inverse=sp.log(BY_NAME["perplexity_factor"].symbol),
            modes=((mode, SEQUENCE),),
            attained=Attained("shifted_text"),
        )
        for mode, way in ((POINT, "max"), (MEAN, "mean"))
    ),
    Lemma(
        "topk_of_margin",
        ("thin_margin",),
        "disagreement",
        thin,
        "top-k kept where span < margin; agreement >= M(tau) - rho",
        "a swap across the boundary needs an error difference of at least the margin, so the set changes on tokens of "
        "thin margin only; when the span is at most tau except on rho, these are at most 1 - M(tau) + rho, M(tau) the "
        "share of tokens whose margin exceeds tau",
        "counting",
        inverse=flips,
        modes=((MEAN, MEAN),),
        attained=Attained("flip_at_margin"),
    ),
    Lemma(
        "ece_of_tv",
        ("tv", "disagreement"),
        "ece_drift",
        sp.Min(1, t + flips),
        "|ECE drift| <= E[TV] + flip rate, bins fixed by the reference",
        "with fixed bins each token's confidence moves by at most its TV and its correctness only where the top token changes",
        "triangle inequality over the bins",
        modes=((MEAN, SEQUENCE),),
    ),
)
