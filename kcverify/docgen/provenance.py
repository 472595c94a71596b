"""The JSON Schema of the answers about provenance, part of `answers`."""

from __future__ import annotations

from typing import Any

from kcverify.provenance.fields import FIELDS

Schema = dict[str, Any]

ANSWERS = {
    "fingerprint": "kcverify fingerprint --format json",
    "fingerprint_differences": "kcverify fingerprint --compare A B --format json",
    "replay": "kcverify replay EVENT --format json",
    "attest": "kcverify attest --format json",
    "verify": "kcverify verify --format json",
}
"""Definition of each answer -> the command that prints it."""

_TEXT: Schema = {"type": "string"}
_MAYBE: Schema = {"type": ["string", "null"]}
_FLAG: Schema = {"type": "boolean"}
_DIGEST: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TIME: Schema = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$"}
_PLACE: Schema = {"type": ["integer", "null"]}
_VALUE: Schema = {"type": ["number", "string", "null"]}
_VERDICT: Schema = {"enum": ["pass", "fail", "inconclusive"]}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _answer(*codes: int, **properties: Schema) -> Schema:
    return _object({"kcverify": _TEXT, "exit_code": {"enum": list(codes)}, **properties})


def definitions() -> dict[str, Schema]:
    """Answers of the commands and what they share: a fingerprint, the provenance of a result, an attestation."""
    value: Schema = {"anyOf": [_TEXT, {"type": "object", "additionalProperties": _TEXT}]}
    fields = _object({field.name: value for field in FIELDS})
    fingerprint = _object(
        {"format": {"const": "kcverify-fingerprint/1"}, "identity": _DIGEST, "context": _DIGEST, "fields": fields}
    )
    own: Schema = {"$ref": "#/$defs/fingerprint_of"}
    difference = {
        "field": _TEXT,
        "part": _TEXT,
        "digest": {"enum": ["identity", "context"]},
        "first": _TEXT,
        "second": _TEXT,
    }
    named = _object({"name": _TEXT, "version": _TEXT, "digest": _DIGEST})
    subject = {"name": _TEXT, "digest": _object({"sha256": _HASH}), "annotations": _object({"kind": _TEXT})}
    return {
        "fingerprint_of": fingerprint,
        "provenance": _object({"trace": _list(_TEXT), "reference": own, "candidate": own}),
        "fingerprint": _answer(0, fingerprint=own),
        "fingerprint_differences": _answer(0, 1, identical=_FLAG, differences=_list(_object(difference))),
        "replay": _replay(),
        "attest": _answer(
            0, output=_TEXT, key=_HASH, subjects=_list(_object(subject)), contract=named, verdict=_VERDICT, until=_TIME
        ),
        "verify": _answer(
            0, 1, 3, file=_TEXT, accepted=_FLAG, diagnostics=_list({"$ref": "#/$defs/diagnostic"}),
            attested={"anyOf": [_attested(named), {"type": "null"}]}, proved=_list(_TEXT), not_compared=_list(_TEXT),
        ),
    }  # fmt: skip


def _replay() -> Schema:
    event = {
        "signature": _DIGEST, "at": _TIME, "contract": _TEXT, "request": _TEXT, "clause": _TEXT, "slice": _MAYBE, "row": _PLACE,
        "token": _PLACE,
    }  # fmt: skip
    return _answer(
        0, 1, event=_object(event), sides=_object({"reference": _TEXT, "candidate": _TEXT}),
        bitwise=_object({"reference": _FLAG, "candidate": _FLAG, "pair": _FLAG}), value=_VALUE, recorded=_VALUE,
        reproduced=_FLAG, drift={"type": "object"},
    )  # fmt: skip


def _attested(named: Schema) -> Schema:
    """What an authentic attestation states."""
    row = {"name": _TEXT, "slice": _TEXT, "verdict": _TEXT}
    return _object(
        {
            "contract": named, "validity": _object({"from": _TIME, "until": _TIME}), "verdict": _VERDICT,
            "clauses": _list(_object({**row, "severity": _TEXT})), "guarantees": _list(_object(row)),
            "subjects": _list(_object({"kind": {"enum": ["weights", "kernel"]}, "name": _TEXT, "sha256": _HASH})),
        }
    )  # fmt: skip
