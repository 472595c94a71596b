"""Names that the generated files and the gateway share: counters and gauges of its metrics, addresses of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from kcverify.elaborate.policy import STAGES

OBSERVATIONS = "kcverify_observations_total"
"""Units (requests; tokens of a clause `unit token`) that a clause was asked about. Labels: `LABELS`."""
EXCEEDANCES = "kcverify_exceedances_total"
"""Units that exceeded: of a share or mean clause, requests with any value above 0. Never more than the observations."""
INVALID = "kcverify_invalid_total"
"""Values that are not finite; one of them makes the clause fail."""
MISSING = "kcverify_unobservable_total"
"""Units whose inputs or whose membership of the slice were not given; one of them keeps the clause from passing."""
LOG_WEALTH = "kcverify_log_wealth"
"""Gauge of share and mean clauses: the record's fixed-point sums over 2^32. Labels: `LABELS`, `side`, `bet` 0 to 15."""
LABELS = ("contract", "clause", "slice")
"""Labels of every metric; `slice` is empty for a clause about all traffic."""

GATE = "/admin/gate"
"""POST, with the operator's token: the gate's decision about the current stage as `gate`, with status 200 whatever it is."""
HOOKS = "/kcverify/hooks"
"""POST, one path a hook, `?stage=`: the verdict as a status alone."""

OK, FAILED, UNDECIDED = 200, 409, 425
"""Statuses of a hook. None is one that Flagger's client tries again (429 and 5xx)."""


@dataclass(frozen=True)
class Hook:
    """A hook of Flagger: its type, the verdict of the gate that it lets through, which stages it asks about."""

    type: str
    lets_through: str
    stages: tuple[str, ...]
    about: str


HOOK_ROWS: tuple[Hook, ...] = (
    Hook("confirm-rollout", "pass", ("shadow",), "traffic is shifted only after the shadow stage has passed"),
    Hook("confirm-traffic-increase", "pass", ("canary",), "a larger share only after the step before has passed"),
    Hook("confirm-promotion", "pass", ("canary",), "promotion only after the canary stage has passed"),
    Hook("rollback", "fail", ("canary",), "traffic goes back to the primary once a clause that decides has failed"),
)


def hook_status(hook: Hook, verdict: str) -> int:
    """The status of a hook's answer: 200 for the one verdict that it lets through and for no other."""
    if verdict == hook.lets_through:
        return OK
    return FAILED if verdict == "fail" else UNDECIDED


def verdict_about(asked: str, stage: str, verdict: str) -> str:
    """The verdict about one stage, from the gate's about the stage that the store is in.

    No stage is skipped, so a store in a later one has passed it; an earlier one says nothing yet. A failure is one
    wherever it is.
    """
    if verdict == "fail" or stage == asked:
        return verdict
    return "pass" if STAGES.index(stage) > STAGES.index(asked) else "inconclusive"


def hook_answer(type: str, asked: str, stage: str, verdict: str) -> int | None:
    """The status of a hook's answer, from the gate's verdict about the store's stage; None where there is no such hook."""
    hook = next((h for h in HOOK_ROWS if h.type == type and asked in h.stages), None)
    return None if hook is None else hook_status(hook, verdict_about(asked, stage, verdict))


def hook_path(hook: Hook, stage: str) -> str:
    """Path and query of a hook about a stage."""
    return f"{HOOKS}/{hook.type}?stage={quote(stage, safe='')}"
