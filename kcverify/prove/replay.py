"""Counterexamples: instances built at the clauses' own limits, re-evaluated by the reference metrics before they count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise, product
from typing import TypeAlias

from flint import arb

from kcverify.catalog.model import Mode, Statistic
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Clause, Contract
from kcverify.enclosure import ball, precision, rational
from kcverify.exact import decimal_down, decimal_near, decimal_up
from kcverify.prove.obligations import Atom, Obligation, atoms, coupled, in_graph, mode_of
from kcverify.prove.verdict import Counterexample, Limits
from kcverify.reference.instance import TOKEN_QUANTITIES, Instance, Step, two_point

# Metrics that no pair of distributions decides: an instance may take any reading of them.
_FREE = frozenset(
    (
        "parse_rate",
        "parse_rate_delta",
        "latency",
        "time_to_first_token",
        "throughput",
        "peak_memory",
        "kv_cache",
        "failure_rate",
    )
)


@dataclass(frozen=True)
class Setting:
    """The assumptions that turn a total variation into a claim's value."""

    reward_range: Fraction | None
    gradient: Fraction | None
    clip: Fraction | None


Value: TypeAlias = arb | Fraction


def reading(instance: Instance, q: str, mode: Mode, rho: Fraction, setting: Setting) -> Value | None:
    """The quantity `q` on the instance; None where the assumptions do not define it."""
    if q == "tv_seq" or q == "pass_rate_drift":
        return instance.tv_seq
    if q == "reward_drift":
        return None if setting.reward_range is None else ball(setting.reward_range) * instance.tv_seq
    if q == "pg_bias":
        return None if setting.gradient is None else 2 * ball(setting.gradient) * instance.tv_seq
    if q == "ess":
        return 1 / (1 + instance.chi2_seq())
    if q == "clip_share":
        return (
            None if setting.clip is None else _ball(instance.token_value("ratio_gap", mode, rho)) / ball(setting.clip)
        )
    if q in ("disagreement", "flips"):
        apart = instance.token_share if _agree(instance.good) else Fraction(1)
        return apart if q == "disagreement" else arb(0).union(ball(apart))
    if BY_NAME[q].sequence or q not in TOKEN_QUANTITIES:
        return None
    return instance.token_value(q, mode, rho)


def _ball(value: Value) -> arb:
    return ball(value) if isinstance(value, Fraction) else value


def _within(value: Value, atom: Atom, temperature: Fraction) -> bool:
    limit = atom.at(temperature)
    bound = limit if isinstance(value, Fraction) else ball(limit)
    return bool(value <= bound) if atom.upper else bool(value >= bound)


def _beyond(value: Value, atom: Atom, temperature: Fraction) -> bool:
    limit = atom.at(temperature)
    bound = limit if isinstance(value, Fraction) else ball(limit)
    return bool(value > bound) if atom.upper else bool(value < bound)


def _agree(step: Step) -> bool:
    """Whether some token is most probable on both sides."""
    tops = [{i for i, z in enumerate(side) if z == max(side)} for side in (step.reference, step.candidate)]
    return bool(tops[0] & tops[1])


def _top_kept(step: Step, k: int, ordered: bool) -> bool:
    """Whether the k most probable tokens are the same; in order, where the ranking of all tokens is the same."""
    if ordered:
        pairs = product(zip(step.reference, step.candidate, strict=True), repeat=2)
        return all((a < b) == (x < y) for (a, x), (b, y) in pairs)

    def top(z: tuple[Fraction, ...]) -> set[int]:
        return set(sorted(range(len(z)), key=lambda i: -z[i])[:k])

    ties = len(set(step.reference)) < len(step.reference) and k < len(step.reference) - 1
    return k >= len(step.reference) or (top(step.reference) == top(step.candidate) and not (ties and k > 1))


def meets(instance: Instance, clause: Clause, setting: Setting, claims_reward: bool) -> bool:
    """Whether the instance provably meets a clause; False where that cannot be shown."""
    if clause.limit.hole:
        return True
    if clause.band is not None and not _in_band(clause, instance.temperature):
        return True
    if clause.metric.name in _FREE:
        return True
    if clause.metric.name != "ece_drift" and in_graph(clause):
        found = _full_span(clause) if clause.metric.name == "logit_span" else atoms(clause)
        values = [(reading(instance, a.node.quantity, a.node.mode, a.node.rho, setting), a) for a in found]
        return bool(found) and all(v is not None and _within(v, a, instance.temperature) for v, a in values)
    return _statistical(instance, clause, setting, claims_reward)


