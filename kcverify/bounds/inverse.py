"""The calculator backwards: the budgets that a tolerance leaves, one per quantity that could be limited."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from kcverify.bounds.calculator import KEYS, lacking, premises
from kcverify.bounds.graph import Fact, Parameters, best_for, propagate
from kcverify.bounds.invert import along_chain, bracket
from kcverify.bounds.special import TABLE
from kcverify.catalog.model import Mode
from kcverify.catalog.quantities import BY_NAME
from kcverify.exact import decimal_up

TARGETS = tuple(k for k in (*KEYS, "pass_rate_drift") if k not in ("kl", "ess", "bc"))
_NO_LIMIT = Fraction(2**12)
LIMITED = ("logit_span", "logit_drift", "tv", "kl", "log_ratio")


@dataclass(frozen=True)
class BudgetLine:
    """The largest limit on `key` that keeps the target, or None with the reason; `free` where no limit is needed."""

    key: str
    budget: Fraction | None
    lemmas: tuple[str, ...]
    unit: str
    reason: str = ""
    free: bool = False


def reaches(key: str, x: Fraction, target: str, limit: Fraction, parameters: Parameters, rho: Fraction) -> Fact | None:
    """The fact about the target that follows from `key <= x`, where it stays within `limit`."""
    best = propagate(premises(key, x, rho, parameters), parameters)
    mode = Mode.SEQUENCE if BY_NAME[target].sequence else Mode.POINT
    fact = best_for(best, target, mode, rho)
    return fact if fact is not None and fact.value <= limit else None


def largest(
    key: str, target: str, limit: Fraction, parameters: Parameters, rho: Fraction, high: Fraction
) -> Fraction | None:
    """Largest value of `key` that keeps the target: bracketed forwards, then inverted along the chain found there."""

    quick = replace(parameters, effort=TABLE)

    def reached(x: Fraction, given: Parameters = quick) -> Fact | None:
        return reaches(key, x, target, limit, given, rho)

    small = Fraction(1, 2**64)
    if reached(small) is None:
        return None
    value = bracket(reached, small, high)
    fact = reached(value, parameters)
    exact = along_chain(fact, limit, parameters) if fact is not None else None
    return exact if exact is not None and exact > value and reached(exact, parameters) is not None else value


def budgets(target: str, limit: Fraction, parameters: Parameters, rho: Fraction) -> list[BudgetLine]:
    """The budget of every quantity in `LIMITED` for one target."""
    out = []
    for key in LIMITED:
        quantity = BY_NAME["kl_candidate_reference" if key == "kl" else key]
        value = largest(key, target, limit, parameters, rho, quantity.high or _NO_LIMIT)
        if value is None:
            out.append(
                BudgetLine(key, None, (), quantity.dimension.value, _reason(key, target, limit, parameters, rho))
            )
            continue
        if value >= (quantity.high or _NO_LIMIT):
            text = f"every value of {key} keeps {target} within {decimal_up(limit, 6)}: no limit is needed"
            out.append(BudgetLine(key, None, (), quantity.dimension.value, text, free=True))
            continue
        fact = reaches(key, value, target, limit, parameters, rho)
        lemmas = tuple(f.lemma.name for f in fact.chain() if f.lemma is not None) if fact else ()
        out.append(BudgetLine(key, value, lemmas, quantity.dimension.value))
    return out


def _reason(key: str, target: str, limit: Fraction, parameters: Parameters, rho: Fraction) -> str:
    best = propagate(premises(key, Fraction(0), rho, parameters), parameters)
    fact = best_for(best, target, Mode.SEQUENCE if BY_NAME[target].sequence else Mode.POINT, rho)
    if fact is None:
        return lacking(target, key, parameters) or f"no lemma leads from {key} to {target} under these assumptions"
    if limit <= 0 or fact.value == 0:
        return f"a tolerance of {decimal_up(limit, 6)} leaves no drift at all"
    return f"the exception alone gives {target} = {decimal_up(fact.value, 6)}: no budget is left"
