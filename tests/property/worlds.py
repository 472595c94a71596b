"""Worlds: populations of contexts with explicit distributions, built to meet every clause of a contract and to break claims.

Everything here is computed from the definitions in plain floating point, apart from the prover and its lemmas; a claim
counts as broken only beyond a margin that rounding cannot explain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from kcverify.catalog.model import Statistic

MARGIN = 1e-7
Values = Mapping[str, float]


@dataclass
class Part:
    """Contexts of one kind: their share of all traffic, their metric values, the slices that they lie in."""

    weight: float
    values: Values
    slices: frozenset[str]


def distribution(logits, temperature):
    """`softmax(logits / temperature)`."""
    top = max(logits)
    e = [math.exp((z - top) / temperature) for z in logits]
    return [x / sum(e) for x in e]


def measure(reference, candidate, temperature) -> dict[str, float]:
    """Every token metric of the language on one context, from its definition."""
    errors = [b - a for a, b in zip(reference, candidate, strict=True)]
    p, q = distribution(reference, temperature), distribution(candidate, temperature)
    ratios = [a / b for a, b in zip(p, q, strict=True)]
    return {
        "logit_drift": max(map(abs, errors)),
        "logit_span": max(errors) - min(errors),
        "tv": sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
        "kl_reference_candidate": sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)),
        "kl_candidate_reference": sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)),
        "log_ratio": max(abs(math.log(w)) for w in ratios),
        "high": max(ratios),
        "low": min(ratios),
        "chi2": sum((a - b) ** 2 / b for a, b in zip(p, q, strict=True)),
    }


def context(rng: Random, temperature: float, spans: list[float]) -> dict[str, float]:
    """A random context: two or three tokens, a span near one of `spans`, the lifted mass anything from rare to certain."""
    span = rng.choice(spans) * rng.choice((1, 1, 1 - 1e-6, rng.random()))
    theta = rng.choice((-span / 2, -span / 2, 0.0, rng.uniform(-2, 2), rng.uniform(-12, 12))) * 1.0
    shift = rng.choice((-0.5, -0.5, 0.0, -1.0, rng.random() - 1)) * span
    reference, candidate = [theta, 0.0], [theta + span + shift, shift]
    if rng.random() < 0.3:
        extra = rng.uniform(-3, 1)
        reference, candidate = [*reference, extra], [*candidate, extra + shift + rng.random() * span]
    return measure(reference, candidate, temperature)


def _limits(clause, temperature) -> tuple[float | None, float | None]:
    out = []
    for limit in (clause.limit.lower, clause.limit.upper):
        slope = dict(limit.terms).get("temperature", 0) if limit else 0
        out.append(None if limit is None else float(limit.constant + slope * temperature))
    return out[0], out[1]


def reading(clause, values: Values) -> tuple[float, float]:
    """Smallest and largest value that a clause compares on one context."""
    if clause.metric.quantity == "importance_ratio":
        return values["low"], values["high"]
    name = clause.metric.quantity or clause.metric.name
    if name == "clip_share":
        gap = max(values["high"] - 1, 1 - values["low"]) / float(clause.argument("clip"))
        return gap, gap
    return values[name], values[name]


def exceeds(clause, values: Values, temperature: float, margin: float) -> bool:
    """Whether one context lies beyond the limits by more than the margin (a negative margin: not clearly within)."""
    low, high = _limits(clause, temperature)
    least, most = reading(clause, values)
    slack = margin * max(1e-3, abs(high or low or 0.0))
    return (high is not None and most > high + slack) or (low is not None and least < low - slack)


def in_band(clause, temperature: float) -> bool:
    """Whether the clause binds at this temperature."""
    if clause.band is None or clause.band.parameter != "temperature":
        return True
    i = clause.band.interval
    return float(i.low) <= temperature and (
        temperature < float(i.high) or (not i.open_high and temperature == float(i.high))
    )


def breaks(clause, world: list[Part], scope: str, temperature: float, margin: float, reward: float = 1.0) -> bool:
    """Whether a clause (or a claim about one token) fails on the contexts of a scope, by more than the margin."""
    inside = [part for part in world if not scope or scope in part.slices]
    total = sum(part.weight for part in inside)
    if not in_band(clause, temperature) or total <= 0:
        return False
    if clause.metric.quantity in ("reward_drift", "pass_rate_drift"):
        mean = reward * sum(p.weight * p.values["tv"] for p in inside) / total
        return mean > float(clause.limit.upper.constant) * (1 + margin) + margin * 1e-3
    if clause.statistic is Statistic.MEAN:
        mean = sum(p.weight * reading(clause, p.values)[1] for p in inside) / total
        _, high = _limits(clause, temperature)
        return high is not None and mean > high * (1 + margin) + margin * 1e-3
    bad = sum(p.weight for p in inside if exceeds(clause, p.values, temperature, margin)) / total
    return bad > float(clause.exception) * (1 + margin) + max(0.0, margin)


def homes(clause) -> tuple[str, ...]:
    """The scopes that a clause speaks about."""
    return clause.slices or ("",)


def fine(contract, world: list[Part], temperature: float) -> bool:
    """Whether a world clearly meets every clause."""
    return not any(breaks(c, world, s, temperature, -MARGIN) for c in contract.clauses for s in homes(c))


def temperatures(contract) -> list[float]:
    """Ends of the assumed range, edges of bands and their neighbours, one in the middle."""
    t = contract.assumptions.temperature
    low, high = float(t.low), float(t.high)
    edges = {
        float(x)
        for c in contract.clauses
        if c.band
        for x in (c.band.interval.low, c.band.interval.high)
        if x is not None
    }
    near = {e + s for e in edges for s in (-1e-9, 0.0, 1e-9)}
    return sorted(x for x in {low, high, (low + high) / 2, *near} if low <= x <= high)


def worlds(contract, rng: Random, tries: int) -> Iterator[tuple[float, list[Part]]]:
    """Worlds that meet every clause: good contexts, and beside them as many violators of each kind as the clauses allow."""
    names = [s.name for s in contract.slices]
    heats = temperatures(contract)
    for _ in range(tries):
        temperature = rng.choice(heats)
        spans = sorted({x for c in contract.clauses for x in _spans(c, temperature)}) or [0.1]
        pool = [context(rng, temperature, spans) for _ in range(40)]
        regions = [frozenset(n for n in names if rng.random() < 0.5) for _ in range(2 if names else 1)]
        shares = [1.0] if len(regions) == 1 else rng.choice(([0.5, 0.5], [0.99, 0.01], [0.999, 0.001]))
        world: list[Part] = []
        for region, share in zip(regions, shares, strict=True):
            calm = [v for v in pool if not _violates(contract, v, region, temperature)]
            rng.shuffle(calm)
            calm.sort(key=lambda v: -v["tv"] if rng.random() < 0.7 else rng.random())
            values = calm[0] if calm else measure([0.0, 0.0], [0.0, 0.0], temperature)
            world.append(Part(share, values, region))
        if not fine(contract, world, temperature):
            continue
        _add_violators(contract, world, pool, temperature, rng)
        yield temperature, world


def _spans(clause, temperature: float) -> list[float]:
    """Spans that put a metric near the clause's limit."""
    low, high = _limits(clause, temperature)
    if clause.metric.quantity == "importance_ratio":
        ends = [x for x in (low, high) if x is not None and x > 0]
        return [temperature * abs(math.log(x)) * k for x in ends for k in (1, 2) if x != 1]
    if high is None or high <= 0:
        return []
    name, t = clause.metric.quantity, temperature
    return {
        "logit_drift": [2 * high],
        "logit_span": [high],
        "tv": [4 * t * math.atanh(min(high, 0.999)), 40 * t],
        "log_ratio": [high * t, 2 * high * t],
    }.get(name or "", [t * math.sqrt(8 * high), 2 * t * math.sqrt(2 * high)])