def _full_span(clause: Clause) -> tuple[Atom, ...]:
    """A trimmed span is at most the full one, so an instance that meets the full one meets it."""
    return atoms(replace(clause, arguments=()))


def _in_band(clause: Clause, temperature: Fraction) -> bool:
    if clause.band is None or clause.band.parameter != "temperature":
        return True
    i = clause.band.interval
    above = i.low is None or temperature >= i.low
    return above and (i.high is None or temperature < i.high or (temperature == i.high and not i.open_high))


def _statistical(instance: Instance, clause: Clause, setting: Setting, claims_reward: bool) -> bool:
    name, bad = clause.metric.name, ball(instance.token_share)
    top = clause.argument("top")
    kept = _top_kept(instance.good, int(top) if isinstance(top, Fraction) else 1, clause.argument("ordered") == "true")
    changed = bad if kept else arb(1)
    value: arb | None = None
    if name == "agreement":
        value = 1 - changed
    elif name == "ece_drift" and clause.argument("bins") == "reference":
        value = arb(0).union(_ball(instance.token_value("tv", Mode.MEAN, Fraction(0))) + changed)
    elif name == "reward_delta":
        value = (
            arb(0)
            if not claims_reward or setting.reward_range is None
            else ball(setting.reward_range) * instance.tv_seq
        )
    if value is None:
        return False
    lower, upper = clause.limit.lower, clause.limit.upper
    rho = clause.exception if clause.statistic is Statistic.MAX else Fraction(0)
    above = lower is None or bool(value >= ball(lower.constant - rho))
    return above and (upper is None or bool(value <= ball(upper.constant + rho)))


Shape: TypeAlias = Callable[[Fraction, Fraction], Step]


def _shapes(claim: Clause) -> tuple[Shape, ...]:
    """Step families as functions of (span, temperature), the ones that attain the claim's quantity first."""
    symmetric = [lambda x, t: two_point(x, t, copies=2), lambda x, t: two_point(x, t, copies=1)]
    rare = [lambda x, t: two_point(x, t, -40 * t, copies=1), lambda x, t: two_point(x, t, 40 * t, copies=1)]
    quantity = claim.metric.quantity or ""
    if quantity in ("log_ratio", "importance_ratio", "clip_share"):
        return (*rare, *symmetric)
    if quantity.startswith("kl_"):
        return (*(_at_shift(Fraction(i, 24)) for i in range(-4, 5)), *symmetric)
    if quantity == "chi2":
        return (lambda x, t: two_point(x, t, Fraction(0), copies=2), *symmetric)
    return tuple(symmetric)


def _at_shift(c: Fraction) -> Shape:
    return lambda x, t: two_point(x, t, -x / 2 + c * x, copies=1)


def search(
    contract: Contract, obligation: Obligation, clauses: tuple[Clause, ...], limits: Limits
) -> Counterexample | None:
    """An instance that meets all `clauses` and breaks the claim, or None; every number of it is enclosed."""
    setting = _setting(contract, obligation)
    horizon = contract.assumptions.horizon or 1
    reward = obligation.claim.metric.quantity in ("reward_drift", "pass_rate_drift", "pg_bias")
    families = product(
        _temperatures(contract, obligation, clauses), _shapes(obligation.claim), _shares(clauses, horizon)
    )
    with precision(192):
        for t, shape, bad in islice(families, limits.candidates):

            def make(x: Fraction, t: Fraction = t, shape: Shape = shape, bad: Fraction = bad) -> Instance:
                return Instance(shape(x, t), t, horizon, bad)

            found = _largest(make, clauses, setting, reward)
            if found is not None and (broken := _broken(found, obligation, setting)) is not None:
                return _describe(found, obligation, clauses, setting, broken)
    return None


def _temperatures(contract: Contract, obligation: Obligation, clauses: tuple[Clause, ...]) -> tuple[Fraction, ...]:
    """The coldest temperature, where a span does most; and where limits move with it, every end of a band and just below."""
    t = contract.assumptions.temperature
    if t is None or t.low is None or t.high is None:
        return (Fraction(1),)
    if not any(coupled(c) for c in (*clauses, obligation.claim)):
        return (t.low,)
    edges = {t.low, t.high}
    for c in clauses:
        if c.band is not None and c.band.parameter == "temperature":
            edges |= {x for x in (c.band.interval.low, c.band.interval.high) if x is not None}
    inside = sorted(x for x in edges if t.low <= x <= t.high)
    below = [x - (x - y) / 1000 for y, x in pairwise(inside)]
    open_end = {t.high} if t.open_high else set()
    return tuple(dict.fromkeys(x for x in (t.low, t.high, *inside, *below) if x not in open_end))


