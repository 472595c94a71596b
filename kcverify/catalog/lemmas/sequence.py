"""Bounds for whole responses, and the rules that carry a premise with exceptions to a mean or to a response."""

from __future__ import annotations

import sympy as sp

from kcverify.catalog.model import Attained, Lemma, Mode
from kcverify.catalog.quantities import BY_NAME, HORIZON, QUANTITIES, RHO
from kcverify.enclosure import BinomialTV, ClosedTV, OptimalTV

H = HORIZON
s, lam, t, b, x = (BY_NAME[n].symbol for n in ("effective_span", "log_ratio", "tv", "bc", "chi2"))
tH, bH = BY_NAME["tv_seq"].symbol, BY_NAME["bc_seq"].symbol
POINT, MEAN, SEQUENCE = Mode.POINT, Mode.MEAN, Mode.SEQUENCE
SOFTMAX = ("full_softmax",)
P2S, M2S = ((POINT, SEQUENCE),), ((MEAN, SEQUENCE),)
_KL_SEQ = (("kl_seq_reference_candidate", "forward"), ("kl_seq_candidate_reference", "reverse"))
_HIT = "; contexts that exceed are replaced by the reference, which costs the chance H rho of meeting one"
_EXC = "; rho is the expected share of exceeding tokens of a response"


def mix(name: str) -> Lemma:
    """`E[x] <= (1-rho) x + rho high` for a quantity with values in `[0, high]`, in survival form."""
    q = BY_NAME[name]
    high = sp.Rational(q.high.numerator, q.high.denominator) if q.high is not None else sp.Integer(1)
    return Lemma(
        f"exceedance_mix_{name}",
        (name,),
        name,
        high - (1 - RHO) * (high - q.symbol),
        "E[x] <= (1-rho) x + rho x_max",
        "split the expectation at the exception",
        "elementary",
        inverse=high - (high - q.symbol) / (1 - RHO),
        modes=((POINT, MEAN),),
        attained=Attained("mix"),
    )


def pointwise_mean(name: str) -> Lemma:
    """`E[x] <= x` for a quantity without an upper end: it needs `rho = 0`."""
    return Lemma(
        f"mean_of_max_{name}",
        (name,),
        name,
        BY_NAME[name].symbol,
        "E[x] <= max x",
        "a mean is at most the maximum",
        "elementary",
        inverse=BY_NAME[name].symbol,
        modes=((POINT, MEAN),),
        attained=Attained("mix"),
    )


_RATES = (
    "thin_margin",
    "choice_changes",
    "disagreement",
    "flips",
    "tail_mass",
)  # shares already: they have no pointwise form
MIXES = tuple(
    mix(q.name) if q.high is not None else pointwise_mean(q.name)
    for q in QUANTITIES
    if q.upper and not q.sequence and q.name not in _RATES
)

