"""Objectives in OpenSLO v1: one SLO a clause that counters decide as a ratio, with an alert condition."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from kcverify.elaborate.contract import Contract
from kcverify.exact import decimal_near, decimal_up
from kcverify.exporters.evidence import Measured, measured, selector
from kcverify.exporters.names import EXCEEDANCES, OBSERVATIONS
from kcverify.exporters.prometheus import BURNS
from kcverify.exporters.request import Request
from kcverify.exporters.text import slug, whole, yaml_text

WINDOW = "28d"
NEAREST = Fraction(999_999, 1_000_000)
"""The target of a clause without exception, since OpenSLO's targets end below 1: its alert condition carries the clause."""
_LONGEST = 1050
_DIGITS, _LARGEST = 12, 0.999999999999
_ABOUT = (
    "an error budget is no test: what is spent of it says nothing about chance. The verdict of a clause, with its guarantee",
    "against false alarms at every look, is that of the alert rules (`kcverify emit prometheus`) and of the gate",
    "no data is no success: alertWhenNoData is set",
)

Document = dict[str, Any]


def objectives(request: Request) -> str:
    """Service, notification target, and for each clause and slice an SLO with its alert policy."""
    contract = request.subject
    found, silent = measured(contract)
    about = [*_ABOUT, *(f"clause {name} has no SLO: {reason}" for name, reason in silent.items())]
    documents = [_service(request), _target()]
    for one in found:
        if one.kind in ("share", "mean"):
            what = "share of each request's own tokens" if one.kind == "share" else "mean of a value"
            about.append(
                f"clause {one.name} has no SLO: it is about the {what}, and OpenSLO counts good and bad requests"
            )
            continue
        if one.limit == 0.0:
            about.append(
                f"clause {one.name} allows no exception, which no target below 1 says: its target is the nearest one, "
                "and its alert condition is met by the first exceedance (burn rate above 0)"
            )
        elif one.limit < 1.0 - _LARGEST:
            about.append(f"clause {one.name}: its target is cut to {_LARGEST}, and the clause asks for more")
        if one.note:
            about.append(f"clause {one.name}: {one.note}")
        for name in one.slices:
            documents += _clause(one, contract, name)
    return yaml_text(documents, about)


def _document(kind: str, name: str, title: str, spec: Document, **annotations: str) -> Document:
    metadata: Document = {"name": name, "displayName": whole(title)}
    if annotations:
        metadata["annotations"] = {f"kcverify/{key}": value for key, value in annotations.items()}
    return {"apiVersion": "openslo/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _service(request: Request) -> Document:
    contract = request.subject
    document = _document(
        "Service", slug(contract.name), contract.name, {"description": _cut(contract.description or contract.name)}
    )
    document["metadata"]["annotations"] = request.identity
    return document


def _target() -> Document:
    spec = {"target": "alertmanager", "description": "where alerts of kcverify go: name your own"}
    return _document("AlertNotificationTarget", "kcverify-alerts", "kcverify alerts", spec)


def _cut(text: str) -> str:
    return whole(text)[:_LONGEST]


def _clause(one: Measured, contract: Contract, slice: str) -> Iterator[Document]:
    clause = one.planned.clause
    parts = (contract.name, clause.name, slice) if slice else (contract.name, clause.name)
    name, title = slug(*parts), f"{clause.name} on {slice}" if slice else clause.name
    identity = {"contract": contract.name, "clause": clause.name, "slice": slice, "severity": clause.severity}
    indicator = {
        "metadata": {"name": name, "displayName": whole(title)},
        "spec": {"ratioMetric": _ratio(one, contract, slice)},
    }
    spec = {
        "description": _cut(clause.text),
        "service": slug(contract.name),
        "indicator": indicator,
        "timeWindow": [{"duration": WINDOW, "isRolling": True}],
        "budgetingMethod": "Occurrences",
        "objectives": [{"displayName": whole(title), "target": _kept(one)}],
        "alertPolicies": [{"alertPolicyRef": name}],
    }
    yield _document("SLO", name, title, spec, **identity)
    yield _document("AlertPolicy", name, title, _policy(one, name, title), **identity)


def _ratio(one: Measured, contract: Contract, slice: str) -> Document:
    series = selector(contract.name, one.name, (slice,))
    sources = {
        part: {"metricSource": {"type": "Prometheus", "spec": {"query": f"sum({counter}{series})"}}}
        for part, counter in (("bad", EXCEEDANCES), ("total", OBSERVATIONS))
    }
    return {"counter": True, **sources}


def _kept(one: Measured) -> float:
    """The share of good units, rounded up: never a weaker objective than the clause's."""
    if one.limit == 0.0:
        return float(NEAREST)
    return min(float(decimal_up(1 - one.allowed, _DIGITS)), _LARGEST)


def _policy(one: Measured, name: str, title: str) -> Document:
    allowed = one.allowed
    usable = [row for row in BURNS if row[0] * allowed < 1]
    if allowed == 0 or not usable:
        condition: Document = {"kind": "burnrate", "op": "gt", "threshold": 0, "lookbackWindow": "5m"}
        told = (
            "the first exceedance" if allowed == 0 else "any exceedance: no burn rate of this clause is a rate below 1"
        )
    else:
        factor, window, _ = usable[0]
        condition = {
            "kind": "burnrate",
            "op": "gte",
            "threshold": float(factor),
            "lookbackWindow": window,
            "alertAfter": "5m",
        }
        told = f"{decimal_near(factor, 4)} times the allowed rate over {window}"
    inner = {
        "kind": "AlertCondition",
        "metadata": {"name": name, "displayName": whole(title)},
        "spec": {"description": told, "severity": one.planned.clause.severity, "condition": condition},
    }
    return {
        "description": told,
        "alertWhenBreaching": True,
        "alertWhenResolved": False,
        "alertWhenNoData": True,
        "conditions": [inner],
        "notificationTargets": [{"targetRef": "kcverify-alerts"}],
    }
