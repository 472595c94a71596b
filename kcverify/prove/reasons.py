"""Which code says why a claim has no proof: what blocks it, where another reading of a clause would have given it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction

from kcverify.catalog.metrics import BY_NAME as METRICS
from kcverify.catalog.model import Mode, Statistic
from kcverify.catalog.quantities import BY_NAME
from kcverify.elaborate.contract import Clause, Contract
from kcverify.prove import corner
from kcverify.prove.obligations import Obligation, applies, mode_of, narrowed
from kcverify.prove.verdict import Status, Verdict


def classified(contract: Contract, obligation: Obligation, verdict: Verdict) -> Verdict:
    """The verdict with the slug of its code: empty where proved, kept where the engine has set one."""
    if verdict.status is Status.PROVED or verdict.code:
        return verdict
    if verdict.status is Status.REFUTED:
        return _refuted(contract, obligation, verdict)
    if "full_softmax" not in obligation.parameters.conditions:
        return replace(verdict, code="sampler_unsupported")
    within = narrowed(contract, obligation.claim)
    if within is None or not obligation.atoms:
        return replace(verdict, code="not_implied")
    for code, reader in (
        ("exception_missing", _pointwise),
        ("lower_bound_estimator", _whole),
        ("jensen_refused", _refused),
    ):
        if code == "jensen_refused" and any(r.holds and not r.counted for r in verdict.routes):
            continue  # the bound does lift to means; what is missing is a sample that could certify the clause
        found = reader(within, obligation)
        if found is not None:
            reason = verdict.reason if code == "exception_missing" else found
            return replace(verdict, code=code, reason=reason)
    return replace(verdict, code="not_implied")


def _refuted(contract: Contract, obligation: Obligation, verdict: Verdict) -> Verdict:
    """A refutation, with the exception that the claim leaves out; of a contract with an open hole it is none."""
    hole = next((c.name for c in contract.clauses if c.limit.hole), None)
    if hole is not None:
        reason = f"no number fills the hole of `{hole}`, so nothing is known about it"
        return replace(
            verdict, status=Status.UNKNOWN, step="none", code="hole_impossible", reason=reason, counterexample=None
        )
    within = narrowed(contract, obligation.claim)
    if within is None or _pointwise(within, obligation) is None:
        return replace(verdict, code="refuted")
    names = " and ".join(
        f"`{c.name}`" for c in contract.clauses if c.exception and c.name in _sources(within, obligation)
    )
    reason = f"{verdict.reason}; it would hold without the exception of {names}, so the claim must state one"
    return replace(verdict, code="exception_missing", reason=reason)


def _sources(contract: Contract, obligation: Obligation) -> set[str]:
    """Clauses that the claim would rest on if none had an exception."""
    clauses = tuple(replace(c, exception=Fraction(0)) for c in contract.clauses)
    found = corner.best_routes(replace(contract, clauses=clauses), obligation)
    return {name for route in found if route is not None for name in route.fact.sources()}


def _proves(contract: Contract, obligation: Obligation, clauses: Iterable[Clause]) -> bool:
    changed = replace(contract, clauses=tuple(clauses))
    found = corner.best_routes(changed, obligation)
    return bool(found) and all(r is not None and r.holds for r in found)


def _mapped(contract: Contract, change: Callable[[Clause], Clause]) -> tuple[list[Clause], list[Clause]]:
    """The clauses after a change, and those (as written) that it changed."""
    after = [change(c) for c in contract.clauses]
    return after, [c for c, new in zip(contract.clauses, after, strict=True) if new is not c]


def _pointwise(contract: Contract, obligation: Obligation) -> str | None:
    """A claim about every token would hold if no clause had an exception."""
    if obligation.atoms[0].node.mode is not Mode.POINT or BY_NAME[obligation.atoms[0].node.quantity].sequence:
        return None
    after, changed = _mapped(contract, lambda c: replace(c, exception=Fraction(0)) if c.exception else c)
    return "" if changed and _proves(contract, obligation, after) else None


def _whole(contract: Contract, obligation: Obligation) -> str | None:
    """A limit on the sampled token would give the claim if it were one on the whole vocabulary."""

    def change(c: Clause) -> Clause:
        name = {"token_log_ratio": "log_ratio", "token_ratio": "importance_ratio"}.get(c.metric.name)
        return replace(c, metric=METRICS[name]) if name is not None else c

    after, changed = _mapped(contract, change)
    if not changed or not _proves(contract, obligation, after):
        return None
    first = changed[0]
    return (
        f"`{first.name}` limits {first.metric.name}, which is seen for the sampled token only: a lower bound of what the lemmas need; "
        "the same limit on `log_ratio`, from full logits, would prove it"
    )


def _refused(contract: Contract, obligation: Obligation) -> str | None:
    """A limit on a mean would give the claim if it were one on every token: the bound does not lift to means."""

    def change(c: Clause) -> Clause:
        heard = mode_of(c) is Mode.MEAN and applies(c, obligation.scope)
        return replace(c, statistic=Statistic.MAX) if heard else c

    after, changed = _mapped(contract, change)
    if obligation.atoms[0].node.mode is not Mode.MEAN or not changed or not _proves(contract, obligation, after):
        return None
    first = changed[0]
    return (
        f"`{first.name}` limits a mean of {first.metric.name}, and {obligation.claim.metric.name} is not a concave function of it: by "
        f"Jensen a few large values raise the mean without limit; the same limit on every token would prove it"
    )