ROWS: tuple[Lemma, ...] = (
    *MIXES,
    Lemma(
        "seq_tv_union",
        ("tv",),
        "tv_seq",
        sp.Min(1, H * RHO + 1 - (1 - t) ** H),
        "TV_H <= 1 - (1-t)^H + H rho",
        "couple the two next tokens maximally at every step" + _HIT,
        "coupling" + _EXC,
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        attained=Attained("fresh_symbol"),
        published=H * RHO + H * t,
        published_as="TV_H <= H t",
    ),
    Lemma(
        "seq_affinity",
        ("effective_span",),
        "tv_seq",
        sp.Min(1, H * RHO + sp.sqrt(1 - sp.cosh(s / 4) ** (-2 * H))),
        "TV_H <= sqrt(1 - sech(s/4)^(2H)) + H rho",
        "BC of a response is at least the product of its steps' (bc_of_span), then tv_of_bc" + _HIT,
        "seq_bc_product, tv_of_bc" + _EXC,
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        published=H * RHO + H * s / 2,
        published_as="TV_H <= H s/2",
    ),
    Lemma(
        "seq_tv_optimal",
        ("effective_span",),
        "tv_seq",
        sp.Min(1, H * RHO + OptimalTV(s, H)),
        "TV_H <= worst adaptive case at span s + H rho",
        "the worst adaptive pair of policies solves a recursion in the likelihood ratio; on a grid the chord of a convex "
        "function lies above it, so the recursion bounds from above; a larger span or horizon allows every process of a "
        "smaller one" + _HIT,
        "bounds.optimal_grid; the two-point splits are exact by convexity" + _EXC,
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        monotone=dict.fromkeys(("s", "H", "rho"), 1),
        special=True,
        published=H * RHO + H * s / 2,
        published_as="TV_H <= H s/2",
    ),
    Lemma(
        "seq_tv_closed",
        ("effective_span",),
        "tv_seq",
        sp.Min(1, H * RHO + ClosedTV(s, H)),
        "TV_H <= coth(s/2) - sech(s/4)^(H-1)/sinh(s/2) + H rho",
        "the recursion's first step in closed form, exact for 2 and 3 steps; k steps together are one step of span ks"
        + _HIT,
        "bounds.optimal_forms" + _EXC,
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        monotone=dict.fromkeys(("s", "H", "rho"), 1),
        special=True,
    ),
    Lemma(
        "seq_bc_product",
        ("bc",),
        "bc_seq",
        b**H,
        "BC_H >= b^H",
        "condition on the prefix: BC of a response is an expectation of products, each factor at least b",
        "induction over the steps",
        inverse=bH ** (1 / H),
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        attained=Attained("bc_repeat"),
    ),
    Lemma(
        "seq_tv_of_bc",
        ("bc_seq",),
        "tv_seq",
        sp.sqrt(1 - bH**2),
        "TV_H <= sqrt(1 - BC_H^2)",
        "tv_of_bc for the two response distributions",
        "tv_of_bc",
        inverse=sp.sqrt(1 - tH**2),
        modes=((SEQUENCE, SEQUENCE),),
        attained=Attained("symmetric_bc"),
    ),
    Lemma(
        "seq_log_ratio",
        ("log_ratio",),
        "tv_seq",
        sp.Min(1, H * RHO + BinomialTV(lam, H)),
        "TV_H <= TV(Bin(H, 1/(1+e^-lambda)), Bin(H, 1/(1+e^lambda))) + H rho",
        "optimal composition of pure differential privacy at epsilon = 0; every pair of ratio at most lambda is a garbling of the binary one, "
        "so the bound grows with lambda, and with H since a shorter response is a garbling of a longer one" + _HIT,
        "Kairouz, Oh and Viswanath 2015" + _EXC,
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        attained=Attained("symmetric_ratio_repeat"),
        monotone={"lam": 1, "H": 1},
        not_after=("log_ratio_of_span",),
        published=sp.Min(1, H * RHO + 1 - sp.exp(-H * lam)),
        published_as="TV_H <= 1 - e^(-H lambda), basic composition",
    ),
    Lemma(
        "seq_chi2_product",
        ("chi2",),
        "chi2_seq",
        (1 + x) ** H - 1,
        "1 + chi2_H <= (1 + chi2)^H",
        "1 + chi2 = E_p[p/q] is an expectation of products over the steps",
        "induction over the steps",
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        attained=Attained("chi2_repeat"),
    ),
    Lemma(
        "seq_tv_of_chi2",
        ("chi2_seq",),
        "tv_seq",
        sp.sqrt(BY_NAME["chi2_seq"].symbol) / 2,
        "TV_H <= sqrt(chi2_H)/2",
        "tv_of_chi2 for the two response distributions",
        "tv_of_chi2",
        inverse=4 * tH**2,
        modes=((SEQUENCE, SEQUENCE),),
        attained=Attained("chi2_halves"),
    ),
    Lemma(
        "seq_tv_expected",
        ("tv",),
        "tv_seq",
        sp.Min(1, H * t),
        "TV_H <= sum over the steps of E[TV_t]",
        "hybrid argument: change one step at a time, on contexts of the candidate's policy",
        "coupling",
        inverse=tH / H,
        parameters=("horizon",),
        modes=M2S,
        requires=SOFTMAX,
        attained=Attained("fresh_symbol_first"),
    ),
    *(
        Lemma(
            f"seq_kl_chain_{way}",
            (name,),
            seq,
            H * BY_NAME[name].symbol,
            "KL_H <= H k",
            f"chain rule; {note}",
            "chain rule of the KL divergence",
            inverse=BY_NAME[seq].symbol / H,
            parameters=("horizon",),
            modes=modes,
            requires=SOFTMAX,
            attained=Attained("kl_repeat"),
        )
        for name, seq, way, modes, note in (
            (
                "kl_reference_candidate",
                "kl_seq_reference_candidate",
                "forward",
                P2S,
                "a pointwise bound holds on contexts of either policy",
            ),
            (
                "kl_candidate_reference",
                "kl_seq_candidate_reference",
                "reverse",
                P2S + M2S,
                "exact for means on contexts of the candidate, the sampler",
            ),
        )
    ),
    *(
        Lemma(
            f"seq_pinsker_{way}",
            (name,),
            "tv_seq",
            sp.Min(1, sp.sqrt(BY_NAME[name].symbol / 2)),
            "TV_H <= sqrt(KL_H/2)",
            "the token inequality for the two response distributions",
            "Pinsker 1964; Csiszar 1967",
            inverse=2 * tH**2,
            modes=((SEQUENCE, SEQUENCE),),
        )
        for name, way in _KL_SEQ
    ),
    *(
        Lemma(
            f"seq_bretagnolle_huber_{way}",
            (name,),
            "tv_seq",
            sp.sqrt(1 - sp.exp(-BY_NAME[name].symbol)),
            "TV_H <= sqrt(1 - exp(-KL_H))",
            "the token inequality for the two response distributions",
            "Bretagnolle and Huber 1979",
            inverse=-sp.log(1 - tH**2),
            modes=((SEQUENCE, SEQUENCE),),
        )
        for name, way in _KL_SEQ
    ),
    Lemma(
        "ess_of_span",
        ("effective_span",),
        "ess",
        sp.cosh(s / 2) ** (-2 * H),
        "ESS/N >= cosh(s/2)^(-2H)",
        "ESS/N is 1/E_q[w^2] in the limit, E_q[w^2] = 1 + chi2_H <= (1 + sinh(s/2)^2)^H",
        "chi2_of_span, seq_chi2_product",
        inverse=2 * sp.acosh(BY_NAME["ess"].symbol ** (-1 / (2 * H))),
        parameters=("horizon",),
        modes=P2S,
        requires=SOFTMAX,
        attained=Attained("ess_repeat"),
    ),
    Lemma(
        "ess_of_chi2",
        ("chi2_seq",),
        "ess",
        1 / (1 + BY_NAME["chi2_seq"].symbol),
        "ESS/N >= 1/(1 + chi2_H)",
        "ESS/N is 1/E_q[w^2] in the limit",
        "Kong 1992",
        inverse=1 / BY_NAME["ess"].symbol - 1,
        modes=((SEQUENCE, SEQUENCE),),
        attained=Attained("chi2_halves"),
    ),
)
