"""Observability at the gate: evidence that does not say what it is of, or that is of something else, is void."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kcverify.delivery.evidence import Evidence
from kcverify.delivery.store import Store
from kcverify.elaborate.contract import Contract
from kcverify.provenance import enforce

KEY = "provenance"
"""Where events of a store state what their evidence is of."""


def check(contract: Contract, sources: Sequence[Evidence], store: Store | None = None) -> None:
    """Void evidence before any number of it is looked at. Raises InputError: `provenance_missing`,
    `fingerprint_missing`, `identity_mismatch`, `fingerprint_invalid`.

    Results of `measure` carry their provenance; state files, reports and stores have it in a file beside them, a store
    also in its events. Identities must be those of the stage before.
    """
    told: list[tuple[str, Mapping[str, Any] | None]] = []
    for source in sources:
        if source.provenance is not None:
            told.append((source.path, source.provenance))
            continue
        paths = [path for path, _ in source.files] or [source.path]
        own = None if source.files or store is None else _stated(store, "noted")
        told += [(path, own or enforce.provenance_of(path, None)) for path in paths]
    enforce.check_evidence(contract, told, None if store is None else _stated(store, "promoted"))


def _stated(store: Store, kind: str) -> Mapping[str, Any] | None:
    """The last provenance that an event of this kind states since the candidate was last rolled back: what comes after
    that may be another candidate."""
    body: Mapping[str, Any] | None = None
    for event in store.events(kinds=("rolled_back", kind)):
        if event.kind == "rolled_back":
            body = None
        elif event.kind == kind and KEY in event.body:
            body = event.body
    return None if body is None else enforce.provenance_of(store.path, dict(body))


def stated(sources: Sequence[Evidence]) -> dict[str, Any]:
    """What a promotion records: the provenance of its first source that has one."""
    for source in sources:
        if source.provenance is not None:
            sides = {side: source.provenance[side].data() for side in enforce.SIDES}
            return {KEY: {"trace": source.provenance["trace"], **sides}}
    return {}
