"""Observability clauses: a missing trace field or another identity voids a run before any number is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kcverify.diagnostics import Diagnostic, InputError, diagnose, diagnosis, input_error
from kcverify.elaborate.contract import Contract
from kcverify.provenance.fields import ABSENT
from kcverify.provenance.fingerprint import Fingerprint, differences, of_data
from kcverify.provenance.reading import is_there, read_bytes, strict

SIDES = ("reference", "candidate")
SUFFIX = ".provenance.json"
"""Ending of the file beside evidence that cannot carry its own provenance."""


class Traced(Protocol):
    """A request as the trace sees it."""

    @property
    def request_id(self) -> str:
        """Its name."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Scalars of its line."""

    @property
    def traced(self) -> frozenset[str]:
        """Keys of its line that hold anything."""


def _always(request: Traced) -> bool:
    return True


TRACE: Mapping[str, Callable[[Traced], bool]] = dict.fromkeys(
    (
        "request_id", "position", "token_ids", "logits", "probabilities", "log_probabilities", "sampled_log_probabilities",
        "top_log_probabilities",
    ),
    _always,
)  # fmt: skip
"""Trace fields that every measured request has, since the run itself gives them; any other stands in its line."""


def has(request: Traced, field: str) -> bool:
    """Whether the trace of a request carries a field."""
    row = TRACE.get(field)
    return row(request) if row is not None else field in request.traced or field in request.fields


def trace_faults(contract: Contract, requests: Sequence[Traced]) -> list[Diagnostic]:
    """One finding for each field of `trace` that a request lacks, at the first such request."""
    watched = contract.observability
    out = []
    for field in watched.trace if watched is not None else ():
        missing = [request for request in requests if not has(request, field)]
        if missing:
            row = diagnose(
                "trace_missing", watched.span if watched else None, request=missing[0].request_id, field=field,
                contract=contract.name, count=len(missing), total=len(requests),
            )  # fmt: skip
            out.append(row)
    return out


def traced(requests: Sequence[Traced]) -> list[str]:
    """Fields that the traces of all requests carry."""
    if not requests:
        return []
    shared = frozenset.intersection(*(r.traced | frozenset(r.fields) for r in requests))
    return sorted(shared | {name for name, row in TRACE.items() if all(map(row, requests))})


def fingerprint_faults(
    contract: Contract, side: str, name: str, found: Fingerprint, expected: Fingerprint | None, where: str
) -> list[Diagnostic]:
    """Fields of `fingerprint` that are silent, and fields of the identity that are not those of `expected`."""
    watched = contract.observability
    out = []
    for field in watched.fingerprint if watched is not None else ():
        if found.fields[field] == ABSENT:
            hint = f"declare it: `kcverify fingerprint ... -o F.json`, then `--fingerprint-{side} F.json`"
            span = watched.span if watched else None
            row = diagnose(
                "fingerprint_missing", span, hint=hint, side=side, name=name, field=field, contract=contract.name
            )
            out.append(row)
    if expected is not None:
        out += identity_faults(side, found, expected, where)
    return out


def identity_faults(side: str, found: Fingerprint, expected: Fingerprint, where: str) -> list[Diagnostic]:
    """Fields of the identity that both state, and state otherwise."""
    out = []
    for row in differences(found, expected):
        if row.identity and row.contradiction:
            told = {"field": row.name, "side": side, "found": row.first, "where": where, "expected": row.second}
            out.append(diagnosis("identity_mismatch", told))
    return out


def void(faults: Iterable[Diagnostic]) -> None:
    """Raise InputError with the faults, if there are any."""
    found = tuple(faults)
    if found:
        raise InputError(*found)


def provenance_of(path: str, found: object) -> Mapping[str, Any] | None:
    """The provenance of evidence: that of a result, else that of the file beside it; None where there is none.

    Raises InputError: `fingerprint_invalid` for one that cannot be read.
    """
    data = found.get("provenance") if isinstance(found, dict) else None
    beside = Path(path + SUFFIX)
    if data is None and is_there(beside):
        try:
            data = strict(read_bytes(beside))
        except ValueError as error:
            raise input_error("fingerprint_invalid", path=beside, reason=str(error)) from None
        path = str(beside)
    if data is None:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("trace"), list):
        raise input_error("fingerprint_invalid", path=path, reason="its provenance has no `trace`")
    return {"trace": data["trace"], **{side: of_data(data.get(side), path) for side in SIDES}}


def check_evidence(
    contract: Contract, sources: Sequence[tuple[str, Mapping[str, Any] | None]], previous: Mapping[str, Any] | None
) -> None:
    """Void evidence that lacks what `observability` names, or that is of another identity than the rest or than before.

    `sources` are paths with what `provenance_of` gave, `previous` is the provenance of an earlier stage. Nothing is asked
    of a contract without `observability`, but identities that are stated must agree. Raises InputError.
    """  # fmt: skip
    watched = contract.observability
    wanted = [*watched.trace, *watched.fingerprint] if watched is not None else []
    faults: list[Diagnostic] = []
    first = None if previous is None else ("the store", previous)
    for path, told in sources:
        if told is None:
            if wanted:
                row = diagnose("provenance_missing", path=path, what=", ".join(wanted), contract=contract.name)
                faults.append(row)
            continue
        lacking = [f for f in (watched.trace if watched else ()) if f not in told["trace"]]
        if lacking:
            row = diagnose("provenance_missing", path=path, what=", ".join(lacking), contract=contract.name)
            faults.append(row)
        for side in SIDES:
            expected = None if first is None else first[1][side]
            faults += fingerprint_faults(contract, side, path, told[side], expected, first[0] if first else "")
        first = first or (path, told)
    void(faults)
