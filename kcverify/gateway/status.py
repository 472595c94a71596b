"""The state of a gateway as one JSON document: what a dashboard shows."""

from __future__ import annotations

import math
from typing import Any

from kcverify import __version__
from kcverify.elaborate.form import digest
from kcverify.gateway.core import Gateway, set_of
from kcverify.gateway.measuring import Measuring

HISTORY = 600
"""Seconds of health in the status."""


def status(gateway: Gateway, measuring: Measuring, evidence: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything, as plain values. Numbers that JSON does not know are text."""
    state, table = gateway.state, gateway.router.table
    watches = gateway.guard.watcher.watches
    document: dict[str, Any] = plain(
        {
            "kcverify": __version__,
            "contract": {
                "name": gateway.contract.name, "version": gateway.contract.version, "digest": digest(gateway.contract),
                "description": gateway.contract.description,
            },
            "now": gateway.clock.now(), "started": gateway.started, "writer": gateway.keeper.writer, "problem": gateway.problem,
            "stage": state.stage, "position": state.position, "next": state.plan.next(state.position),
            "places": [place.name for place in state.plan.positions], "run": state.run,
            "paused": state.paused, "entered": state.entered, "version": state.version, "seq": state.seq, "head": state.hash,
            "route": {
                **table.data(), "shares": {k: float(v) for k, v in table.weights.items()}, "cause": state.cause,
                "since": state.route_since, "recorded": state.route,
            },
            "health": [watch.data() for watch in watches.values()],
            "sampler": gateway.guard.drawn.data(), "not_watched": gateway.not_watched, "unobservable": _unobservable(gateway),
            "history": list(gateway.guard.history)[-HISTORY:], "evidence": evidence,
            "events": list(gateway.events)[-50:], "witnesses": gateway.guard.witnesses(),
            "traffic": {
                "requests": gateway.counts["requests"], "active": measuring.active, "copies": measuring.copies,
                "waiting": measuring.waiting, "behind": round(measuring.behind, 3), "admitted": measuring.admitted,
                "waiting_bytes": measuring.waiting_bytes, "measuring": measuring.busy, "measured": gateway.guard.measured, "outside": dict(measuring.outside),
                "void": dict(gateway.void), "counts": gateway.counted(),
                "dropped": {k.removeprefix("dropped_"): v for k, v in gateway.counted().items() if k.startswith("dropped_")},
            },
            "upstreams": {role: gateway.upstream(role).data() for role in gateway.upstreams},
            "identity": {str(run): [vars(side) for side in pair] for run, pair in gateway.first.items()},
        }
    )  # fmt: skip
    return document


def _unobservable(gateway: Gateway) -> dict[str, dict[str, int]]:
    """Why cells are not seen: never from traffic (count 0), or so often in the requests so far."""
    out = {name: {reason: 0} for name, reason in gateway.guard.never.items()}
    for name, reasons in gateway.guard.reasons.items():
        if reasons:
            out.setdefault(name, {}).update(reasons.most_common(5))
    return out


def plain(value: Any) -> Any:
    """The same with every number that JSON does not know as text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def health(gateway: Gateway) -> dict[str, Any]:
    """What `/healthz` says: alive, and whether something is wrong."""
    up = {u.name: not u.health.down for u in set_of(gateway.upstreams)}
    return {"status": "closing" if gateway.closing else "ok", "upstreams": up, "problem": gateway.problem}
