"""Instances that attain the bounds: for each family, what it does to the premises and to the conclusion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from flint import arb

from kcverify.enclosure import ball, binomial_tv
from kcverify.reference import metrics

_RARE = Fraction(1, 2**60)
Values = Mapping[str, Fraction]


@dataclass(frozen=True)
class Attainment:
    """What an instance reaches: balls around the premises that it meets and around its conclusions."""

    premises: Mapping[str, arb]
    conclusions: Mapping[str, arb]


def lifted(theta: arb, s: arb) -> tuple[list[arb], list[arb]]:
    """Two outcomes: the first has mass `theta` under the reference, and its logit is lifted by `s` nat."""
    weight = theta * s.exp()
    norm = weight + 1 - theta
    return [theta, 1 - theta], [weight / norm, (1 - theta) / norm]


def _span(s: Fraction, theta: arb, temperature: Fraction = Fraction(1)) -> Attainment:
    p, q = lifted(theta, ball(s))
    sigma = s * temperature
    reached = {name: f(p, q) for name, f in metrics.TOKEN.items()}
    span = {"effective_span": ball(s), "logit_span": ball(sigma), "logit_drift": ball(sigma / 2)}
    return Attainment(span, {**reached, **span})


def _span_at(theta: Callable[[arb], arb]) -> Callable[[Values, Values], Attainment]:
    def make(premises: Values, parameters: Values) -> Attainment:
        t = parameters.get("temperature", Fraction(1))
        if "logit_drift" in premises:
            s = 2 * premises["logit_drift"] / t
        elif "logit_span" in premises:
            s = premises["logit_span"] / t
        else:
            s = premises["effective_span"]
        return _span(s, theta(ball(s)), t)

    return make


def _pair(p: list[arb], q: list[arb]) -> Attainment:
    reached = {name: f(p, q) for name, f in metrics.TOKEN.items()}
    return Attainment(reached, reached)


def symmetric(lam: arb) -> tuple[list[arb], list[arb]]:
    """Two outcomes of probability `1/(1+e^-lam)` and the rest, swapped between the sides."""
    a = 1 / (1 + (-lam).exp())
    return [a, 1 - a], [1 - a, a]


def _extremes(premises: Values, parameters: Values) -> Attainment:
    a, b = (
        1 - ball(premises["ratio_below"]),
        1 + ball(premises["ratio_above"]) if "ratio_above" in premises else 1 + ball(premises["ratio_gap"]),
    )
    low, high = (b - 1) / (b - a), (1 - a) / (b - a)
    return _pair([a * low, b * high], [low, high])


def _gap(premises: Values, parameters: Values) -> Attainment:
    if "ratio_gap" not in premises:
        return _extremes(premises, parameters)
    eta = premises["ratio_gap"]
    reached = _ratio_point(1 + ball(eta))
    share = ball(eta / parameters["clip"]) if "clip" in parameters else ball(eta)
    return Attainment(reached.premises, {**reached.conclusions, "clip_share": share})


def _ratio_point(w: arb) -> Attainment:
    """One rare outcome of ratio `w`; the rest absorbs the mass."""
    rare = ball(_RARE)
    return _pair([rare * w, 1 - rare * w], [rare, 1 - rare])


def _symmetric_bc(premises: Values, parameters: Values) -> Attainment:
    b = ball(premises.get("bc", premises.get("bc_seq", Fraction(1))))
    x = (1 + (1 - b * b).nonnegative_part().sqrt()) / 2
    out = _pair([x, 1 - x], [1 - x, x])
    return _both(out, {"bc": "bc_seq", "tv": "tv_seq"})


def _both(out: Attainment, names: Mapping[str, str]) -> Attainment:
    """The same two distributions read as those of whole responses."""
    more = {seq: out.conclusions[token] for token, seq in names.items()}
    return Attainment({**out.premises, **more}, {**out.conclusions, **more})


def _halves(premises: Values, parameters: Values) -> Attainment:
    x = premises.get("chi2", premises.get("chi2_seq", Fraction(0)))
    y = ball(x).sqrt()
    half = ball(Fraction(1, 2))
    out = _both(_pair([half * (1 + y), half * (1 - y)], [half, half]), {"chi2": "chi2_seq", "tv": "tv_seq"})
    reward = ball(parameters.get("reward_range", Fraction(1))) * out.conclusions["tv"]
    return Attainment(
        out.premises, {**out.conclusions, "reward_drift": reward, "ess": 1 / (1 + out.conclusions["chi2"])}
    )


def _mixed(premises: Values, parameters: Values) -> Attainment:
    name, x = next(iter(premises.items()))
    rho = ball(parameters.get("rho", Fraction(0)))
    return Attainment({name: ball(x)}, {name: (1 - rho) * ball(x) + rho})


def _repeat(premises: Values, parameters: Values) -> Attainment:
    """Independent steps of one pair: the token quantities compose exactly."""
    h = ball(parameters["horizon"])
    n = int(parameters["horizon"])
    out: dict[str, arb] = {}
    for name, x in premises.items():
        v = ball(x)
        if name == "tv":
            out["tv_seq"] = 1 - (1 - v) ** n
        elif name == "bc":
            out["bc_seq"] = v**n
        elif name == "chi2":
            out["chi2_seq"] = (1 + v) ** n - 1
        elif name == "log_ratio":
            out["tv_seq"] = binomial_tv(v, h)
        elif name == "effective_span":
            out["ess"] = (v / 2).cosh() ** (-2 * n)
            out["tv_seq"] = binomial_tv(v / 2, h)
        else:
            out[name.replace("kl_", "kl_seq_")] = h * v
    return Attainment({k: ball(v) for k, v in premises.items()}, out)


def _first_only(premises: Values, parameters: Values) -> Attainment:
    """Each step's total variation falls on contexts that have not yet diverged: the sum is reached."""
    x = ball(premises["tv"])
    return Attainment({"tv": x}, {"tv_seq": ball(parameters["horizon"]) * x})


