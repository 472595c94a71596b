"""Masks of a contract as source text: which clauses limit log ratios or budgets, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kcverify.catalog.model import Statistic
from kcverify.elaborate.contract import Clause, Contract, Threshold
from kcverify.emit.monitor import comment, literal
from kcverify.enclosure import ball, precision, rational
from kcverify.exact import monitor_float_down, monitor_float_up
from kcverify.resources import template_dir


@dataclass(frozen=True)
class PlannedRule:
    """One clause as limits of a mask, as `kcverify.rl.enforce.Rule` has them: doubles on the safe side."""

    clause: str
    level: str
    text: str
    statement: str
    log_low: float = -math.inf
    log_high: float = math.inf
    budget: float = math.inf
    allowed: float = 0.0
    slices: tuple[str, ...] = ()


@dataclass(frozen=True)
class MaskPlan:
    """Rules in file order, and clauses that are none with the reason."""

    rules: tuple[PlannedRule, ...]
    not_enforced: tuple[tuple[str, str], ...]


class _NoRuleError(Exception):
    """Why a clause is no rule of a mask."""


Limits = dict[str, float]


def _constant(threshold: Threshold | None) -> Fraction | None:
    if threshold is None:
        return None
    if not threshold.is_constant:
        raise _NoRuleError("its limit depends on an assumption that a mask does not see")
    return threshold.constant


def _upper(clause: Clause) -> Fraction:
    value = _constant(clause.limit.upper)
    if value is None:
        raise _NoRuleError("it has no upper limit")
    return value


def _log(x: Fraction, *, up: bool, strict: bool) -> float:
    """`ln x` as a double on the given side; one double further for a strict limit."""
    if x == 1:
        value = 0.0
    else:
        with precision(128):
            exact = rational(ball(x).log(), up=up)
        value = monitor_float_up(exact) if up else monitor_float_down(exact)
    return math.nextafter(value, math.inf if up else -math.inf) if strict else value


def _window(low: Fraction | None, high: Fraction | None, strict: bool) -> Limits:
    """Limits on the log of a ratio in `[low, high]`: a little narrower, never wider."""
    if high is not None and high <= 0:
        raise _NoRuleError("no ratio is at most 0")
    return {
        "log_low": -math.inf if low is None or low <= 0 else _log(low, up=True, strict=strict),
        "log_high": math.inf if high is None else _log(high, up=False, strict=strict),
    }


def _ratio(clause: Clause, contract: Contract) -> Limits:
    return _window(_constant(clause.limit.lower), _constant(clause.limit.upper), clause.limit.strict)


def _inverse(clause: Clause, contract: Contract) -> Limits:
    low, high = _constant(clause.limit.lower), _constant(clause.limit.upper)
    if high is not None and high <= 0:
        raise _NoRuleError("no ratio is at most 0")
    flipped = None if high is None else 1 / high, None if low is None or low <= 0 else 1 / low
    return _window(*flipped, clause.limit.strict)


def _absolute(clause: Clause, contract: Contract) -> Limits:
    high = monitor_float_down(_upper(clause))
    high = math.nextafter(high, -math.inf) if clause.limit.strict else high
    return {"log_low": -high, "log_high": high}


def _clip(clause: Clause, contract: Contract) -> Limits:
    clip = clause.argument("clip")
    room = _upper(clause) * (clip if isinstance(clip, Fraction) else Fraction(1, 5))
    return _window(1 - room, 1 + room, clause.limit.strict)


def _budget(tv: Fraction) -> Limits:
    return {"budget": monitor_float_down(min(Fraction(1), tv))}


def _gradient(clause: Clause, contract: Contract) -> Limits:
    given = contract.assumptions
    norm = given.score_norm
    if norm is None and given.token_score_norm is not None and given.horizon is not None:
        norm = given.token_score_norm * given.horizon
    if given.advantage is None or norm is None:
        raise _NoRuleError("needs the assumptions advantage and score_norm (or token_score_norm with horizon)")
    size = 2 * given.advantage * norm
    return _budget(_upper(clause) / size if size > 0 else Fraction(1))


def _reward(clause: Clause, contract: Contract) -> Limits:
    reward = contract.assumptions.reward
    if reward is None or reward.low is None or reward.high is None:
        raise _NoRuleError("needs the assumption of a bounded reward")
    width = reward.high - reward.low
    return _budget(_upper(clause) / width if width > 0 else Fraction(1))


def _tv(clause: Clause, contract: Contract) -> Limits:
    return _budget(_upper(clause))


_SAMPLED = "the sampled token's ratio is inside; it says nothing about tokens that were not sampled"
_OWN = "what the clause limits, itself"
_STOPPED = "TV_H <= budget, given bounds that depend on the prefix only and a policy that reverts at the stop"

RULES: Mapping[str, tuple[str, str, Callable[[Clause, Contract], Limits]]] = {
    "importance_ratio": ("token", _SAMPLED, _ratio),
    "log_ratio": ("token", _SAMPLED, _absolute),
    "token_ratio": ("token", _OWN, _ratio),
    "token_inverse_ratio": ("token", _OWN, _inverse),
    "token_log_ratio": ("token", _OWN, _absolute),
    "sequence_ratio": ("sequence", _OWN, _ratio),
    "geometric_ratio": ("geometric", _OWN, _ratio),
    "tv": ("upper", "the row's total variation is at most the limit for sure, by a certificate", _tv),
    "clip_share": ("token", _SAMPLED, _clip),
    "pg_bias": ("prefix", _STOPPED, _gradient),
    "reward_drift": ("prefix", _STOPPED, _reward),
    "pass_rate_drift": ("prefix", _STOPPED, _tv),
    "tv_seq": ("prefix", _STOPPED, _tv),
}
"""By metric: level, what being kept means, and the limits. A metric without a row is enforced by no mask."""


def plan_masks(contract: Contract) -> MaskPlan:
    """Rules of every clause and guarantee that a mask on sampled tokens can enforce; the rest with reasons."""
    rules, left = [], []
    for clause in (*contract.clauses, *contract.guarantees):
        try:
            rules.append(_rule(clause, contract))
        except _NoRuleError as why:
            left.append((clause.name, str(why)))
    return MaskPlan(tuple(rules), tuple(left))


def _rule(clause: Clause, contract: Contract) -> PlannedRule:
    if clause.metric.name not in RULES:
        raise _NoRuleError(f"{clause.metric.name} is nothing that a mask on sampled tokens can limit")
    if clause.limit.hole:
        raise _NoRuleError("its limit is a hole that was not filled")
    if clause.band is not None:
        raise _NoRuleError(f"it binds for a band of {clause.band.parameter} only, which a mask does not see")
    if clause.statistic in (Statistic.MEAN, Statistic.RATE):
        raise _NoRuleError(f"a mask limits each token or response, not a {clause.statistic.value}")
    level, statement, limits = RULES[clause.metric.name]
    allowed = float(clause.exception)
    return PlannedRule(
        clause.name, level, clause.text or clause.name, statement, **limits(clause, contract), allowed=allowed,
        slices=clause.slices,
    )  # fmt: skip


def emit_masks(contract: Contract, *, digest: str, version: str) -> str:
    """Text of a module with `MASKS` and the function `masks`, which imports `kcverify.rl` (torch, numpy) only.

    `digest` is the contract's, `version` kcverify's. Strings of the contract enter as escaped ASCII literals.
    """
    environment = Environment(
        loader=FileSystemLoader(template_dir()), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    environment.filters |= {"literal": literal, "comment": comment}
    planned = plan_masks(contract)
    return environment.get_template("rl_masks.py.j2").render(
        contract=contract, digest=digest, version=version, rules=[_fields(rule) for rule in planned.rules],
        not_enforced=planned.not_enforced,
    )  # fmt: skip


def _fields(rule: PlannedRule) -> list[tuple[str, str]]:
    """Keyword arguments as text, defaults left out."""
    words = [(name, literal(getattr(rule, name))) for name in ("clause", "level", "text", "statement")]
    for name, default in (("log_low", -math.inf), ("log_high", math.inf), ("budget", math.inf), ("allowed", 0.0)):
        if getattr(rule, name) != default:
            words.append((name, repr(getattr(rule, name))))
    if rule.slices:
        words.append(("slices", "(" + "".join(f"{literal(name)}, " for name in rule.slices).rstrip(" ") + ")"))
    return words