def _violates(contract, values: Values, region: frozenset[str], temperature: float) -> bool:
    """Whether a context lies beyond a pointwise clause of its region."""
    return any(
        exceeds(c, values, temperature, -MARGIN)
        for c in contract.clauses
        if c.statistic is Statistic.MAX and in_band(c, temperature) and (not c.slices or set(c.slices) & region)
    )


def _add_violators(contract, world: list[Part], pool, temperature: float, rng: Random) -> None:
    far = measure([0.0, 60.0 * temperature], [60.0 * temperature, 0.0], temperature)
    for base in list(world):
        for values in [*rng.sample([*pool, far], 8), far]:
            whole = base.weight
            for share in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.009, 0.005, 0.002, 0.001, 0.0005, 1e-4):
                amount = share * whole * (1 - 1e-5)
                if amount >= base.weight:
                    continue
                base.weight -= amount
                world.append(Part(amount, values, base.slices))
                if fine(contract, world, temperature):
                    break
                world.pop()
                base.weight += amount


def broken(contract, verdicts, rng: Random, tries: int) -> list[str]:
    """Names of proved claims that some world breaks although it meets every clause: each one is a wrong proof."""
    proved = [v for v in verdicts if v.status.value == "PROVED"]
    r = contract.assumptions.reward
    reward = float(r.high - r.low) if r is not None else 1.0
    out = []
    for temperature, world in worlds(contract, rng, tries):
        for v in proved:
            if in_band(v.claim, temperature) and breaks(v.claim, world, v.scope, temperature, MARGIN, reward):
                out.append(f"{v.claim.text} on {v.scope or 'all'} at T = {temperature}")
    return sorted(set(out))
