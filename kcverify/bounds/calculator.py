"""The calculator: everything that follows from one given drift, each with its lemma and its attained worst case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from flint import arb

from kcverify.bounds.graph import Fact, Node, Parameters, best_for, propagate
from kcverify.bounds.optimal import attained as optimal_attained
from kcverify.catalog.lemmas import BY_NAME as LEMMAS
from kcverify.catalog.lemmas.attained import BY_ROW as WORST
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import ASSUMPTION_OF, BY_NAME, HORIZON
from kcverify.enclosure import EnclosureError, ball, binomial_tv, enclose, precision, rational, root_down

KEYS = ("logit_span", "log_ratio", "tv", "kl", "chi2", "bc", "tv_seq", "reward_drift", "pg_bias", "ess")
GIVENS = ("logit_drift", "logit_span", "tv", "kl", "log_ratio", "importance_ratio")
_KL_OF_LOG_RATIO = LEMMAS["kl_of_log_ratio_forward"]
_KLS = ("kl_reference_candidate", "kl_candidate_reference")
_NEEDS = {
    "tv_seq": ("horizon",),
    "reward_drift": ("horizon", "reward_range"),
    "pass_rate_drift": ("horizon",),
    "pg_bias": ("horizon", "advantage", "score_norm"),
    "ess": ("horizon",),
}
_FROM_SPAN = ("logit_drift", "logit_span")
_WHY = {
    "tv": "a total variation bounds no {key}: the smallest probabilities may change by any factor",
    "kl": "a KL divergence bounds no {key}: the smallest probabilities may change by any factor",
    "log_ratio": "the logits are known up to a shift of each row only, so a ratio bounds no span of theirs",
    "importance_ratio": "the logits are known up to a shift of each row only, so a ratio bounds no span of theirs",
}


@dataclass(frozen=True)
class Line:
    """One line of the calculator; `bound` None with a `reason` where nothing follows."""

    key: str
    bound: Fraction | None
    attained: Fraction | None
    lemma: str | None
    unit: str
    upper: bool
    reason: str = ""


def premises(
    given: str, value: Fraction | tuple[Fraction, Fraction], rho: Fraction, parameters: Parameters
) -> list[Fact]:
    """Facts that `--given` states, each except on the share `rho`."""

    def fact(name: str, x: Fraction) -> Fact:
        return Fact(Node(name, Mode.POINT, rho), x, label=given)

    if isinstance(value, tuple):
        low, high = value
        return [fact("ratio_below", 1 - low), fact("ratio_above", high - 1)]
    if given == "kl":
        return [fact(name, value) for name in _KLS]
    return [fact(given, value)]


def compute(
    given: str, value: Fraction | tuple[Fraction, Fraction], parameters: Parameters, rho: Fraction
) -> list[Line]:
    """All lines in the order of `KEYS`. `value` is a pair for an importance ratio."""
    best = propagate(premises(given, value, rho, parameters), parameters)
    with precision(256):
        reached = attained(given, value, parameters, rho)
    lines = []
    for key in KEYS:
        fact = _strongest(best, key, rho)
        quantity = BY_NAME[_KLS[0] if key == "kl" else key]
        floor = reached.get(key)
        low = None if floor is None else _inner(floor, up=not quantity.upper)
        if fact is None:
            lines.append(
                Line(
                    key,
                    None,
                    None,
                    None,
                    quantity.dimension.value,
                    quantity.upper,
                    _reason(key, given, parameters, rho),
                )
            )
            continue
        lemma = fact.lemma.name if fact.lemma is not None else "given"
        if low is not None:
            low = min(low, fact.value) if quantity.upper else max(low, fact.value)
        lines.append(Line(key, fact.value, low, lemma, quantity.dimension.value, quantity.upper))
    return lines


def _inner(value: arb, *, up: bool) -> Fraction | None:
    """The attained value on its inner side; None where it is beyond all bounds."""
    try:
        return rational(value, up=up)
    except EnclosureError:
        return None


def _strongest(best: Mapping[Node, Fact], key: str, rho: Fraction) -> Fact | None:
    if key == "kl":
        both = [best_for(best, name, Mode.POINT, rho) for name in _KLS]
        known = [f for f in both if f is not None]
        return max(known, key=lambda f: f.value) if len(known) == 2 else None
    mode = Mode.SEQUENCE if BY_NAME[key].sequence else Mode.POINT
    return best_for(best, key, mode, rho)


def lacking(key: str, given: str, parameters: Parameters) -> str:
    """`needs horizon, reward`: the assumptions without which nothing leads from `given` to `key`; empty if none is missing."""
    needs = _NEEDS.get(key, ()) + (("temperature",) if given in _FROM_SPAN and key != "logit_span" else ())
    missing = [n for n in needs if n not in parameters.box]
    return "needs " + ", ".join(ASSUMPTION_OF[n].split()[0] for n in missing) if missing else ""


def _reason(key: str, given: str, parameters: Parameters, rho: Fraction) -> str:
    if needs := lacking(key, given, parameters):
        return needs
    if key == "ess" and rho > 0:
        return "an exceeding token has an unbounded ratio: no ESS floor under an exceedance"
    return _WHY.get(given, "no lemma leads from {given} to {key}").format(key=key, given=given)


def attained(
    given: str, value: Fraction | tuple[Fraction, Fraction], parameters: Parameters, rho: Fraction
) -> dict[str, arb]:
    """What an explicit pair reaches for each key (balls), see `reference.witness`; keys without one are left out."""
    box = parameters.box
    t = box["temperature"][0] if "temperature" in box else None
    h = int(box["horizon"][1]) if "horizon" in box else None
    out, step = _TOKEN[given](value, t)
    if h is not None and step is not None:
        out["tv_seq"] = _with_exception(step(h), h, rho)
    if "tv_seq" in out and "reward_range" in box:
        out["reward_drift"] = ball(box["reward_range"][1]) * out["tv_seq"]
    if "tv_seq" in out and "advantage" in box and "score_norm" in box:
        out["pg_bias"] = 2 * ball(box["advantage"][1] * box["score_norm"][1]) * out["tv_seq"]
    if h is not None and rho == 0 and "chi2" in out:
        out["ess"] = (1 + out["chi2"]) ** -h
    return out


def _with_exception(clean: arb, h: int, rho: Fraction) -> arb:
    """A share `H rho` of the responses meets one exceeding token, at which the sides are disjoint."""
    hit = ball(min(Fraction(1), h * rho))
    return hit + (1 - hit) * clean


Step = Callable[[int], arb] | None


def _of_span(sigma: Fraction, t: Fraction | None) -> tuple[dict[str, arb], Step]:
    out = {"logit_span": ball(sigma)}
    if t is None:
        return out, None
    s = ball(sigma / t)
    if s == 0:
        zero = arb(0)
        return {**out, "log_ratio": zero, "tv": zero, "kl": zero, "chi2": zero, "bc": arb(1)}, lambda h: zero
    w = s / -((-s).expm1())
    out |= {
        "log_ratio": s,
        "tv": (s / 4).tanh(),
        "kl": w - 1 - w.log(),
        "chi2": (s / 2).sinh() ** 2,
        "bc": 1 / (s / 4).cosh(),
    }
    return out, lambda h: _best_witness(sigma / t, h)


def _best_witness(s: Fraction, h: int) -> arb:
    """The better of two processes of span `s`: the recursion's own policy and the symmetric binomial."""
    row = WORST["attained_worst_case"]
    reached = enclose(row.value, {BY_NAME[row.premise].symbol: s, HORIZON: Fraction(h)})
    return reached if s >= 64 else reached.max(ball(optimal_attained(s, h)))


