"""What the evidence of a run is of, in the words that the gate asks for: fingerprints of both sides, fields of the trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kcverify.elaborate.contract import Contract
from kcverify.gateway.observed import Claims
from kcverify.provenance.fields import ABSENT
from kcverify.provenance.fingerprint import Fingerprint, fingerprint

CARRIED = ("request_id", "tags", "token_ids", "sampled_log_probabilities", "top_log_probabilities")
"""Trace fields of every request whose numbers were read."""


def of_side(contract: Contract, claims: Claims, declared: Fingerprint | None) -> Fingerprint:
    """The declared fingerprint; what it leaves open and the contract asks for is what the engine says of itself."""
    watched = contract.observability
    asked = () if watched is None else watched.fingerprint
    said = {
        "weights": f"version {claims.weight_version}" if claims.weight_version else "",
        "build": claims.fingerprint,
        "tokenizer": claims.tokenizer,
        "dtype": claims.kernel,
        "quantization": claims.kernel,
        "kernels": claims.kernel,
    }
    own = fingerprint() if declared is None else declared
    more = {name: value for name, value in said.items() if name in asked and value and own.fields[name] == ABSENT}
    return own.overlaid(fingerprint(**more))


def provenance(
    contract: Contract, sides: Mapping[str, Claims], declared: Mapping[str, Fingerprint], traced: Iterable[str]
) -> dict[str, Any]:
    """What an event states of a run."""
    found = {side: of_side(contract, claims, declared.get(side)).data() for side, claims in sides.items()}
    return {"trace": sorted(traced), **found}