def _setting(contract: Contract, obligation: Obligation) -> Setting:
    box = obligation.parameters.box
    gradient = box["advantage"][1] * box["score_norm"][1] if "advantage" in box and "score_norm" in box else None
    return Setting(
        box["reward_range"][1] if "reward_range" in box else None, gradient, box["clip"][1] if "clip" in box else None
    )


def _shares(clauses: tuple[Clause, ...], horizon: int) -> tuple[Fraction, ...]:
    """Shares of responses with a disjoint token: none, all that the exceptions allow, all or half of what a mean allows."""
    known = [c for c in clauses if in_graph(c)]
    rhos = [c.exception for c in known if mode_of(c) is Mode.POINT]
    most = min(rhos, default=Fraction(1))
    means = {
        a.constant * part
        for c in known
        for a in atoms(c)
        if a.node.mode is Mode.MEAN and a.upper and BY_NAME[a.node.quantity].high == 1
        for part in (Fraction(1), Fraction(1, 2))
    }
    tokens = {Fraction(0), most, *(min(x, most) for x in means if x > 0)}
    first = (Fraction(0), most)
    rest = sorted(tokens - set(first), reverse=True)
    return tuple(dict.fromkeys(min(Fraction(1), horizon * x) for x in (*first, *rest)))


def _largest(
    make: Callable[[Fraction], Instance], clauses: tuple[Clause, ...], setting: Setting, reward: bool
) -> Instance | None:
    """The instance of largest span that provably meets every clause, to about six digits."""

    def ok(x: Fraction) -> bool:
        instance = make(x)
        return all(meets(instance, c, setting, reward) for c in clauses)

    if not ok(Fraction(0)):
        return None
    good, bad = Fraction(0), Fraction(64)
    if ok(bad):
        return make(bad)
    exact = sorted(
        {
            a.at(make(Fraction(0)).temperature) * (2 if a.node.quantity == "logit_drift" else 1)
            for c in clauses
            for a in atoms(c)
            if a.node.quantity.startswith("logit_")
        }
    )
    for x in exact:
        if x > 0 and ok(x):
            good = max(good, x)
    step = Fraction(1, 2**20)
    while bad - good > max(good, step) / 2**20:
        middle = (good + bad) / 2
        if ok(middle):
            good = middle
        else:
            bad = middle
        if bad < step / 2**20:
            break
    return make(good)


def _broken(instance: Instance, obligation: Obligation, setting: Setting) -> tuple[Atom, Value] | None:
    for atom in obligation.atoms:
        value = reading(instance, atom.node.quantity, atom.node.mode, atom.node.rho, setting)
        if value is not None and _beyond(value, atom, instance.temperature):
            return atom, value
    return None


def _show(x: Value, digits: int = 8) -> str:
    if isinstance(x, Fraction):
        return decimal_near(x, digits)
    return str(x.str(digits, radius=False)) if x.is_finite() else "inf"


def _describe(
    instance: Instance,
    obligation: Obligation,
    clauses: tuple[Clause, ...],
    setting: Setting,
    broken: tuple[Atom, Value],
) -> Counterexample:
    readings = []
    for c in clauses:
        for a in atoms(c):
            value = reading(instance, a.node.quantity, a.node.mode, a.node.rho, setting)
            if value is not None:
                readings.append((c.name, a.node.quantity, _show(value)))
    atom, value = broken
    reached = value if isinstance(value, Fraction) else rational(value, up=not atom.upper)
    shown = f"at least {decimal_down(reached, 8)}" if atom.upper else f"at most {decimal_up(reached, 8)}"
    readings.append((obligation.claim.name, atom.node.quantity, shown))
    return Counterexample(
        _story(instance, obligation.claim), instance.temperature, instance.horizon, instance.good.reference, instance.good.candidate,
        instance.bad_share, tuple(_show(x) for x in instance.p), tuple(_show(x) for x in instance.q), tuple(readings),
        reached,
    )  # fmt: skip


def _story(instance: Instance, claim: Clause) -> str:
    steps = "one token" if instance.horizon == 1 else f"{instance.horizon} independent tokens"
    text = f"responses of {steps}, each with the logits shown, at temperature {decimal_near(instance.temperature, 6)}"
    if instance.bad_share:
        text += f"; a share {decimal_near(instance.bad_share, 6)} of the responses starts with a token on which the sides are disjoint"
    if claim.metric.quantity == "reward_drift":
        text += "; the reward is highest on responses that the reference favours and lowest on the others"
    if claim.metric.quantity == "pg_bias":
        text += "; the advantage has its largest size, with the sign of (reference minus candidate) probability along one direction of the score"
    return text