def _of_log_ratio(lam: Fraction, t: Fraction | None) -> tuple[dict[str, arb], Step]:
    x = ball(lam)
    out = {"log_ratio": x, "tv": (x / 2).tanh(), "kl": x * (x / 2).tanh(), "bc": 1 / (x / 2).cosh()}
    return out, lambda h: binomial_tv(x, arb(h))


def _of_tv(value: Fraction, t: Fraction | None) -> tuple[dict[str, arb], Step]:
    return {"tv": ball(value)}, lambda h: 1 - (1 - ball(value)) ** h


def _of_kl(value: Fraction, t: Fraction | None) -> tuple[dict[str, arb], Step]:
    lam = ball(root_down(_KL_OF_LOG_RATIO.bound, BY_NAME["log_ratio"].symbol, value, {}))
    return {"kl": ball(value), "tv": (lam / 2).tanh()}, lambda h: binomial_tv(lam, arb(h))


def _of_ratio(value: tuple[Fraction, Fraction], t: Fraction | None) -> tuple[dict[str, arb], Step]:
    a, b = ball(value[0]), ball(value[1])
    if value[0] >= 1 or value[1] <= 1:
        zero = arb(0)
        return {"log_ratio": zero, "tv": zero, "kl": zero}, lambda h: zero
    la, lb = -a.log(), b.log()
    tv = (1 - a) * (b - 1) / (b - a)
    forward = ((1 - a) * b * lb - (b - 1) * a * la) / (b - a)
    reverse = ((b - 1) * la - (1 - a) * lb) / (b - a)
    lam = la.min(lb)
    out = {"log_ratio": la.max(lb), "tv": tv, "kl": forward.max(reverse)}
    return out, lambda h: tv if h == 1 else binomial_tv(lam, arb(h))


_TOKEN: dict[str, Callable[..., tuple[dict[str, arb], Step]]] = {
    "logit_drift": lambda v, t: _of_span(2 * v, t),
    "logit_span": _of_span,
    "log_ratio": _of_log_ratio,
    "tv": _of_tv,
    "kl": _of_kl,
    "importance_ratio": _of_ratio,
}
