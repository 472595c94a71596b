"""One clause on many slices: which of them fail, so that more slices do not mean more false alarms.

Rule: clauses of severity L3 fail a slice at `alpha/K` (the chance that any good slice of the clause ever fails is at
most alpha); all others fail slices by e-BH over the K slices of the clause (Wang and Ramdas 2022): the e-values may
depend on each other in any way, and at whatever moment one looks, the expected share of good slices among those that
fail is at most alpha. Passing is not corrected: the clause passes where every slice does, and a bad slice passes with
chance beta however many others there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kcverify.runtime.sequential import Outcome

STRICT = ("L3",)


@dataclass(frozen=True)
class Judged:
    """The outcome of one slice, the log threshold that its fail side had to reach, and the rule (empty for one slice).

    The logs are those of the test, whatever the inputs did to the verdict.
    """

    outcome: Outcome
    log_threshold_fail: float
    rule: str
    log_e_fail: float | None = None
    log_e_pass: float | None = None


def e_bh(log_e: Sequence[float], level: float) -> frozenset[int]:
    """Indices of the hypotheses that e-BH rejects: the k largest for the largest k with `e_(k) >= K/(level k)`."""
    order = sorted(range(len(log_e)), key=lambda i: -log_e[i])
    bound = math.log(len(log_e) / level) if log_e else 0.0
    count = max((k for k, i in enumerate(order, 1) if log_e[i] >= bound - math.log(k)), default=0)
    return frozenset(order[:count])


def rule_of(slices: int, severity: str, *, one_look: bool = False) -> str:
    """The rule in words, empty where the clause is on one slice; with one look e-values are p-values: `alpha/K`."""
    if slices <= 1:
        return ""
    return f"alpha/K over {slices} slices" if one_look or severity in STRICT else f"e-BH over {slices} slices"


def judge_slices(
    outcomes: Sequence[Outcome], confidence: float, severity: str, *, one_look: bool = False
) -> list[Judged]:
    """Outcomes of one clause on its K slices, each as if it were alone, turned into verdicts that hold together.

    `log_e_fail` of an outcome is a log e-value (with `one_look`: minus the log of a p-value). Outcomes without one
    (clauses that no test decides) stay as they are.
    """
    level, slices = 1.0 - confidence, len(outcomes)
    rule = rule_of(slices, severity, one_look=one_look)
    if not rule:
        return [Judged(o, math.log(1.0 / level), rule, o.log_e_fail, o.log_e_pass) for o in outcomes]
    strict = math.log(slices / level)
    if rule.startswith("alpha"):
        failing = frozenset(i for i, o in enumerate(outcomes) if _evidence(o) >= strict)
        thresholds = [strict] * slices
    else:
        failing = e_bh([_evidence(o) for o in outcomes], level)
        reached = strict - math.log(max(len(failing), 1))
        next_one = strict - math.log(min(len(failing) + 1, slices))
        thresholds = [reached if i in failing else next_one for i in range(slices)]
    return [
        Judged(_settled(o, i in failing, level, rule), threshold, rule, o.log_e_fail, o.log_e_pass)
        for i, (o, threshold) in enumerate(zip(outcomes, thresholds, strict=True))
    ]


def _evidence(outcome: Outcome) -> float:
    return -math.inf if outcome.log_e_fail is None else outcome.log_e_fail


def _settled(outcome: Outcome, failing: bool, level: float, rule: str) -> Outcome:
    fail, certify = outcome.log_e_fail, outcome.log_e_pass
    if fail is None:
        return outcome
    if failing:
        reason = outcome.reason if outcome.verdict == "fail" else "the evidence against the limit reached its threshold"
        return Outcome("fail", f"{reason} ({rule})", fail, certify)
    if outcome.verdict != "fail":
        return outcome
    if certify is not None and certify >= math.log(1.0 / level):
        return Outcome("pass", "certified: the evidence for the limit reached its threshold", fail, certify)
    reason = f"the evidence against the limit would do for one slice, not for {rule}"
    return Outcome("inconclusive", reason, fail, certify)
