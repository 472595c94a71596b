"""AnalysisTemplates of Argo Rollouts: one a stage, which ask the gateway for the gate's verdict until it is decided."""

from __future__ import annotations

import json
import math
from typing import Any

from kcverify.elaborate.contract import Contract, Stage
from kcverify.elaborate.policy import STAGES
from kcverify.exporters.names import GATE
from kcverify.exporters.request import Request, closed, percents, stages
from kcverify.exporters.text import slug, yaml_text

INTERVAL = 60
"""Seconds between two questions."""
PATIENCE = 60
"""Questions beyond the stage's own minimum time before the analysis is inconclusive, and the rollout pauses."""
ERRORS = 4
SECRET = "kcverify-gateway"


def templates(request: Request) -> str:
    """One document a stage with traffic, below the steps of a rollout that use them."""
    contract = request.subject
    closed(contract)
    found = stages(contract)
    documents = [_template(request, stage) for stage in found]
    return yaml_text(documents, [*_steps(contract, found), *_offline(contract)])


def _name(contract: Contract, stage: Stage) -> str:
    return slug(contract.name, stage.name)


def _steps(contract: Contract, found: tuple[Stage, ...]) -> list[str]:
    """How a rollout refers to the templates: in steps, since an analysis in the background that is ended has passed."""
    lines = [
        "use these templates in inline steps of `spec.strategy.canary`: an analysis in the background counts as Successful",
        "when the rollout ends it, whatever it has seen. A pass needs consecutiveSuccessLimit (Argo Rollouts 1.8).",
        "steps:",
    ]
    lost: list[str] = []
    for stage in found:
        analysis = f"  - analysis: {{templates: [{{templateName: {_name(contract, stage)}}}]}}"
        if stage.name == "canary":
            weights, lost = percents(stage.traffic)
            for weight in weights or [1]:
                lines += [f"  - setWeight: {weight}", analysis]
        elif stage.name == "full":
            lines += ["  - setWeight: 100", analysis]
        else:
            lines += ["  - setWeight: 0", analysis]
    return [*lines, *lost]


def _offline(contract: Contract) -> list[str]:
    if not any(s.name == "offline" for s in contract.stages):
        return []
    return ["the stage offline sees no traffic: decide it before the rollout with `kcverify gate --stage offline`"]


def _passed(name: str) -> str:
    """The condition of `names.verdict_about`: this stage passes now, or a later one is where the store is."""
    now = f'result.stage == {json.dumps(name)} && result.verdict == "pass"'
    later = STAGES[STAGES.index(name) + 1 :]
    if not later:
        return now
    return f'({now}) || (result.stage in {json.dumps(later)} && result.verdict != "fail")'


def _template(request: Request, stage: Stage) -> dict[str, Any]:
    count = PATIENCE + math.ceil(max((stage.duration or 0, stage.hold or 0, stage.stable or 0)) / INTERVAL)
    web = {
        "method": "POST",
        "url": "{{args.gateway}}" + GATE,
        "headers": [{"key": "Authorization", "value": "Bearer {{args.token}}"}],
        "jsonBody": {"stage": stage.name},
        "timeoutSeconds": 20,
        "jsonPath": "{$.gate}",
    }
    metric = {
        "name": slug("gate", stage.name),
        "interval": f"{INTERVAL}s",
        "count": count,
        "successCondition": _passed(stage.name),
        "failureCondition": 'result.verdict == "fail"',
        "failureLimit": 0,
        "inconclusiveLimit": count,
        "consecutiveErrorLimit": ERRORS,
        "consecutiveSuccessLimit": 1,
        "provider": {"web": web},
    }
    arguments = [
        {"name": "gateway", "value": request.gateway},
        {"name": "token", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "token"}}},
    ]
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": {"name": _name(request.subject, stage), "annotations": request.identity},
        "spec": {"args": arguments, "metrics": [metric]},
    }
