"""The same weights in the words of routers that are already there: a row a system, printed as its own kind of patch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kcverify.diagnostics import input_error

LARGEST_WEIGHT = 1_000_000
"""Of a backend in the Gateway API."""


@dataclass(frozen=True)
class Names:
    """What the other system calls things: `model` (LiteLLM: the public name; KServe: the service), a name a side."""

    model: str
    sides: Mapping[str, str]
    namespace: str = "default"
    port: int = 8000


@dataclass(frozen=True)
class Adapter:
    """A system: what its text is, how to apply it, and the documents that carry the weights."""

    name: str
    what: str
    apply: str
    documents: Callable[[Mapping[str, Fraction], Names], list[dict[str, Any]]]


def _whole(weights: Mapping[str, Fraction], sides: Mapping[str, str]) -> dict[str, int]:
    """Whole weights by the other system's names, in exactly the same ratio, a side that serves nothing included as 0.

    Sides of one name are one backend, whose weights add up.
    """
    scale = math.lcm(*(w.denominator for w in weights.values())) if weights else 1
    out = dict.fromkeys(sides.values(), 0)
    for side, name in sides.items():
        out[name] += int(weights.get(side, Fraction(0)) * scale)
    if max(out.values(), default=0) > LARGEST_WEIGHT:
        raise input_error(
            "option_invalid", option="TARGET", reason=f"the weights need more than {LARGEST_WEIGHT:,} parts"
        )
    return out


def _litellm(weights: Mapping[str, Fraction], names: Names) -> list[dict[str, Any]]:
    """Bodies for `/model/update`, one a deployment; `weight` steers its simple-shuffle routing."""
    return [
        {
            "model_name": names.model,
            "litellm_params": {"weight": weight},
            "model_info": {"id": name},
        }
        for name, weight in _whole(weights, names.sides).items()
    ]


def _http_route(weights: Mapping[str, Fraction], names: Names) -> list[dict[str, Any]]:
    backends = [
        {"name": name, "port": names.port, "weight": weight} for name, weight in _whole(weights, names.sides).items()
    ]
    _kubernetes(
        {"--name": names.model, "--namespace": names.namespace, **{f"--side {s}": n for s, n in names.sides.items()}}
    )
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": names.model, "namespace": names.namespace},
            "spec": {
                "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}], "backendRefs": backends}]
            },
        }
    ]


_NAME = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _kubernetes(names: Mapping[str, str]) -> None:
    """Raises InputError: `option_invalid` for a name that Kubernetes refuses (RFC 1123)."""
    for option, name in names.items():
        if not _NAME.fullmatch(name):
            reason = f"`{name[:80]}` is no name in Kubernetes: at most 63 of `a-z0-9-`, a letter or digit at both ends"
            raise input_error("option_invalid", option=option, reason=reason, hint="give the name that the object has")


def _kserve(weights: Mapping[str, Fraction], names: Names) -> list[dict[str, Any]]:
    """KServe splits between the newest revision and the one before, in whole percent."""
    _kubernetes({"--name": names.model, "--namespace": names.namespace})
    share = weights.get("candidate", Fraction(0)) * 100
    if share.denominator != 1:
        reason = f"KServe takes whole percent, and the candidate's share is {float(share):g}%"
        raise input_error("option_invalid", option="TARGET", reason=reason, hint="promote to a whole percentage first")
    return [
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": names.model, "namespace": names.namespace},
            "spec": {"predictor": {"canaryTrafficPercent": int(share)}},
        }
    ]


ADAPTERS: tuple[Adapter, ...] = (
    Adapter("litellm", "bodies of POST /model/update", "send each to a LiteLLM proxy, or `--apply URL`", _litellm),
    Adapter("http-route", "HTTPRoute of the Gateway API", "kubectl apply -f -", _http_route),
    Adapter("kserve", "merge patch of an InferenceService", "kubectl patch inferenceservice NAME -n NAMESPACE --type merge --patch-file /dev/stdin", _kserve),
)  # fmt: skip
BY_NAME: Mapping[str, Adapter] = {row.name: row for row in ADAPTERS}


def documents(target: str, weights: Mapping[str, Fraction], names: Names) -> list[dict[str, Any]]:
    """What the system takes. Raises InputError: `option_invalid` for an unknown one, or weights it cannot hold."""
    row = BY_NAME.get(target)
    if row is None:
        hint = f"one of {', '.join(BY_NAME)}"
        raise input_error("option_invalid", option="TARGET", reason=f"`{target}` is no router we know", hint=hint)
    if not weights:
        raise input_error(
            "option_invalid", option="TARGET", reason="the route is stopped: no weights say that nothing serves"
        )
    return row.documents(weights, names)


def text(target: str, weights: Mapping[str, Fraction], names: Names) -> str:
    """The documents as JSON, which every one of these systems reads (JSON is YAML)."""
    return "\n---\n".join(json.dumps(d, indent=2, sort_keys=False) for d in documents(target, weights, names))
