"""What the targets' published schemas allow of the fields that kcverify writes, transcribed and closed.

Sources: argoproj/argo-rollouts 9f8d111d, manifests/crds/analysis-template-crd.yaml; fluxcd/flagger 15bd6ad5,
artifacts/flagger/crd.yaml; OpenSLO/OpenSLO aa5cb78d, README.md (the specification of v1); cloudevents/spec c2845a49,
cloudevents/formats/cloudevents.json and section 3 of cloudevents/spec.md. Fields that are not written are left out, and no
other field is allowed.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
ANNOTATION = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
ANNOTATIONS: Schema = {"type": "object", "additionalProperties": False, "patternProperties": {ANNOTATION: TEXT}}


def _closed(required: Schema, **optional: Schema) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **optional},
        "additionalProperties": False,
    }


def _list(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


def _kind(version: str, kind: str, spec: Schema, **metadata: Schema) -> Schema:
    head = _closed({"name": NAME}, annotations=ANNOTATIONS, **metadata)
    return _closed({"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": head, "spec": spec})


_SECONDS: Schema = {"type": "string", "pattern": "^[0-9]+(s|m|h)$"}
_SECRET = _closed({"secretKeyRef": _closed({"name": TEXT, "key": TEXT})})
_WEB = _closed(
    {"url": TEXT}, method={"enum": ["", "GET", "POST", "PUT"]}, headers=_list(_closed({"key": TEXT, "value": TEXT})),
    timeoutSeconds=WHOLE, jsonPath=TEXT, jsonBody={"type": "object"},
)  # fmt: skip
_METRIC = _closed(
    {"name": TEXT, "provider": _closed({"web": _WEB})},
    interval=_SECONDS, count=WHOLE, successCondition=TEXT, failureCondition=TEXT, failureLimit=WHOLE,
    inconclusiveLimit=WHOLE, consecutiveErrorLimit=WHOLE, consecutiveSuccessLimit={"type": "integer", "minimum": 1},
)  # fmt: skip
ARGO = _kind(
    "argoproj.io/v1alpha1",
    "AnalysisTemplate",
    _closed(
        {"args": _list(_closed({"name": TEXT}, value=TEXT, valueFrom=_SECRET)), "metrics": _list(_METRIC, minItems=1)}
    ),
)

HOOKS = (
    "", "confirm-rollout", "pre-rollout", "rollout", "confirm-promotion", "post-rollout", "event", "rollback",
    "confirm-traffic-increase",
)  # fmt: skip
_TIMEOUT: Schema = {"type": "string", "pattern": "^[0-9]+(m|s)"}
_WEBHOOK = _closed(
    {"name": TEXT, "url": {"type": "string", "format": "uri", "pattern": "^https?://[!-~]+$"}},
    type={"enum": list(HOOKS)}, timeout=_TIMEOUT, metadata={"type": "object", "additionalProperties": TEXT},
)  # fmt: skip
_ANALYSIS = {
    **_closed(
        {"interval": _TIMEOUT, "threshold": WHOLE}, iterations=WHOLE, stepWeights=_list(WHOLE), webhooks=_list(_WEBHOOK)
    ),
    "oneOf": [{"required": ["iterations"]}, {"required": ["stepWeights"]}],
}
FLAGGER = _kind(
    "flagger.app/v1beta1",
    "Canary",
    _closed(
        {
            "targetRef": _closed(
                {"apiVersion": TEXT, "kind": {"enum": ["DaemonSet", "Deployment", "Service"]}, "name": TEXT}
            ),
            "analysis": _ANALYSIS,
        }
    ),
)

_SHORT: Schema = {"type": "string", "pattern": "^[1-9][0-9]*[mhdwMQY]$"}
_ABOUT: Schema = {"type": "string", "maxLength": 1050}
_SOURCE = _closed({"metricSource": _closed({"type": TEXT, "spec": _closed({"query": TEXT})})})
_INNER = _closed({"name": NAME}, displayName=TEXT)
_SLO = _closed(
    {
        "description": _ABOUT,
        "service": NAME,
        "indicator": _closed(
            {
                "metadata": _INNER,
                "spec": _closed(
                    {"ratioMetric": _closed({"counter": {"type": "boolean"}, "bad": _SOURCE, "total": _SOURCE})}
                ),
            }
        ),
        "timeWindow": _list(_closed({"duration": _SHORT, "isRolling": {"const": True}}), minItems=1, maxItems=1),
        "budgetingMethod": {"enum": ["Occurrences", "Timeslices", "RatioTimeslices"]},
        "objectives": _list(
            _closed({"target": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}}, displayName=TEXT), minItems=1
        ),
        "alertPolicies": _list(_closed({"alertPolicyRef": NAME})),
    }
)
_CONDITION = _closed(
    {"kind": {"const": "burnrate"}, "op": {"enum": ["lte", "gte", "lt", "gt"]}, "threshold": {"type": "number"}, "lookbackWindow": _SHORT},
    alertAfter=_SHORT,
)  # fmt: skip
_POLICY = _closed(
    {
        "description": _ABOUT,
        "alertWhenBreaching": {"type": "boolean"},
        "alertWhenResolved": {"type": "boolean"},
        "alertWhenNoData": {"type": "boolean"},
        "conditions": _list(
            _closed(
                {
                    "kind": {"const": "AlertCondition"},
                    "metadata": _INNER,
                    "spec": _closed({"description": _ABOUT, "severity": TEXT, "condition": _CONDITION}),
                }
            ),
            minItems=1,
            maxItems=1,
        ),
        "notificationTargets": _list(_closed({"targetRef": NAME}), minItems=1),
    }
)
OPENSLO: Schema = {
    "oneOf": [
        _kind("openslo/v1", kind, spec, displayName=TEXT)
        for kind, spec in (
            ("Service", _closed({"description": _ABOUT})),
            ("AlertNotificationTarget", _closed({"target": TEXT, "description": TEXT})),
            ("SLO", _SLO),
            ("AlertPolicy", _POLICY),
        )
    ]
}

_ATTRIBUTE: Schema = {
    "type": "string",
    "minLength": 1,
    "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f\\ud800-\\udfff]+$",
}
CLOUDEVENT = _closed(
    {
        "id": _ATTRIBUTE, "source": {**_ATTRIBUTE, "format": "uri-reference"}, "specversion": {"const": "1.0"}, "type": _ATTRIBUTE,
    },
    subject=_ATTRIBUTE, time={"type": "string", "format": "date-time"}, datacontenttype={"const": "application/json"},
    data={"type": "object"},
)  # fmt: skip