def _likelihood(premises: Values, parameters: Values) -> Attainment:
    """Reward (or signed advantage) that is high where the reference is likelier."""
    t = ball(premises["tv_seq"])
    out = {"reward_drift": ball(parameters.get("reward_range", Fraction(1))) * t, "pass_rate_drift": t}
    if "advantage" in parameters:
        norm = (
            parameters["score_norm"]
            if "token_score_norm" not in parameters
            else parameters["horizon"] * parameters["token_score_norm"]
        )
        out["pg_bias"] = 2 * ball(parameters["advantage"] * norm) * t
    return Attainment({"tv_seq": t}, out)


def _kept(premises: Values, parameters: Values) -> Attainment:
    """All tokens are kept, so the trimmed span is the span."""
    x = premises.get("logit_span", premises.get("trimmed_span", Fraction(0)))
    out = {"logit_span": ball(x), "trimmed_span": ball(x)}
    return Attainment(out, {**out, "trimmed_effective_span": ball(x / parameters.get("temperature", Fraction(1)))})


def _kept_and_disjoint(premises: Values, parameters: Values) -> Attainment:
    """Each side gives the tail's mass to a token of its own; the kept tokens are the two that attain tv_of_span."""
    s, tail = ball(premises["trimmed_effective_span"]), ball(premises["tail_mass"])
    a, b = ([(1 - tail) * x for x in side] for side in lifted(1 / (1 + (s / 2).exp()), s))
    reached = _pair([*a, tail, arb(0)], [*b, arb(0), tail])
    return Attainment({"trimmed_effective_span": s, "tail_mass": tail}, reached.conclusions)


def _confident(premises: Values, parameters: Values) -> Attainment:
    """A lifted set of one of the extreme masses that a confident token leaves."""
    s, c = ball(premises["effective_span"]), ball(parameters["confidence"])
    best = 1 / (1 + (s / 2).exp())
    found = [_pair(*lifted(theta, s)) for theta in (best.min(1 - c), c)]
    first, second = (f.conclusions["tv"] for f in found)
    out = found[0] if first >= second else found[1]
    return Attainment({"effective_span": s}, out.conclusions)


def _disjoint_part(premises: Values, parameters: Values) -> Attainment:
    t = ball(premises["tv"])
    return _pair([t, arb(0), 1 - t], [arb(0), t, 1 - t])


def _spread(premises: Values, parameters: Values) -> Attainment:
    """A certain token against one that gives `t` evenly to all others."""
    t, n = premises["tv"], parameters["vocabulary"]
    t = min(t, 1 - 1 / n)
    share = ball(t / (n - 1))
    entropy = -ball(1 - t) * ball(1 - t).log() - (ball(n - 1) * share * share.log() if t else arb(0))
    return Attainment({"tv": ball(t)}, {"entropy_drift": entropy})


