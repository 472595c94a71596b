"""A Canary of Flagger whose webhooks ask the gateway: it waits while the gate is undecided and rolls back where it fails."""

from __future__ import annotations

from typing import Any

from kcverify.elaborate.form import digest
from kcverify.exporters.names import HOOK_ROWS, Hook, hook_path
from kcverify.exporters.request import Request, closed, percents, stages
from kcverify.exporters.text import slug, yaml_text

_ABOUT = (
    "merge `spec.analysis` into the Canary of the deployment that serves the candidate; its other fields stay as they are",
    "a hook answers 2xx for one verdict alone: pass lets traffic or a promotion through, fail lets the rollback through;",
    "inconclusive is neither, so that the canary waits. A gateway that does not answer lets nothing through either:",
    "the canary waits at its share of traffic, and the alert rules must see it",
)


def canary(request: Request) -> str:
    """One Canary."""
    contract = request.subject
    closed(contract)
    found = {stage.name: stage for stage in stages(contract)}
    about = list(_ABOUT)
    analysis: dict[str, Any] = {"interval": "1m", "threshold": 1}
    weights, lost = percents(found["canary"].traffic if "canary" in found else ())
    if weights:
        analysis["stepWeights"] = weights
    else:
        analysis["iterations"] = 1
    hooks = []
    for hook in HOOK_ROWS:
        asked = [name for name in hook.stages if name in found]
        hooks += [_webhook(request, hook, stage) for stage in asked]
        if not asked:
            about.append(f"no hook {hook.type}: the contract has no stage {' or '.join(hook.stages)}")
    if "full" in found:
        about.append("the stage full comes after Flagger's end: nothing here watches it, the alert rules do")
    analysis["webhooks"] = hooks
    document = {
        "apiVersion": "flagger.app/v1beta1",
        "kind": "Canary",
        "metadata": {"name": slug(contract.name), "annotations": request.identity},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": slug(contract.name)},
            "analysis": analysis,
        },
    }
    return yaml_text([document], [*about, *lost])


def _webhook(request: Request, hook: Hook, stage: str) -> dict[str, Any]:
    return {
        "name": slug("kcverify", hook.type.replace("-", "_"), stage),
        "type": hook.type,
        "url": request.gateway + hook_path(hook, stage),
        "timeout": "20s",
        "metadata": {"contract": request.subject.name, "digest": digest(request.subject), "stage": stage},
    }
