"""The JSON Schema of the answers about provenance, part of `answers`."""

from __future__ import annotations

from kcverify.docgen.words import FLAG, MAYBE, TEXT, Schema, listing, record
from kcverify.provenance.fields import FIELDS

ANSWERS = {
    "fingerprint": "kcverify fingerprint --format json",
    "fingerprint_differences": "kcverify fingerprint --compare A B --format json",
    "replay": "kcverify replay EVENT --format json",
    "attest": "kcverify attest --format json",
    "verify": "kcverify verify --format json",
}
"""Definition of each answer -> the command that prints it."""

_DIGEST: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TIME: Schema = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$"}
_PLACE: Schema = {"type": ["integer", "null"]}
_VALUE: Schema = {"type": ["number", "string", "null"]}
_VERDICT: Schema = {"enum": ["pass", "fail", "inconclusive"]}


def _answer(*codes: int, **properties: Schema) -> Schema:
    return record({"kcverify": TEXT, "exit_code": {"enum": list(codes)}, **properties})


def definitions() -> dict[str, Schema]:
    """Answers of the commands and what they share: a fingerprint, the provenance of a result, an attestation."""
    value: Schema = {"anyOf": [TEXT, {"type": "object", "additionalProperties": TEXT}]}
    fields = record({field.name: value for field in FIELDS})
    fingerprint = record(
        {"format": {"const": "kcverify-fingerprint/1"}, "identity": _DIGEST, "context": _DIGEST, "fields": fields}
    )
    own: Schema = {"$ref": "#/$defs/fingerprint_of"}
    difference = {
        "field": TEXT,
        "part": TEXT,
        "digest": {"enum": ["identity", "context"]},
        "first": TEXT,
        "second": TEXT,
    }
    named = record({"name": TEXT, "version": TEXT, "digest": _DIGEST})
    subject = {"name": TEXT, "digest": record({"sha256": _HASH}), "annotations": record({"kind": TEXT})}
    return {
        "fingerprint_of": fingerprint,
        "provenance": record({"trace": listing(TEXT), "reference": own, "candidate": own}),
        "fingerprint": _answer(0, fingerprint=own),
        "fingerprint_differences": _answer(0, 1, identical=FLAG, differences=listing(record(difference))),
        "replay": _replay(),
        "attest": _answer(
            0, output=TEXT, key=_HASH, subjects=listing(record(subject)), contract=named, verdict=_VERDICT, until=_TIME
        ),
        "verify": _answer(
            0, 1, 3, file=TEXT, accepted=FLAG, diagnostics=listing({"$ref": "#/$defs/diagnostic"}),
            attested={"anyOf": [_attested(named), {"type": "null"}]}, proved=listing(TEXT), not_compared=listing(TEXT),
        ),
    }  # fmt: skip


def _replay() -> Schema:
    event = {
        "signature": _DIGEST, "at": _TIME, "contract": TEXT, "request": TEXT, "clause": TEXT, "slice": MAYBE, "row": _PLACE,
        "token": _PLACE,
    }  # fmt: skip
    return _answer(
        0, 1, event=record(event), sides=record({"reference": TEXT, "candidate": TEXT}),
        bitwise=record({"reference": FLAG, "candidate": FLAG, "pair": FLAG}), value=_VALUE, recorded=_VALUE,
        reproduced=FLAG, drift={"type": "object"},
    )  # fmt: skip


def _attested(named: Schema) -> Schema:
    """What an authentic attestation states."""
    row = {"name": TEXT, "slice": TEXT, "verdict": TEXT}
    return record(
        {
            "contract": named, "validity": record({"from": _TIME, "until": _TIME}), "verdict": _VERDICT,
            "clauses": listing(record({**row, "severity": TEXT})), "guarantees": listing(record(row)),
            "subjects": listing(record({"kind": {"enum": ["weights", "kernel"]}, "name": TEXT, "sha256": _HASH})),
        }
    )  # fmt: skip