def _even_ratio(premises: Values, parameters: Values) -> Attainment:
    """Two equally likely responses of ratio `1 + eta` and `1 - eta`, the advantage signed by them."""
    eta = ball(premises["ratio_gap_seq"])
    return Attainment(
        {"ratio_gap_seq": eta}, {"pg_bias": ball(parameters["advantage"] * parameters["score_norm"]) * eta}
    )


def _cap_one(premises: Values, parameters: Values) -> Attainment:
    t = ball(premises["tv_seq"])
    return Attainment({"tv_seq": t}, {"tis_bias": ball(parameters["advantage"] * parameters["score_norm"]) * t})


def _one_token(premises: Values, parameters: Values) -> Attainment:
    """A token of kernel ratio `1 + eta` (room above) and one of `1 - eta` (room below)."""
    eta, eps = ball(premises["ratio_gap"]), ball(parameters["clip"])
    above = ((1 + eps) / (1 + eta) - 1).max(arb(0))
    below = (1 - (1 - eps) / (1 - eta)).max(arb(0)) if eta < 1 else arb(0)
    return Attainment({"ratio_gap": eta}, {"clip_room_above": above, "clip_room_below": below})


def _shifted_text(premises: Values, parameters: Values) -> Attainment:
    """A text of one token, whose log-probability falls (or rises) by the whole log ratio."""
    x = ball(premises["log_ratio"])
    names = ("perplexity_factor", "mean_perplexity_factor")
    return Attainment({"log_ratio": x}, {**dict.fromkeys(names, x.exp()), "perplexity_floor": (-x).exp()})


def _repeated_token(premises: Values, parameters: Values) -> Attainment:
    """A text that repeats the token of the extreme ratio."""
    out = {name: ball(x) for name, x in premises.items()}
    reached = {"perplexity_factor": 1 + out["ratio_above"]} if "ratio_above" in out else {}
    return Attainment(out, reached | ({"perplexity_floor": 1 - out["ratio_below"]} if "ratio_below" in out else {}))


def _flipped(premises: Values, parameters: Values) -> Attainment:
    """Every token of thin margin changes its choice, without a tie and by more than any margin that counts."""
    (x,) = (ball(value) for value in premises.values())
    names = ("thin_margin", "choice_changes", "disagreement", "flips")
    return Attainment(dict.fromkeys(names, x), dict.fromkeys(names, x))


def _forward_theta(s: arb) -> arb:
    return ((s.exp() - 1) / s - 1) / (s.exp() - 1)


def _reverse_theta(s: arb) -> arb:
    return (s * s.exp() / (s.exp() - 1) - 1) / (s.exp() - 1)


WITNESSES: dict[str, Callable[[Values, Values], Attainment]] = {
    "span_two_point": _span_at(lambda s: 1 / (1 + (s / 2).exp())),
    "span_rare_token": _span_at(lambda s: ball(_RARE)),
    "span_rare_token_down": _span_at(lambda s: 1 - ball(_RARE)),
    "span_kl_forward": _span_at(_forward_theta),
    "span_kl_reverse": _span_at(_reverse_theta),
    "span_chi2": _span_at(lambda s: arb(1) / 2),
    "kept_span": _kept,
    "kept_and_disjoint": _kept_and_disjoint,
    "confident_token": _confident,
    "disjoint_part": _disjoint_part,
    "spread_from_certainty": _spread,
    "shifted_text": _shifted_text,
    "repeated_token": _repeated_token,
    "flip_at_margin": _flipped,
    "even_ratio": _even_ratio,
    "cap_one": _cap_one,
    "gap_on_one_token": _one_token,
    "ratio_above_point": lambda p, _: _ratio_point(ball(p["log_ratio"]).exp()),
    "ratio_below_point": lambda p, _: _ratio_point((-ball(p["log_ratio"])).exp()),
    "ratio_extremes": _gap,
    "symmetric_ratio": lambda p, _: _pair(*symmetric(ball(p["log_ratio"]))),
    "symmetric_bc": _symmetric_bc,
    "chi2_halves": _halves,
    "mix": _mixed,
    "fresh_symbol": _repeat,
    "bc_repeat": _repeat,
    "symmetric_ratio_repeat": _repeat,
    "chi2_repeat": _repeat,
    "kl_repeat": _repeat,
    "ess_repeat": _repeat,
    "fresh_symbol_first": _first_only,
    "likelihood_reward": _likelihood,
    "likelihood_gradient": _likelihood,
}
